package schedule_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

func ExampleBuild() {
	// A document of 100 tokens at offset 0 and 3 own tokens behind it, of which
	// the last two are the query; cuts at every 64 keys.
	lists, err := schedule.Build([]schedule.Sequence{{
		Positions: []int32{101, 102},
		Segments: []schedule.Segment{
			{Page: 0, Tokens: 100},
			{Page: 7, Tokens: 3, Offset: 100, Own: true},
		},
	}}, schedule.Options{Rows: 16, Group: 4, Causal: true, MaxPosition: 1 << 17, SplitTokens: 64})
	if err != nil {
		panic(err)
	}
	for _, item := range lists.Items {
		fmt.Printf("%d query tokens from %d, slot %d + %d per token\n", item.QCount, item.QBegin, item.Slot, item.SlotStride)
		for _, r := range lists.Runs[item.RunBegin:item.RunEnd] {
			fmt.Printf("  page %d: tokens %d to %d at offset %d, causal %d\n", r.Page, r.Begin, r.End, r.Offset, r.Causal)
		}
	}
	fmt.Println(lists.SlotBegin, lists.Slots)
	// Output:
	// 2 query tokens from 0, slot 0 + 2 per token
	//   page 0: tokens 0 to 64 at offset 0, causal 1073741824
	// 2 query tokens from 0, slot 1 + 2 per token
	//   page 0: tokens 64 to 100 at offset 0, causal 1073741824
	//   page 7: tokens 0 to 3 at offset 100, causal 1
	// [0 2 4] 4
}

// Every (query token, key that it sees) is in exactly one item; no slot is
// used twice; merge finds each token's slots where its items wrote them.
func TestCoverage(t *testing.T) {
	for seed := range uint64(3000) {
		sequences, o := random(rand.New(rand.NewPCG(seed, 0)))
		o.Keys = someKeys(seed)
		lists, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		checkLists(t, fmt.Sprintf("seed %d", seed), sequences, o, lists)
		if t.Failed() {
			t.Fatalf("options %+v, sequences %+v", o, sequences)
		}
	}
}

type key struct {
	token, page, l int32
}

func checkLists(t *testing.T, name string, sequences []schedule.Sequence, o schedule.Options, lists schedule.Lists) {
	t.Helper()
	positions := map[int32]int32{}
	want := map[key]bool{}
	for _, s := range sequences {
		n := len(s.Positions)
		for i, p := range s.Positions {
			positions[s.QueryBegin+int32(i)] = p
			for _, segment := range s.Segments {
				for l := range segment.Tokens {
					if segment.Own && o.Causal && int(l) > i+int(segment.Tokens)-n {
						continue
					}
					if inWindow(o, p, segment.Offset+l) {
						want[key{s.QueryBegin + int32(i), segment.Page, l}] = true
					}
				}
			}
		}
	}
	got := map[key]bool{}
	slots := map[int32]int32{} // slot -> token
	covered := map[int32]int{} // token -> items that write it
	lightest, heaviest := 1<<30, 0
	for _, item := range lists.Items {
		if item.QCount < 1 || int(item.QCount)*o.Group > o.Rows {
			t.Errorf("%s: an item of %d query tokens", name, item.QCount)
		}
		keys := 0
		checkScratch(t, name, item, lists, slots)
		for _, r := range lists.Runs[item.RunBegin:item.RunEnd] {
			if r.Begin%int32(max(1, o.PageSize)) != 0 {
				t.Errorf("%s: a run begins inside a page of %d: %+v", name, o.PageSize, r)
			}
			if r.Begin >= r.End {
				t.Errorf("%s: an empty run %+v", name, r)
			}
			keys += int(r.End - r.Begin)
			for i := range item.QCount {
				for l := r.Begin; l < r.End; l++ {
					if l > item.QIndex+i+r.Causal || !inWindow(o, positions[item.QBegin+i], r.Offset+l) {
						continue
					}
					k := key{item.QBegin + i, r.Page, l}
					if got[k] {
						t.Errorf("%s: %+v is in two items", name, k)
					}
					got[k] = true
				}
			}
		}
		heaviest = max(heaviest, keys)
		if keys > lightest+heaviest/8 {
			t.Errorf("%s: an item of %d keys behind one of %d", name, keys, lightest)
		}
		lightest = min(lightest, keys)
		for i := range item.QCount {
			token := item.QBegin + i
			covered[token]++
			if item.Slot == abi.Final {
				continue
			}
			slot := item.Slot + i*item.SlotStride
			if other, ok := slots[slot]; ok {
				t.Errorf("%s: slot %d of token %d is that of token %d too", name, slot, token, other)
			}
			slots[slot] = token
		}
	}
	checkOnce(t, name, runsOf(lists.Items, lists.Runs)...)
	if !maps.Equal(got, want) {
		t.Errorf("%s: %d (query, key) pairs are covered, want %d", name, len(got), len(want))
	}
	if len(slots) != lists.Slots {
		t.Errorf("%s: %d slots are written, Slots is %d", name, len(slots), lists.Slots)
	}
	for token := range int32(len(lists.SlotBegin) - 1) {
		begin, end := lists.SlotBegin[token], lists.SlotBegin[token+1]
		for slot := begin; slot < end; slot++ {
			if owner, ok := slots[slot]; !ok || owner != token {
				t.Errorf("%s: slot %d of token %d was written by token %d (%v)", name, slot, token, owner, ok)
			}
		}
		_, queried := positions[token]
		if items := covered[token]; queried != (items > 0) || items > 1 && items != int(end-begin) || items == 1 && end != begin {
			t.Errorf("%s: token %d has %d items and %d slots", name, token, items, end-begin)
		}
	}
}

