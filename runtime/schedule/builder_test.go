package schedule_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// A builder that made other lists before makes what a fresh one makes.
func TestBuilderReuse(t *testing.T) {
	var b schedule.Builder
	for seed := range uint64(1000) {
		sequences, o := random(rand.New(rand.NewPCG(seed, 2)))
		got, err := b.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		want, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		if !same(got, want) {
			t.Fatalf("seed %d: a used builder gives\n%+v, a fresh one\n%+v", seed, got, want)
		}
	}
}

func same(a, b schedule.Lists) bool {
	return slices.Equal(a.Items, b.Items) && slices.Equal(a.Runs, b.Runs) && slices.Equal(a.SlotBegin, b.SlotBegin) &&
		a.Slots == b.Slots && a.PartsPerItem == b.PartsPerItem
}

func TestPadding(t *testing.T) {
	var b schedule.Builder
	for seed := range uint64(1000) {
		sequences, o := random(rand.New(rand.NewPCG(seed, 3)))
		want, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		items, tokens := len(want.Items), len(want.SlotBegin)-1
		if items == 0 {
			continue
		}
		o.PadItems, o.PadTokens = items+int(seed%3), tokens+int(seed%5)
		got, err := b.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Items) != o.PadItems || len(got.SlotBegin) != o.PadTokens+1 {
			t.Fatalf("seed %d: %d items and %d tokens, want %d and %d", seed, len(got.Items), len(got.SlotBegin)-1, o.PadItems, o.PadTokens)
		}
		for _, item := range got.Items[items:] {
			if item != (abi.Item{}) {
				t.Fatalf("seed %d: padding %+v", seed, item)
			}
		}
		for _, s := range got.SlotBegin[tokens:] {
			if int(s) != got.Slots {
				t.Fatalf("seed %d: a token of the padding owns slots: %v", seed, got.SlotBegin)
			}
		}
		got.Items, got.SlotBegin = got.Items[:items], got.SlotBegin[:tokens+1]
		if !same(got, want) {
			t.Fatalf("seed %d: padded\n%+v, want\n%+v", seed, got, want)
		}
		for _, change := range []func(*schedule.Options){
			func(o *schedule.Options) { o.PadItems = items - 1 },
			func(o *schedule.Options) { o.PadTokens = tokens - 1 },
		} {
			small := o
			change(&small)
			if small.PadItems == 0 || small.PadTokens == 0 {
				continue
			}
			if _, err := b.Build(sequences, small); !errors.Is(err, schedule.ErrFixedSize) {
				t.Fatalf("seed %d: error %v for a step that does not fit", seed, err)
			}
		}
	}
}

func TestFill(t *testing.T) {
	for _, c := range []struct {
		name                 string
		rows, keys, kvHeads  int
		query, context       int
		splits, tokensASplit int
	}{
		// 264 blocks, 8 KV heads: 33 parts a tile.
		{"short decode", 16, 16, 8, 1, 200, 1, 256},
		{"decode 8k", 16, 16, 8, 1, 8192, 32, 256},
		{"decode 32k", 16, 16, 8, 1, 32768, 32, 1024},
		{"decode 128k, one KV head", 16, 16, 1, 1, 131072, 256, 512},
		{"extend 64 over 8k", 128, 64, 8, 64, 8192, 16, 512},
		{"extend 4096 over 8k", 128, 64, 8, 4096, 8192, 1, 8192},
	} {
		o := schedule.Options{Rows: c.rows, Group: 4, MaxPosition: 1 << 20, PageSize: 16}.FillBy(264, 0, c.kvHeads, schedule.LeastPart(c.keys))
		l, err := schedule.Build([]schedule.Sequence{{
			Positions: make([]int32, c.query), Segments: []schedule.Segment{{Tokens: int32(c.context)}},
		}}, o)
		if err != nil {
			t.Fatal(err)
		}
		longest := int32(0)
		for _, r := range l.Runs {
			longest = max(longest, r.End-r.Begin)
		}
		tiles := (c.query + c.rows/4 - 1) / (c.rows / 4)
		if splits := len(l.Items) / tiles; splits != c.splits || int(longest) != min(c.tokensASplit, c.context) {
			t.Errorf("%s: %d splits of %d keys, want %d of %d", c.name, splits, longest, c.splits, c.tokensASplit)
		}
	}
}

