package schedule_test

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// partsOf is the runs of each part of an item.
func partsOf(item abi.Item, runs []abi.Run) (parts [][]abi.Run) {
	first := item.RunBegin
	for i := item.RunBegin; i < item.RunEnd; i++ {
		if runs[i].EndsPart != 0 {
			parts = append(parts, runs[first:i+1])
			first = i + 1
		}
	}
	if first < item.RunEnd {
		parts = append(parts, runs[first:item.RunEnd])
	}
	return parts
}

// checkScratch is that every part of an item ends, that the item has no more than it may,
// and that the slots it folds them by, which become slots of token -1, are its own.
func checkScratch(t *testing.T, name string, item abi.Item, lists schedule.Lists, slots map[int32]int32) {
	t.Helper()
	parts := len(partsOf(item, lists.Runs))
	if item.RunEnd > item.RunBegin && lists.Runs[item.RunEnd-1].EndsPart != 1 || parts > lists.PartsPerItem {
		t.Errorf("%s: an item of %d parts, want at most %d and an end of the last: %+v", name, parts, lists.PartsPerItem, item)
	}
	if parts <= 1 {
		if item.Scratch != 0 {
			t.Errorf("%s: an item of one part: %+v", name, item)
		}
		return
	}
	for slot := item.Scratch; slot < item.Scratch+int32(bits.Len(uint(parts-1)))*item.QCount; slot++ {
		if other, ok := slots[slot]; ok || int(slot) < lists.Merged() {
			t.Errorf("%s: scratch slot %d of %+v is merge's or that of token %d too", name, slot, item, other)
		}
		slots[slot] = -1
	}
}

// randomParts is random with keys that are cut, for a kernel that folds.
func randomParts(rng *rand.Rand) ([]schedule.Sequence, schedule.Options) {
	sequences, o := random(rng)
	o.SplitTokens, o.MaxItems, o.Fold = 1+rng.IntN(20), rng.IntN(20), true
	if rng.IntN(4) > 0 {
		o.PartsPerItem = 1 << rng.IntN(6)
	}
	return sequences, o
}

// tilesOf is the parts of each tile of some sequences, in order: those of its items,
// whose number of parts is held to that of all items. Merge takes items by their slots.
func tilesOf(t *testing.T, l schedule.Lists, sequences ...schedule.Sequence) map[string][][]abi.Run {
	t.Helper()
	items := map[string][]abi.Item{}
	for _, item := range l.Items {
		for _, s := range sequences {
			if item.QBegin >= s.QueryBegin && item.QBegin < s.QueryBegin+int32(len(s.Positions)) {
				name := fmt.Sprint(item.QBegin, item.QCount, item.QIndex)
				items[name] = append(items[name], item)
			}
		}
	}
	tiles := map[string][][]abi.Run{}
	for name, of := range items {
		slices.SortFunc(of, func(a, b abi.Item) int { return int(a.Slot - b.Slot) })
		for i, item := range of {
			parts := partsOf(item, l.Runs)
			if i+1 < len(of) && len(parts) != l.PartsPerItem {
				t.Errorf("an item of %d parts that is not its tile's last, want %d: %+v", len(parts), l.PartsPerItem, item)
			}
			for _, p := range parts {
				tiles[name] = append(tiles[name], withoutOnce(p))
			}
		}
	}
	return tiles
}