// The window, once more and from its definition.
func inWindow(o schedule.Options, query, key int32) bool {
	return o.Window == 0 || int(query-key) < o.Window || int(key) < o.SinkTokens
}

// A sequence's items are the same alone and in a batch.
func TestBatchInvariance(t *testing.T) {
	for seed := range uint64(500) {
		sequences, o := random(rand.New(rand.NewPCG(seed, 1)))
		o.Keys = someKeys(seed)
		batch, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range sequences {
			alone, err := schedule.Build([]schedule.Sequence{s}, o)
			if err != nil {
				t.Fatal(err)
			}
			want, got := work(alone, s), work(batch, s)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: sequence %d\nalone    %+v\nin batch %+v", seed, i, want, got)
			}
		}
	}
}

// work is what the lists say of one sequence, in a form that does not depend on
// where in the lists it stands.
func work(l schedule.Lists, s schedule.Sequence) map[string][]abi.Run {
	m := map[string][]abi.Run{}
	for _, item := range l.Items {
		if item.QBegin < s.QueryBegin || item.QBegin >= s.QueryBegin+int32(len(s.Positions)) {
			continue
		}
		split := item.Slot
		if item.Slot != abi.Final {
			split -= l.SlotBegin[item.QBegin]
		}
		name := fmt.Sprint(item.QBegin, item.QCount, item.QIndex, split, item.SlotStride)
		m[name] = withoutOnce(l.Runs[item.RunBegin:item.RunEnd])
	}
	return m
}