// Into how many parts one sequence alone is cut by a kernel of many rows: with as many as fill the device
// only where these are long.
func TestFillEvenly(t *testing.T) {
	folds, whole, pair := schedule.Options{}, schedule.Options{Fold: true, PartsPerItem: 1, Whole: true}, schedule.Options{Cluster: 2}
	for _, c := range []struct {
		name           string
		options        schedule.Options
		query, context int
		parts          int
	}{
		{"64 over 1k", folds, 64, 1024, 2},
		{"64 over 2k", folds, 64, 2048, 4},
		{"64 over 4k", folds, 64, 4096, 4},
		{"64 over 4k, walked as one", whole, 64, 4096, 8},
		{"64 over 4k, by two blocks", pair, 64, 4096, 4},
		{"64 over 6k", folds, 64, 6144, 6},
		{"64 over 8k", folds, 64, 8192, 8},
		{"64 over 8k and a little more", folds, 64, 8200, 8},
		{"64 over 128k", folds, 64, 131072, 8},
		{"32 over 4k", folds, 32, 4096, 8},
		{"32 over 6k", folds, 32, 6144, 8},
		{"32 over 16k", folds, 32, 16384, 16},
		{"32 over 16k, by two blocks", pair, 32, 16384, 8},
		{"512 over 8k", folds, 512, 8192, 1},
	} {
		cluster := max(1, c.options.Cluster)
		o := c.options
		o.Rows, o.Group, o.Keys, o.MaxPosition, o.PageSize = 128*cluster, 4, 128, 1<<20, 16
		o = o.FillBy(132/cluster, 0, 8, schedule.LeastPart(o.Keys))
		s := schedule.Sequence{Positions: make([]int32, c.query)}
		for left := int32(c.context); left > 0; left -= 500 {
			s.Segments = append(s.Segments, schedule.Segment{Tokens: min(left, 500), Page: left})
		}
		l, err := schedule.Build([]schedule.Sequence{s}, o)
		if err != nil {
			t.Fatal(err)
		}
		tiles := (c.query + 32*cluster - 1) / (32 * cluster)
		if got := len(l.Items) / tiles; got != c.parts {
			t.Errorf("%s: %d parts, want %d", c.name, got, c.parts)
		}
		if got := o.Parts(c.context, tiles); got != c.parts {
			t.Errorf("%s: %d parts are foretold, want %d", c.name, got, c.parts)
		}
		for _, r := range l.Runs {
			if r.Begin%128 != 0 {
				t.Errorf("%s: a cut at %d of a segment", c.name, r.Begin)
			}
		}
	}
}

// A large batch is cut as evenly as a device is kept busy by: taken in order by
// whichever of its 132 multiprocessors is free, the items end within 5 percent
// of an even share.
func TestBalance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	sequences := batch(256, 20, func() int32 { return 64 + rng.Int32N(960) })
	l, err := schedule.Build(sequences, options())
	if err != nil {
		t.Fatal(err)
	}
	var loads [132]int
	total := 0
	for _, item := range l.Items {
		least := 0
		for i, n := range loads {
			if n < loads[least] {
				least = i
			}
		}
		for _, r := range l.Runs[item.RunBegin:item.RunEnd] {
			loads[least] += int(r.End - r.Begin)
			total += int(r.End - r.Begin)
		}
	}
	largest := 0
	for _, n := range loads {
		largest = max(largest, n)
	}
	if share := total / len(loads); largest*100 > share*105 {
		t.Errorf("the busiest multiprocessor has %d keys of an even share of %d", largest, share)
	}
}

