package schedule_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/schedule"
)

func TestSharedFixedSize(t *testing.T) {
	for seed := range uint64(300) {
		sequences, o, s := randomSharing(rand.New(rand.NewPCG(seed, 3)), 12)
		s.Bitwise = seed%2 == 0
		want, err := new(schedule.SharedBuilder).Build(sequences, o, s)
		if err != nil {
			t.Fatal(err)
		}
		n := len(want.Items)
		if n == 0 {
			continue
		}
		s.PadItems, s.MaxMembers = n+int(seed%3), len(want.Members)
		got, err := new(schedule.SharedBuilder).Build(sequences, o, s)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Items) != s.PadItems {
			t.Fatalf("seed %d: %d items, want %d", seed, len(got.Items), s.PadItems)
		}
		checkShared(t, sequences, o, s, got)
		got.Items = got.Items[:n]
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: padded\n%+v, want\n%+v", seed, got, want)
		}
		small := s
		if seed%4 < 2 {
			small.PadItems = max(1, n-1)
		} else {
			small.MaxMembers = max(1, len(want.Members)-1)
		}
		if small == s || small.PadItems == s.PadItems && small.MaxMembers == s.MaxMembers {
			continue
		}
		got, err = new(schedule.SharedBuilder).Build(sequences, o, small)
		switch {
		case s.Bitwise && small.PadItems >= n && small.MaxMembers >= len(want.Members):
		case s.Bitwise && !errors.Is(err, schedule.ErrFixedSize):
			t.Fatalf("seed %d: error %v for a step that does not fit", seed, err)
		case !s.Bitwise && err != nil:
			t.Fatalf("seed %d: %v", seed, err)
		case !s.Bitwise:
			checkShared(t, sequences, o, small, got)
			if len(got.Items) > small.PadItems || len(got.Members) > small.MaxMembers {
				t.Errorf("seed %d: %d items of %d members", seed, len(got.Items), len(got.Members))
			}
		}
	}
}

// The largest sizes that are taken give lists in which every key that is held is read.
func TestSharedLargestSizes(t *testing.T) {
	const long = 1<<30 + 5
	for _, c := range []struct {
		name         string
		tokens       []int32 // of chunks that all hold
		keys, blocks int     // of a tile of shared decode, and at a time
	}{
		{"two chunks of more than half of all tokens", []int32{long, long - 100}, 128, 1},
		{"the largest tile", []int32{100_000}, math.MaxInt32, 132},
		{"the largest tile, and as many blocks", []int32{100_000}, math.MaxInt32, math.MaxInt32},
	} {
		for _, bitwise := range []bool{false, true} {
			var sequences []schedule.Sequence
			held := 0
			for i := range int32(300) {
				s := schedule.Sequence{QueryBegin: i, Positions: []int32{1000}}
				for j, n := range c.tokens {
					s.Segments = append(s.Segments, schedule.Segment{Page: int32(j) << 28, Tokens: n})
					held += int(n)
				}
				sequences = append(sequences, s)
			}
			lists, err := new(schedule.SharedBuilder).Build(sequences,
				schedule.Options{Rows: 16, Group: 4, MaxPosition: math.MaxInt32, PageSize: 16},
				schedule.SharedOptions{Rows: 2048, Keys: c.keys, Blocks: c.blocks, KVHeads: 1, Bitwise: bitwise})
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			read := 0
			for _, item := range lists.Items {
				for _, r := range lists.Runs[item.RunBegin:item.RunEnd] {
					read += int(r.End-r.Begin) * int(item.QCount)
				}
			}
			for _, r := range lists.Decode.Runs {
				read += int(r.End - r.Begin)
			}
			if read != held {
				t.Errorf("%s: %d keys are read, %d are held", c.name, read, held)
			}
		}
	}
}

func TestSharedErrors(t *testing.T) {
	o, s := options(), sharedOptions()
	for _, c := range []struct {
		change    func(*schedule.Options, *schedule.SharedOptions)
		sequences []schedule.Sequence
		want      string
	}{
		{func(_ *schedule.Options, s *schedule.SharedOptions) { s.Rows = 3 }, nil, "schedule: shared decode: Rows is 3, want 4 to"},
		{func(_ *schedule.Options, s *schedule.SharedOptions) { s.Keys = 0 }, nil, "Keys is 0"},
		{func(_ *schedule.Options, s *schedule.SharedOptions) { s.Blocks = 0 }, nil, "Blocks is 0"},
		{func(_ *schedule.Options, s *schedule.SharedOptions) { s.KVHeads = -1 }, nil, "KVHeads is -1"},
		{func(o *schedule.Options, _ *schedule.SharedOptions) { o.Rows = 3 }, nil, "a tile of 3 rows"},
		{func(*schedule.Options, *schedule.SharedOptions) {}, []schedule.Sequence{{}}, "sequence 0: no query tokens"},
		{func(*schedule.Options, *schedule.SharedOptions) {}, []schedule.Sequence{{
			Positions: make([]int32, 1<<16), Segments: make([]schedule.Segment, 1<<15),
		}}, "2147483648 pairs of a query token and a segment, want at most 2147483647"},
		{func(_ *schedule.Options, s *schedule.SharedOptions) {
			s.Keys, s.KVHeads, s.Blocks, s.Bitwise = 1, 1, 1<<20, true
		}, []schedule.Sequence{{
			Positions: make([]int32, 1<<17), Segments: []schedule.Segment{{Tokens: 1 << 20}},
		}}, "2147483648 members in all, there is room for 0 and 2147483647"},
	} {
		o, s := o, s
		c.change(&o, &s)
		_, err := new(schedule.SharedBuilder).Build(c.sequences, o, s)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}
