package schedule_test

import (
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// checkOnce is that what a run with Once reads is read by no other, but by that of another
// tile of two.
func checkOnce(t *testing.T, name string, runs ...abi.Run) {
	t.Helper()
	type token struct{ page, l int32 }
	reads := map[token]int{}
	for _, r := range runs {
		for l := r.Begin; l < r.End; l++ {
			reads[token{r.Page, l}]++
		}
	}
	for _, r := range runs {
		for l := r.Begin; l < r.End && r.Once != 0; l++ {
			if n := reads[token{r.Page, l}]; n > 2 {
				t.Fatalf("%s: token %d of %+v is read %d times", name, l, r, n)
			}
		}
	}
}

// withoutOnce is runs without what they say of others.
func withoutOnce(runs []abi.Run) []abi.Run {
	runs = append([]abi.Run{}, runs...)
	for i := range runs {
		runs[i].Once = 0
	}
	return runs
}

func runsOf(items []abi.Item, runs []abi.Run) []abi.Run {
	var all []abi.Run
	for _, item := range items {
		all = append(all, runs[item.RunBegin:item.RunEnd]...)
	}
	return all
}

func TestOnce(t *testing.T) {
	sequence := func(query int32, tokens int, segments ...schedule.Segment) schedule.Sequence {
		return schedule.Sequence{QueryBegin: query, Positions: make([]int32, tokens), Segments: segments}
	}
	chunk, other := schedule.Segment{Page: 0, Tokens: 64}, schedule.Segment{Page: 4, Tokens: 4096, Offset: 64}
	const far = 1 << 30
	for _, c := range []struct {
		name      string
		sequences []schedule.Sequence
		want      []int32 // Once of decode's runs, then of shared decode's
	}{
		{"alone", []schedule.Sequence{sequence(0, 1, chunk, other)}, []int32{1, 1}},
		{"two tiles", []schedule.Sequence{sequence(0, 5, chunk)}, []int32{1, 1}},
		{"three tiles", []schedule.Sequence{sequence(0, 9, chunk)}, []int32{0, 0, 0}},
		{"twice in a sequence", []schedule.Sequence{sequence(0, 1, chunk, other, chunk)}, []int32{0, 1, 0}},
		{"held by two", []schedule.Sequence{sequence(0, 1, chunk), sequence(1, 1, chunk)}, []int32{0, 0}},
		{"far behind in the page table", []schedule.Sequence{sequence(0, 1, schedule.Segment{Page: far, Tokens: 1})}, []int32{0}},
		{"shared decode in a tile", []schedule.Sequence{sequence(0, 1, chunk, other), sequence(1, 1, other)}, []int32{1, 1}},
		{"shared decode in two tiles", []schedule.Sequence{sequence(0, 4, other), sequence(4, 4, other), sequence(8, 4, other)}, []int32{0, 0}},
	} {
		var b schedule.SharedBuilder
		for range 2 { // the second time with the memory of the first
			lists, err := b.Build(c.sequences, schedule.Options{Rows: 16, Group: 4, MaxPosition: 1 << 20}, schedule.SharedOptions{Rows: 32, Keys: 4096, Blocks: 1, KVHeads: 1})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			runs := append(runsOf(lists.Decode.Items, lists.Decode.Runs), runsOf(lists.Items, lists.Runs)...)
			var got []int32
			for _, r := range runs {
				got = append(got, r.Once)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	}
}

// A step of more tokens than OnceTokens says Once of nothing, unless its kernel of many rows folds parts.
func TestOnceTokens(t *testing.T) {
	sequence := schedule.Sequence{Positions: make([]int32, 1), Segments: []schedule.Segment{{Page: 0, Tokens: 64}, {Page: 4, Tokens: 100, Offset: 64}}}
	decode := schedule.Options{Rows: 16, Group: 4, MaxPosition: 1 << 20, Fold: true}
	extend, whole := decode, decode
	extend.Rows, whole.Rows, whole.Whole = 128, 128, true
	for _, c := range []struct {
		options    schedule.Options
		cache      int64
		tokenBytes int
		want       int32
	}{{decode, 0, 4096, 1}, {decode, 27992, 1024, 1}, {decode, 27988, 1024, 0}, {extend, 27988, 1024, 1}, {whole, 27988, 1024, 0}} {
		lists, err := schedule.Build([]schedule.Sequence{sequence}, c.options.Cache(c.cache, c.tokenBytes))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range lists.Runs {
			if r.Once != c.want {
				t.Errorf("%+v, a cache of %d bytes: Once %d, want %d", c.options, c.cache, r.Once, c.want)
			}
		}
	}
}
