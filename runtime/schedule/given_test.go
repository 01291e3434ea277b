package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// What the kernel schedule is given of a step, whatever steps came before, is the step: the
// lists made of it are the builders', and take no more than what is said to be needed.
func TestGiven(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 8))
		_, o, s := randomSharing(rng, 1)
		o.MaxPosition, o.Window, o.SinkTokens, o.Rows = 2000, 0, 0, 4*o.Group
		o.OnceTokens = rng.IntN(2) * rng.IntN(2000)
		o.Fold, o.Whole = seed%7 > 2, seed%7 > 4
		server := newServer(rng)
		var given schedule.Given
		var maker schedule.Maker
		var segments mirror[abi.Segment]
		for step := range 40 {
			if rng.IntN(2) > 0 {
				server.change()
			}
			sequences := server.step(max(1, int32(o.PageSize)), seed%4 > 0)
			switch rng.IntN(20) {
			case 0: // what is wrong is no step
				sequences[rng.IntN(len(sequences))].Positions[0] += 2000
			case 1: // no own tokens
				q := &sequences[rng.IntN(len(sequences))]
				q.Segments, q.Layout = q.Segments[:len(q.Segments)-1], 1<<32+uint64(step)
			case 2: // fewer own tokens than query tokens
				of := sequences[rng.IntN(len(sequences))].Segments
				of[len(of)-1].Tokens = 0
			}
			needs, err := given.List(sequences, o)
			var fresh schedule.Given
			wantNeeds, wantErr := fresh.List(sequences, o)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || needs != wantNeeds {
				t.Fatalf("seed %d, step %d: %+v, error %v, want %+v, error %v", seed, step, needs, err, wantNeeds, wantErr)
			}
			want, buildErr := new(schedule.SharedBuilder).Build(sequences, o, s)
			if (err == nil) != (buildErr == nil) {
				t.Fatalf("seed %d, step %d: error %v, and of the lists %v", seed, step, err, buildErr)
			}
			if err != nil {
				continue
			}
			if !slices.Equal(given.Sequences, fresh.Sequences) || !slices.Equal(given.Segments, fresh.Segments) {
				t.Fatalf("seed %d, step %d: got\n%+v %+v, want\n%+v %+v", seed, step, given.Sequences, given.Segments, fresh.Sequences, fresh.Segments)
			}
			if !segments.follow(given.Segments, given.Number, given.Changed) {
				t.Fatalf("seed %d, step %d: of segments more have changed than %v", seed, step, given.Changed)
			}
			p := o.Params(&s)
			p.SharedItems, p.TokenRoom = 1, int32(needs.Queries) // there is one
			got, err := maker.Make(&p, given.Sequences, given.Segments)
			if err != nil || !sameShared(got, want) {
				t.Fatalf("seed %d, step %d: got\n%+v, %v, want\n%+v", seed, step, got, err, want)
			}
			checkNeeds(t, sequences, o, needs, want)
		}
	}
}

// checkNeeds says what lists take more of than is said to be needed.
func checkNeeds(t *testing.T, sequences []schedule.Sequence, o schedule.Options, needs schedule.Needs, lists schedule.SharedLists) {
	t.Helper()
	segments := 0
	for _, s := range sequences {
		segments += len(s.Segments)
	}
	plain, err := schedule.Build(sequences, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		what    string
		n, most int
	}{
		{"items", len(plain.Items), needs.Results}, {"items beside shared decode", len(lists.Decode.Items), needs.Results},
		{"slots", plain.Slots, needs.Results}, {"slots beside members", lists.Decode.Slots - len(lists.Members), needs.Results},
		{"runs", len(plain.Runs), segments + needs.Results}, {"offsets", len(lists.Offsets), needs.Pairs},
	} {
		if of.n > of.most {
			t.Fatalf("%d %s, at most %d are said to be needed", of.n, of.what, of.most)
		}
	}
}