func TestNoAllocation(t *testing.T) {
	var b schedule.Builder
	sequences, o := batch(64, 20, func() int32 { return 512 }), options()
	o.PadItems, o.PadTokens = 64*o.MaxItems, 80
	build := func() {
		if _, err := b.Build(sequences, o); err != nil {
			t.Fatal(err)
		}
	}
	build()
	if n := testing.AllocsPerRun(20, build); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// Nor does a step in which sequences have left and joined, changed places or are cut anew.
func TestStepsNoAllocation(t *testing.T) {
	var b schedule.Builder
	sequences, o := batch(64, 20, func() int32 { return 512 }), options()
	o.Fold = true
	for i := range sequences {
		sequences[i].Layout = uint64(i + 1)
	}
	rng := rand.New(rand.NewPCG(1, 3))
	layouts := uint64(len(sequences))
	build := func() {
		for i := range sequences {
			q := &sequences[i]
			own := &q.Segments[len(q.Segments)-1]
			own.Tokens = 1 + (own.Tokens+rng.Int32N(30))%600
		}
		for range rng.IntN(3) * rng.IntN(20) {
			layouts++
			sequences[rng.IntN(len(sequences))].Layout = layouts
		}
		if rng.IntN(4) == 0 {
			i, j := rng.IntN(len(sequences)), rng.IntN(len(sequences))
			sequences[i].Segments, sequences[j].Segments = sequences[j].Segments, sequences[i].Segments
			sequences[i].Layout, sequences[j].Layout = sequences[j].Layout, sequences[i].Layout
		}
		if _, err := b.Build(sequences, o); err != nil {
			t.Fatal(err)
		}
	}
	for i := range sequences { // the largest step
		sequences[i].Segments[19].Tokens = 600
	}
	if _, err := b.Build(sequences, o); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(200, build); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func BenchmarkBuilder(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name      string
		sequences []schedule.Sequence
	}{
		{"256x20x512", batch(256, 20, func() int32 { return 512 })},
		{"256x20xragged", batch(256, 20, func() int32 { return 64 + rng.Int32N(960) })},
	} {
		for _, fold := range []bool{false, true} {
			name := c.name
			if fold {
				name += ",fold"
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				var builder schedule.Builder
				o, items := options(), 0
				o.Fold = fold
				for b.Loop() {
					l, err := builder.Build(c.sequences, o)
					if err != nil {
						b.Fatal(err)
					}
					items = len(l.Items)
				}
				b.ReportMetric(float64(items), "items")
			})
		}
	}
}

// options are those of a decode step of Llama-3-8B on an H200.
func options() schedule.Options {
	return schedule.Options{Rows: 16, Group: 4, Causal: true, MaxPosition: 1 << 20, PageSize: 16}.FillBy(264, 0, 8, 256)
}

// batch is sequences in decode, each of so many segments, the last of them 100 own tokens.
func batch(n, segments int, tokens func() int32) []schedule.Sequence {
	var page int32
	sequences := make([]schedule.Sequence, n)
	for i := range sequences {
		s := &sequences[i]
		s.QueryBegin = int32(i)
		offset := int32(0)
		for j := range segments {
			segment := schedule.Segment{Page: page, Tokens: tokens(), Offset: offset}
			if j == segments-1 {
				segment.Own, segment.Tokens = true, 100
			}
			offset += segment.Tokens
			page += (segment.Tokens + 15) / 16
			s.Segments = append(s.Segments, segment)
		}
		s.Positions = []int32{offset - 1}
	}
	return sequences
}

// A causal prefill's items come heaviest first to the last one: a light block must
// be what the device ends with.
func TestCausalItemsDescend(t *testing.T) {
	positions := make([]int32, 16384)
	for i := range positions {
		positions[i] = int32(i)
	}
	l, err := schedule.Build([]schedule.Sequence{{
		Positions: positions, Segments: []schedule.Segment{{Tokens: 16384, Own: true}},
	}}, schedule.Options{Rows: 128, Group: 4, Causal: true, MaxPosition: 1 << 20, PageSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(l.Items); i++ {
		if l.Items[i].QIndex > l.Items[i-1].QIndex {
			t.Fatalf("item %d begins at query token %d, the one before it at %d", i, l.Items[i].QIndex, l.Items[i-1].QIndex)
		}
	}
}