func TestTrim(t *testing.T) {
	own := func(tokens, offset int32) []schedule.Segment {
		return []schedule.Segment{{Tokens: tokens, Offset: offset, Own: true}}
	}
	for _, c := range []struct {
		name      string
		options   schedule.Options
		positions []int32
		segments  []schedule.Segment
		want      string // the runs' Begin-End, items separated by a bar
	}{
		{"causal, one row a tile", schedule.Options{Rows: 1, Causal: true}, []int32{0, 1, 2}, own(3, 0), "0-3 | 0-2 | 0-1"},
		{"not causal", schedule.Options{Rows: 1}, []int32{0, 1, 2}, own(3, 0), "0-3 | 0-3 | 0-3"},
		{"window", schedule.Options{Rows: 1, Window: 10}, []int32{50}, own(40, 20), "21-40"},
		{"window of the lowest row", schedule.Options{Rows: 2, Window: 10}, []int32{50, 45}, own(40, 20), "16-40"},
		{"window and sink tokens", schedule.Options{Rows: 1, Window: 10, SinkTokens: 4}, []int32{50}, own(60, 0), "0-4 41-60"},
		{"sink tokens next to the window", schedule.Options{Rows: 1, Window: 10, SinkTokens: 41}, []int32{50}, own(60, 0), "0-60"},
		{"all behind the window", schedule.Options{Rows: 1, Window: 10}, []int32{500}, own(60, 0), ""},
		{"empty segments", schedule.Options{Rows: 1}, []int32{5}, []schedule.Segment{{}, {Tokens: 2}, {}}, "0-2"},
		{"splits across segments", schedule.Options{Rows: 1, SplitTokens: 4}, []int32{5},
			[]schedule.Segment{{Tokens: 3}, {Tokens: 3}, {Tokens: 6}}, "0-3 0-1 | 1-3 0-2 | 2-6"},
		{"at most two splits", schedule.Options{Rows: 1, SplitTokens: 4, MaxItems: 2}, []int32{5},
			[]schedule.Segment{{Tokens: 17}}, "0-12 | 12-17"},
		{"a page goes with its first token", schedule.Options{Rows: 1, SplitTokens: 6, PageSize: 4}, []int32{5},
			[]schedule.Segment{{Tokens: 3}, {Tokens: 14}}, "4-12 | 0-3 0-4 | 12-14"},
		{"what a window leaves is cut", schedule.Options{Rows: 1, Window: 10, SplitTokens: 4, MaxItems: 3}, []int32{99}, own(100, 0), "90-94 | 94-98 | 98-100"},
		{"from the sink tokens on", schedule.Options{Rows: 1, Window: 10, SinkTokens: 3, SplitTokens: 4}, []int32{99}, own(100, 0), "0-3 90-91 | 91-95 | 95-99 | 99-100"},
		{"across segments", schedule.Options{Rows: 1, Window: 10, SplitTokens: 6}, []int32{49},
			[]schedule.Segment{{Tokens: 30}, {Tokens: 14, Offset: 30}, {Tokens: 6, Offset: 44}}, "10-14 0-2 | 2-6"},
		{"each tile what it sees", schedule.Options{Rows: 1, Causal: true, Window: 8, SplitTokens: 3, MaxItems: 4}, []int32{5, 30}, own(31, 0), "0-15 | 15-30 | 23-29 | 29-31"},
		{"at even distances", schedule.Options{Rows: 1, SplitTokens: 16, MaxItems: 3, Keys: 1}, []int32{5},
			[]schedule.Segment{{Tokens: 99}}, "0-33 | 33-66 | 66-99"},
		{"where the nearest tile of keys ends", schedule.Options{Rows: 1, SplitTokens: 64, MaxItems: 3, Keys: 16}, []int32{5},
			[]schedule.Segment{{Tokens: 220}}, "144-220 | 0-80 | 80-144"},
		{"of its segment", schedule.Options{Rows: 1, SplitTokens: 64, MaxItems: 3, Keys: 16}, []int32{5},
			[]schedule.Segment{{Tokens: 75}, {Tokens: 145}}, "0-80 | 0-75 | 80-145"},
		{"no more parts than may be", schedule.Options{Rows: 1, SplitTokens: 64, MaxItems: 9, Keys: 16}, []int32{5},
			[]schedule.Segment{{Tokens: 255}}, "80-176 | 176-255 | 0-80"},
		{"too few for two", schedule.Options{Rows: 1, SplitTokens: 64, MaxItems: 9, Keys: 16}, []int32{5},
			[]schedule.Segment{{Tokens: 127}}, "0-127"},
		{"pages longer than a tile of keys", schedule.Options{Rows: 1, SplitTokens: 64, MaxItems: 3, Keys: 16, PageSize: 64}, []int32{5},
			[]schedule.Segment{{Tokens: 220}}, "64-192 | 0-64 | 192-220"},
		{"a window from where a tile of keys begins", schedule.Options{Rows: 1, Window: 140, SplitTokens: 64, MaxItems: 2, Keys: 16}, []int32{299}, own(300, 0), "160-240 | 240-300"},
		{"the window's page", schedule.Options{Rows: 1, Window: 10, SinkTokens: 4, PageSize: 16}, []int32{50}, own(60, 0), "0-4 32-60"},
	} {
		c.options.Group, c.options.MaxPosition = 1, 1000
		l, err := schedule.Build([]schedule.Sequence{{Positions: c.positions, Segments: c.segments}}, c.options)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var items []string
		for _, item := range l.Items {
			var runs []string
			for _, r := range l.Runs[item.RunBegin:item.RunEnd] {
				runs = append(runs, fmt.Sprintf("%d-%d", r.Begin, r.End))
			}
			items = append(items, strings.Join(runs, " "))
		}
		if got := strings.Join(items, " | "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	good := schedule.Options{Rows: 16, Group: 4, Causal: true, MaxPosition: 100}
	with := func(change func(*schedule.Options)) schedule.Options {
		o := good
		change(&o)
		return o
	}
	one := func(segments ...schedule.Segment) []schedule.Sequence {
		return []schedule.Sequence{{Positions: []int32{0, 1}, Segments: segments}}
	}
	for _, c := range []struct {
		options   schedule.Options
		sequences []schedule.Sequence
		want      string
	}{
		{with(func(o *schedule.Options) { o.Rows = 3 }), nil, "a tile of 3 rows does not hold a group of 4 query heads"},
		{with(func(o *schedule.Options) { o.MaxPosition = 0 }), nil, "MaxPosition is 0"},
		{with(func(o *schedule.Options) { o.SplitTokens = -1 }), nil, "SplitTokens is -1"},
		{with(func(o *schedule.Options) { o.PageSize = 12 }), nil, "PageSize is 12, want a power of two"},
		{with(func(o *schedule.Options) { o.Keys = 96 }), nil, "Keys is 96, want a power of two"},
		{good, []schedule.Sequence{{}}, "sequence 0: no query tokens"},
		{good, []schedule.Sequence{{QueryBegin: -1, Positions: []int32{0}}}, "sequence 0: query tokens -1 to 0"},
		{good, []schedule.Sequence{{Positions: []int32{100}}}, "sequence 0: query token 0 of the block is at position 100, want 0 to 99"},
		{good, one(schedule.Segment{Tokens: 50, Offset: 51}), "sequence 0: segment 0: positions 51 to 100, want them within 0 to 99"},
		{good, one(schedule.Segment{Tokens: -1}), "sequence 0: segment 0: -1 tokens"},
		{good, one(schedule.Segment{Page: -1}), "page table index -1"},
		{good, one(schedule.Segment{Tokens: 1, Own: true}), "1 own tokens do not hold the 2 query tokens"},
		{good, one(schedule.Segment{Tokens: 2, Own: true}, schedule.Segment{Tokens: 2, Own: true}), "segment 1: a second segment of own tokens"},
		{good, []schedule.Sequence{{QueryBegin: 5, Positions: []int32{1}}, {QueryBegin: 4, Positions: []int32{1, 2}}},
			"sequence 0: query token 5 belongs to sequence 1 already"},
	} {
		_, err := schedule.Build(c.sequences, c.options)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
}

// someKeys is what Options.Keys may be, of every other seed 0.
func someKeys(seed uint64) int { return int(seed%2) << (seed / 2 % 7) }

// random makes small ragged sequences with distinct pages, in any order of
// query tokens, with gaps between them.
func random(rng *rand.Rand) ([]schedule.Sequence, schedule.Options) {
	o := schedule.Options{Group: 1 + rng.IntN(4), Causal: rng.IntN(2) == 0, MaxPosition: 400}
	o.Rows = o.Group + rng.IntN(9)
	if rng.IntN(2) == 0 {
		o.Window, o.SinkTokens = 1+rng.IntN(60), rng.IntN(30)
	}
	if rng.IntN(2) == 0 {
		o.SplitTokens, o.MaxItems = 1+rng.IntN(20), rng.IntN(4)
	}
	if rng.IntN(2) == 0 {
		o.PageSize = 1 << rng.IntN(5)
	}
	var sequences []schedule.Sequence
	query, page := int32(0), int32(0)
	for range rng.IntN(5) {
		query += rng.Int32N(2)
		s := schedule.Sequence{QueryBegin: query}
		for range 1 + rng.IntN(8) {
			s.Positions = append(s.Positions, rng.Int32N(400))
		}
		query += int32(len(s.Positions))
		n := rng.IntN(4)
		own := rng.IntN(n + 1)
		for i := range n {
			segment := schedule.Segment{Page: page, Tokens: rng.Int32N(30), Offset: rng.Int32N(300)}
			if i == own {
				segment.Own = true
				segment.Tokens += int32(len(s.Positions))
			}
			s.Segments = append(s.Segments, segment)
			page++
		}
		sequences = append(sequences, s)
	}
	rng.Shuffle(len(sequences), func(i, j int) { sequences[i], sequences[j] = sequences[j], sequences[i] })
	return sequences, o
}

// The tiles of a prefill's sequences stay together, and the device still ends as evenly as with the heaviest items of all first.
func TestTogether(t *testing.T) {
	const atOnce = 16 // of Llama-3-8B's eight KV heads, on a device with 132 multiprocessors
	rng := rand.New(rand.NewPCG(5, 6))
	some := func(n, least, most int) []int {
		lengths := make([]int, n)
		for i := range lengths {
			lengths[i] = least + rng.IntN(most-least+1)
		}
		return lengths
	}
	same := func(n, tokens int) []int { return some(n, tokens, tokens) }
	for _, c := range []struct {
		name    string
		lengths []int
		apart   int // the most that a sequence's first and last item are apart, in items of the whole list
	}{
		{"64 of 128 tokens", same(64, 128), 64},
		{"32 of 256", same(32, 256), 64},
		{"16 of 512", same(16, 512), 64},
		{"4 of 4096", same(4, 4096), 256},
		{"100 of 30 to 600", some(100, 30, 600), 160},
		{"one long one and many short ones", append([]int{8192}, same(200, 128)...), 1056},
		{"many short ones and one long one", append(same(200, 128), 8192), 1056},
		{"a few", []int{100, 300, 50}, 15},
		{"one", []int{1000}, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sequences []schedule.Sequence
			var begin, page int32
			for _, n := range c.lengths {
				s := schedule.Sequence{QueryBegin: begin, Segments: []schedule.Segment{{Page: page, Tokens: int32(n), Own: true}}}
				for i := range n {
					s.Positions = append(s.Positions, int32(i))
				}
				begin, page = begin+int32(n), page+int32(n+15)/16
				sequences = append(sequences, s)
			}
			o := schedule.Options{Rows: 128, Group: 4, Causal: true, MaxPosition: 1 << 20, PageSize: 16}
			var lists [2]schedule.Lists
			var ends [2]int
			for i, o := range []schedule.Options{o, o.Together(132, 0, 8)} {
				var err error
				if lists[i], err = schedule.Build(sequences, o); err != nil {
					t.Fatal(err)
				}
				ends[i] = endOf(lists[i], atOnce)
			}
			byToken := func(a, b abi.Item) int { return cmp.Compare(a.QBegin, b.QBegin) }
			first, last := map[int32]int{}, map[int32]int{} // of a sequence's items, by the page that they read first
			for i, item := range lists[1].Items {
				page := lists[1].Runs[item.RunBegin].Page
				if _, ok := first[page]; !ok {
					first[page] = i
				}
				last[page] = i
			}
			for page := range first {
				if apart := last[page] - first[page]; apart > c.apart {
					t.Errorf("the sequence at page %d has items %d apart, want %d at most", page, apart, c.apart)
				}
			}
			if ends[1] > ends[0]+ends[0]/20 {
				t.Errorf("the device ends after %d keys, with the heaviest items first after %d", ends[1], ends[0])
			}
			slices.SortFunc(lists[0].Items, byToken)
			slices.SortFunc(lists[1].Items, byToken)
			if diff := gocmp.Diff(lists[0], lists[1]); diff != "" {
				t.Errorf("not the same items (-heaviest first +together):\n%s", diff)
			}
		})
	}
}

// endOf is how many keys the last of so many workers has walked at its end, if each takes the next item when it is done.
func endOf(l schedule.Lists, workers int) int {
	ends := make([]int, workers)
	for _, item := range l.Items {
		next := 0
		for w := range ends {
			if ends[w] < ends[next] {
				next = w
			}
		}
		for _, r := range l.Runs[item.RunBegin:item.RunEnd] {
			ends[next] += int(r.End - r.Begin)
		}
	}
	return slices.Max(ends)
}