func TestGivenErrors(t *testing.T) {
	one := func(begin int32, queries int) schedule.Sequence {
		return schedule.Sequence{QueryBegin: begin, Positions: make([]int32, queries), Segments: []schedule.Segment{{Tokens: 9, Own: true}}}
	}
	o := schedule.Options{Rows: 16, Group: 4, MaxPosition: 100}
	for _, c := range []struct {
		sequences []schedule.Sequence
		want      string
	}{
		{[]schedule.Sequence{one(0, 1), one(2, 1)}, "schedule: sequence 1: query tokens 2 to 2: want 1 to 4 of them from 1 on"},
		{[]schedule.Sequence{one(0, 5)}, "schedule: sequence 0: query tokens 0 to 4: want 1 to 4 of them from 0 on"},
		{[]schedule.Sequence{one(0, 0)}, "schedule: sequence 0: query tokens 0 to -1: want 1 to 4"},
	} {
		if _, err := new(schedule.Given).List(c.sequences, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	for _, c := range []struct {
		change schedule.Options
		want   string
	}{
		{schedule.Options{Window: 5}, "schedule: with a window of 5 the host lists what decode reads"},
		{schedule.Options{Wave: 3}, "schedule: items are in groups of 3: the host lists them"},
		{schedule.Options{SplitTokens: 8, PageSize: 16}, "schedule: keys are cut every 8 tokens, inside pages of 16: the host lists them"},
		{schedule.Options{SplitTokens: 16, PageSize: 16}, "<nil>"},
	} {
		if err := c.change.OnDevice(); fmt.Sprint(err) != c.want {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
	p := o.Params(nil)
	p.TokenRoom = 4
	if _, err := new(schedule.Maker).Make(&p, []abi.Sequence{{QueryCount: 1, SegmentEnd: 2}}, make([]abi.Segment, 1)); err == nil || !strings.Contains(err.Error(), "segments 0 to 2 of 1") {
		t.Errorf("segments that there are not: error %v", err)
	}
}

// Two sequences that hold one document at different offsets, listed for the kernel schedule. A server
// uploads Sequences and Segments, sets the parameters' addresses and rooms, which must be
// enough for what is needed, and launches the kernel ahead of append.
func ExampleGiven() {
	document := schedule.Segment{Page: 0, Tokens: 4096}
	var sequences []schedule.Sequence
	for i := range int32(2) {
		held, own := document, schedule.Segment{Page: 256 + i, Tokens: 9, Offset: 5096, Own: true}
		held.Offset = 1000 * (1 - i)
		sequences = append(sequences, schedule.Sequence{QueryBegin: i, Positions: []int32{5104}, Segments: []schedule.Segment{held, own}})
	}
	o := schedule.Options{Rows: 16, Group: 4, Causal: true, MaxPosition: 1 << 17, PageSize: 16, Fold: true}.FillBy(132, 0, 8, 256)
	if err := o.OnDevice(); err != nil {
		fmt.Println(err) // the host makes the lists
		return
	}
	var given schedule.Given
	needs, err := given.List(sequences, o)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(given.Sequences)
	fmt.Println(given.Segments)
	fmt.Printf("%+v\n", needs)
	p := o.Params(nil) // nothing is shared
	p.SequenceRoom, p.SegmentRoom, p.PartRoom, p.ItemRoom, p.TokenRoom = 2, 4, int32(needs.Parts), int32(needs.Results), int32(needs.Queries)
	fmt.Println(p.ItemRoom, "items at most, each of parts of", p.SplitTokens, "tokens")
	// Output:
	// [{0 1 0 2} {1 1 2 4}]
	// [{0 4096 1000 0} {256 9 5096 1} {0 4096 0 0} {257 9 5096 1}]
	// {Queries:2 Pairs:4 Parts:16 Results:32 Longest:4105}
	// 32 items at most, each of parts of 256 tokens
}