// checkWhole is that lists of the same items, whose parts are walked as one, differ in just that
// and in the slots that this spares.
func checkWhole(t *testing.T, sequences []schedule.Sequence, o schedule.Options) {
	t.Helper()
	folded, err := schedule.Build(sequences, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Whole = true
	whole, err := schedule.Build(sequences, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range folded.Items {
		folded.Items[i].Scratch = 0
	}
	for i := range folded.Runs {
		folded.Runs[i].EndsPart = 0
	}
	folded.Slots = folded.Merged()
	if !same(whole, folded) {
		t.Fatalf("options %+v, sequences %+v:\n%+v, want\n%+v", o, sequences, whole, folded)
	}
}

// checkFold is that however parts are grouped, tiles have the same parts in the same
// order, and no more items and slots than with an item for each part; alone and in a batch.
// It returns how many parts an item had.
func checkFold(t *testing.T, b *schedule.Builder, sequences []schedule.Sequence, o schedule.Options) int {
	t.Helper()
	build := func(sequences []schedule.Sequence, o schedule.Options) schedule.Lists {
		l, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	lists, err := b.Build(sequences, o)
	if err != nil {
		t.Fatal(err)
	}
	if fresh := build(sequences, o); !same(lists, fresh) {
		t.Errorf("a used builder gives\n%+v, a fresh one\n%+v", lists, fresh)
	}
	checkLists(t, fmt.Sprintf("%d parts an item", lists.PartsPerItem), sequences, o, lists)
	single := o
	single.Fold, single.PartsPerItem = false, 0
	want := build(sequences, single)
	got := tilesOf(t, lists, sequences...)
	if !reflect.DeepEqual(got, tilesOf(t, want, sequences...)) || !slices.Equal(lists.Runs, want.Runs) {
		t.Errorf("%d parts an item give other parts", lists.PartsPerItem)
	}
	if lists.Slots > want.Slots || len(lists.Items) > len(want.Items) {
		t.Errorf("%d slots and %d items, %d and %d with an item for each part", lists.Slots, len(lists.Items), want.Slots, len(want.Items))
	}
	if o.PartsPerItem > 0 && lists.PartsPerItem != o.PartsPerItem {
		t.Errorf("%d parts an item, want %d", lists.PartsPerItem, o.PartsPerItem)
	}
	for _, s := range sequences {
		for name, parts := range tilesOf(t, build([]schedule.Sequence{s}, o), s) {
			if !reflect.DeepEqual(parts, got[name]) {
				t.Errorf("tile %s has other parts alone", name)
			}
		}
	}
	if t.Failed() {
		t.Fatalf("options %+v, sequences %+v, items %+v", o, sequences, lists.Items)
	}
	return lists.PartsPerItem
}

func TestFold(t *testing.T) {
	var b schedule.Builder
	grouped := map[int]int{}
	for seed := range uint64(3000) {
		sequences, o := randomParts(rand.New(rand.NewPCG(seed, 7)))
		grouped[checkFold(t, &b, sequences, o)]++
		checkWhole(t, sequences, o)
		o.Keys = someKeys(seed)
		checkFold(t, &b, sequences, o)
	}
	for _, n := range []int{1, 2, 4, 8, 16, 32} {
		if grouped[n] < 100 {
			t.Errorf("%d parts an item: %d times", n, grouped[n])
		}
	}
}

func FuzzFold(f *testing.F) {
	f.Add(uint64(1), uint16(10), uint16(3), uint8(2))
	f.Fuzz(func(t *testing.T, seed uint64, cut, maxItems uint16, perItem uint8) {
		sequences, o := randomParts(rand.New(rand.NewPCG(seed, 10)))
		o.SplitTokens, o.MaxItems, o.PartsPerItem, o.Keys = 1+int(cut), int(maxItems), 1<<(perItem%31)>>1, someKeys(seed)
		checkFold(t, new(schedule.Builder), sequences, o)
	})
}

// Beside shared decode, whose partial results come first, a tile's parts stay single.
func TestFoldBesideShared(t *testing.T) {
	single, folded := 0, 0
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 8))
		sequences, o, s := randomSharing(rng, 12)
		o.SplitTokens, o.MaxItems, o.Fold, o.PartsPerItem = 1+rng.IntN(20), rng.IntN(20), true, 2<<rng.IntN(3)
		lists, err := new(schedule.SharedBuilder).Build(sequences, o, s)
		if err != nil {
			t.Fatal(err)
		}
		checkShared(t, sequences, o, s, lists)
		shared := map[int32]bool{}
		for _, m := range lists.Members {
			shared[m.Token] = true
		}
		for _, item := range lists.Decode.Items {
			switch parts := len(partsOf(item, lists.Decode.Runs)); {
			case shared[item.QBegin] && parts > 1:
				t.Errorf("seed %d: %d parts in an item beside shared decode: %+v", seed, parts, item)
			case shared[item.QBegin]:
				single++
			case parts > 1:
				folded++
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d: options %+v, %+v, sequences %+v", seed, o, s, sequences)
		}
	}
	if single < 100 || folded < 100 {
		t.Errorf("%d items beside shared decode, %d of several parts", single, folded)
	}
}

// cost is what [schedule.Options] with Fold go by, once more, from lists.
func cost(l schedule.Lists, o schedule.Options) float64 {
	keys, heaviest, rows, merged := 0, 0, 0, 0.0
	for _, item := range l.Items {
		of := 0
		for _, r := range l.Runs[item.RunBegin:item.RunEnd] {
			of += int(r.End - r.Begin)
		}
		keys += of
		heaviest = max(heaviest, of)
		rows += min(o.Rows, int(item.QCount)*o.Group)
		if item.Slot != abi.Final { // each of a tile's SlotStride items
			merged += float64(min(o.Rows, int(item.QCount)*o.Group)) / float64(item.SlotStride)
		}
	}
	end := 8.
	if o.Rows < 64 {
		end = 64
	}
	n, blocks := len(l.Items), float64(o.MaxItems)
	rounds := float64((n + o.MaxItems - 1) / o.MaxItems)
	walk := max(float64(heaviest), rounds*float64(keys)/float64(max(1, n)), float64(keys)/blocks+float64(heaviest)/end)
	all := walk + (float64(2*rows)+6*math.Round(merged))/blocks
	if merged > 0 {
		all += 128
	}
	return all
}

// What is chosen has the least cost of all, with the fewest parts.
func TestPartsPerItemIsBest(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 9))
		sequences, o := randomParts(rng)
		o.MaxItems, o.PartsPerItem = 1+rng.IntN(8), 0
		got, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		best, least := 0, 0.0
		for n := 1; n <= 1<<10; n *= 2 {
			o.PartsPerItem = n
			l, err := schedule.Build(sequences, o)
			if err != nil {
				t.Fatal(err)
			}
			if c := cost(l, o); best == 0 || c < least {
				best, least = n, c
			}
		}
		if got.PartsPerItem != best {
			t.Fatalf("seed %d: %d parts an item, %d are better: options %+v, sequences %+v", seed, got.PartsPerItem, best, o, sequences)
		}
	}
}

