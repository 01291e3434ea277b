package schedule

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/abi"
)

// A chunk that two sequences hold, one of them twice, is listed for each place.
func TestAhead(t *testing.T) {
	table := []int32{9, 5, 6, 7, 8, 3}
	chunk := func(offset int32) Segment { return Segment{Page: 1, Tokens: 70, Offset: offset} } // pages 5 to 7, and 8
	sequences := []Sequence{
		{QueryBegin: 0, Positions: []int32{140}, Layout: 1, Placed: 2, Segments: []Segment{chunk(0), chunk(70), {Page: 5, Tokens: 1, Offset: 140, Own: true}}},
		{QueryBegin: 1, Positions: []int32{1000}, Segments: []Segment{chunk(500), {Page: 0, Tokens: 3, Offset: 998, Own: true}}},
	}
	var a Ahead
	for range 2 { // the second time in the memory of the first
		if err := a.List(sequences, table, 20); err != nil {
			t.Fatal(err)
		}
		want := Ahead{
			Sequences: []Sequence{
				{QueryBegin: 0, Positions: []int32{140}, Segments: []Segment{
					{Page: 0, Tokens: 70, Offset: 0}, {Page: 4, Tokens: 70, Offset: 70}, {Page: 8, Tokens: 1, Offset: 140, Own: true},
				}},
				{QueryBegin: 1, Positions: []int32{1000}, Segments: []Segment{{Page: 9, Tokens: 70, Offset: 500}, {Page: 13, Tokens: 3, Offset: 998, Own: true}}},
			},
			Pages: []int32{5, 6, 7, 8, 5, 6, 7, 8, 3, 5, 6, 7, 8, 9},
			Copies: []abi.Copy{
				{SrcPage: 0, DstPage: 0, Count: 64, Offset: 0}, {SrcPage: 0, SrcBegin: 64, DstPage: 0, DstBegin: 64, Count: 6, Offset: 0},
				{SrcPage: 4, DstPage: 4, Count: 64, Offset: 70}, {SrcPage: 4, SrcBegin: 64, DstPage: 4, DstBegin: 64, Count: 6, Offset: 70},
				{SrcPage: 8, DstPage: 8, Count: 1, Offset: 140},
				{SrcPage: 9, DstPage: 9, Count: 64, Offset: 500}, {SrcPage: 9, SrcBegin: 64, DstPage: 9, DstBegin: 64, Count: 6, Offset: 500},
				{SrcPage: 13, DstPage: 13, Count: 3, Offset: 998},
			},
		}
		got := Ahead{Sequences: a.Sequences, Pages: a.Pages, Copies: a.Copies}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Ahead{})); diff != "" {
			t.Error(diff)
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		if err := a.List(sequences, table, 20); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAheadRefuses(t *testing.T) {
	for _, g := range []Segment{{Page: -1, Tokens: 1}, {Page: 0, Tokens: -1}, {Page: 1, Tokens: 33}} {
		err := new(Ahead).List([]Sequence{{}, {Segments: []Segment{{}, g}}}, make([]int32, 3), 16)
		if err == nil || !strings.Contains(err.Error(), "sequence 1, segment 1") {
			t.Errorf("%+v: %v", g, err)
		}
	}
}