// The choice on one H200, 132 blocks: a small step keeps every block busy with single
// parts, in a large one each block takes whole sequences.
func TestPartsPerItem(t *testing.T) {
	for _, c := range []struct {
		name                    string
		rows, keys              int // of a tile
		sequences, query, holds int
		want, items             int
	}{
		{"decode 8k", 16, 64, 1, 1, 8192, 1, 16},
		{"decode 8 x 8k", 16, 64, 8, 1, 8192, 2, 64},
		{"decode 32 x 8k", 16, 64, 32, 1, 8192, 16, 32},
		{"decode 128 x 4k", 16, 64, 128, 1, 4096, 16, 128},
		{"extend 64 over 8k", 128, 128, 1, 64, 8192, 1, 16},
		{"extend 64 over 128k", 128, 128, 1, 64, 131072, 1, 16},
		{"extend 256 over 16k", 128, 128, 1, 256, 16384, 1, 16},
		{"extend 8 x 64 over 8k", 128, 128, 8, 64, 8192, 8, 16},
		{"extend 4 x 512 over 8k", 128, 128, 4, 512, 8192, 1, 64},
		{"extend 32 x 64 over 8k", 128, 128, 32, 64, 8192, 8, 64},
		// Of two blocks each reads and writes half of an item's partial results.
		{"extend 64 over 768, two blocks", 256, 128, 1, 64, 768, 1, 2},
		{"extend 2 x 64 over 1k, two blocks", 256, 128, 2, 64, 1024, 1, 4},
		{"extend 4 x 64 over 2k, two blocks", 256, 128, 4, 64, 2048, 2, 8},
		{"extend 8 x 64 over 2k, two blocks", 256, 128, 8, 64, 2048, 4, 8},
		{"extend 4 x 64 over 2k, two blocks of 64 keys", 256, 64, 4, 64, 2048, 4, 8},
	} {
		blocks, cluster := 132, 1
		if c.rows > 192 {
			blocks, cluster = 66, 2
		}
		o := schedule.Options{Rows: c.rows, Cluster: cluster, Group: 4, MaxPosition: 1 << 20, PageSize: 16, Fold: true}.FillBy(blocks, 0, 8, schedule.LeastPart(c.keys))
		var sequences []schedule.Sequence
		for i := range c.sequences {
			sequences = append(sequences, schedule.Sequence{
				QueryBegin: int32(i * c.query), Positions: make([]int32, c.query), Segments: []schedule.Segment{{Page: int32(i) << 14, Tokens: int32(c.holds)}},
			})
		}
		l, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		if l.PartsPerItem != c.want || len(l.Items) != c.items {
			t.Errorf("%s: %d items of %d parts, want %d of %d", c.name, len(l.Items), l.PartsPerItem, c.items, c.want)
		}
	}
}

// A sequence that is cut for half of the blocks, alone or in a batch, leaves none of them
// without an item.
func TestPartsPerItemAtOnce(t *testing.T) {
	var sequences []schedule.Sequence
	for i := range 8 {
		sequences = append(sequences, schedule.Sequence{
			QueryBegin: int32(i), Positions: make([]int32, 1), Segments: []schedule.Segment{{Page: int32(i) << 14, Tokens: 8192}},
		})
	}
	for _, c := range []struct{ resident, want int }{{0, 8}, {132, 64}} {
		o := schedule.Options{Rows: 16, Group: 4, MaxPosition: 1 << 20, PageSize: 16, Fold: true}.FillBy(66, c.resident, 8, 256)
		l, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Items) != c.want {
			t.Errorf("%d blocks: %d items, want %d", c.resident, len(l.Items), c.want)
		}
	}
}

func TestFoldNoAllocation(t *testing.T) {
	var b schedule.Builder
	sequences, o := batch(64, 20, func() int32 { return 512 }), options()
	o.PadItems, o.PadTokens, o.Fold = 64*o.MaxItems, 80, true
	build := func() {
		for _, n := range []int{0, 1, 4} {
			o.PartsPerItem = n
			if _, err := b.Build(sequences, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	build()
	if n := testing.AllocsPerRun(20, build); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
