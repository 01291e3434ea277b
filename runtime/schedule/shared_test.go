package schedule_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

func ExampleSharedBuilder() {
	// Two sequences hold a document of 4096 tokens, one at offset 0 and one at 1000,
	// and have 100 own tokens behind it.
	sequence := func(query, page, offset int32) schedule.Sequence {
		return schedule.Sequence{QueryBegin: query, Positions: []int32{offset + 4195}, Segments: []schedule.Segment{
			{Page: 0, Tokens: 4096, Offset: offset},
			{Page: page, Tokens: 100, Offset: offset + 4096, Own: true},
		}}
	}
	var b schedule.SharedBuilder
	lists, err := b.Build([]schedule.Sequence{sequence(0, 256, 0), sequence(1, 263, 1000)},
		schedule.Options{Rows: 16, Group: 4, Causal: true, MaxPosition: 1 << 17, PageSize: 16},
		schedule.SharedOptions{Rows: 128, Keys: 128, Blocks: 16, KVHeads: 8})
	if err != nil {
		panic(err)
	}
	for _, item := range lists.Items {
		for _, r := range lists.Runs[item.RunBegin:item.RunEnd] {
			fmt.Printf("page %d: tokens %d to %d\n", r.Page, r.Begin, r.End)
			for i, m := range lists.Members[item.QBegin : item.QBegin+item.QCount] {
				fmt.Printf("  query token %d, of a sequence with it at %d, to slot %d\n", m.Token, lists.Offsets[int(r.Offset)+i], m.Slot)
			}
		}
	}
	for _, item := range lists.Decode.Items {
		fmt.Printf("decode: query token %d to slot %d\n", item.QBegin, item.Slot)
	}
	fmt.Println(lists.Decode.SlotBegin, lists.Decode.Slots, lists.Saved)
	// Output:
	// page 0: tokens 0 to 2048
	//   query token 0, of a sequence with it at 0, to slot 0
	//   query token 1, of a sequence with it at 1000, to slot 3
	// page 0: tokens 2048 to 4096
	//   query token 0, of a sequence with it at 0, to slot 1
	//   query token 1, of a sequence with it at 1000, to slot 4
	// decode: query token 0 to slot 2
	// decode: query token 1 to slot 5
	// [0 3 6] 6 4096
}

// Every (query token, key that it sees) is in exactly one item of decode or of
// shared decode, as often as the sequence holds the key; each partial result has
// a slot of its own, among those of its token.
func TestSharedCoverage(t *testing.T) {
	var b schedule.SharedBuilder
	shared, unshared := 0, 0
	for seed := range uint64(2000) {
		sequences, o, s := randomSharing(rand.New(rand.NewPCG(seed, 0)), 12)
		lists, err := b.Build(sequences, o, s)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		checkShared(t, sequences, o, s, lists)
		if t.Failed() {
			t.Fatalf("seed %d: options %+v %+v, sequences %+v, lists %+v", seed, o, s, sequences, lists)
		}
		if len(lists.Items) > 0 {
			shared++
		} else {
			unshared++
		}
	}
	if shared < 500 || unshared < 200 {
		t.Errorf("%d steps share, %d do not: too few", shared, unshared)
	}
	for seed := range uint64(10) { // chunks that up to 300 sequences hold
		sequences, o, s := randomSharing(rand.New(rand.NewPCG(seed, 1)), 300)
		lists, err := b.Build(sequences, o, s)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if checkShared(t, sequences, o, s, lists); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// held is a key that a query token sees, in a segment at an offset.
type held struct {
	token, page, l, offset int32
}

func checkShared(t *testing.T, sequences []schedule.Sequence, o schedule.Options, s schedule.SharedOptions, lists schedule.SharedLists) {
	t.Helper()
	positions := map[int32]int32{}
	want, got := map[held]int{}, map[held]int{}
	for _, s := range sequences {
		for i, p := range s.Positions {
			token := s.QueryBegin + int32(i)
			positions[token] = p
			for _, segment := range s.Segments {
				for l := range segment.Tokens {
					if segment.Own && o.Causal && int(l) > i+int(segment.Tokens)-len(s.Positions) {
						continue
					}
					if inWindow(o, p, segment.Offset+l) {
						want[held{token, segment.Page, l, segment.Offset}]++
					}
				}
			}
		}
	}
	slots := map[int32]int32{} // slot -> token
	covered := map[int32]int{} // token -> items that write it
	take := func(token, slot int32) {
		if covered[token]++; slot == abi.Final {
			return
		}
		if other, ok := slots[slot]; ok {
			t.Errorf("slot %d of token %d is that of token %d too", slot, token, other)
		}
		slots[slot] = token
	}
	checkRun := func(r abi.Run) {
		if r.Begin%int32(max(1, o.PageSize)) != 0 || r.Begin >= r.End {
			t.Errorf("run %+v with pages of %d", r, o.PageSize)
		}
	}
	for _, item := range lists.Decode.Items {
		if item.QCount < 1 || int(item.QCount)*o.Group > o.Rows {
			t.Errorf("an item of %d query tokens", item.QCount)
		}
		checkScratch(t, "decode", item, lists.Decode, slots)
		for _, r := range lists.Decode.Runs[item.RunBegin:item.RunEnd] {
			checkRun(r)
			for i := range item.QCount {
				for l := r.Begin; l < r.End; l++ {
					if l <= item.QIndex+i+r.Causal && inWindow(o, positions[item.QBegin+i], r.Offset+l) {
						got[held{item.QBegin + i, r.Page, l, r.Offset}]++
					}
				}
			}
		}
		for i := range item.QCount {
			slot := item.Slot
			if slot != abi.Final {
				slot += i * item.SlotStride
			}
			take(item.QBegin+i, slot)
		}
	}
	padding, members := false, int32(0)
	for _, item := range lists.Items {
		if padding = padding || item.QCount == 0; padding {
			if item != (abi.Item{}) {
				t.Errorf("%+v behind padding", item)
			}
			continue
		}
		if int(item.QCount)*o.Group > s.Rows || item.QIndex != 0 || item.Slot != 0 || item.SlotStride != 0 || item.RunBegin == item.RunEnd || item.QBegin != members {
			t.Errorf("item %+v, tiles of %d rows, %d members before it", item, s.Rows, members)
		}
		members += item.QCount
		for _, r := range lists.Runs[item.RunBegin:item.RunEnd] {
			if checkRun(r); r.Causal != abi.Visible {
				t.Errorf("run %+v is not visible", r)
			}
			for i, m := range lists.Members[item.QBegin : item.QBegin+item.QCount] {
				offset := lists.Offsets[int(r.Offset)+i]
				for l := r.Begin; l < r.End; l++ {
					if inWindow(o, positions[m.Token], offset+l) {
						got[held{m.Token, r.Page, l, offset}]++
					}
				}
			}
		}
		for _, m := range lists.Members[item.QBegin : item.QBegin+item.QCount] {
			take(m.Token, m.Slot)
		}
	}
	if int(members) != len(lists.Members) {
		t.Errorf("items of %d members, there are %d", members, len(lists.Members))
	}
	checkOnce(t, "decode", runsOf(lists.Decode.Items, lists.Decode.Runs)...)
	if !maps.Equal(got, want) {
		t.Errorf("%d (query, key) pairs are covered, want %d", len(got), len(want))
	}
	if len(slots) != lists.Decode.Slots {
		t.Errorf("%d slots are written, Slots is %d", len(slots), lists.Decode.Slots)
	}
	for token := range int32(len(lists.Decode.SlotBegin) - 1) {
		begin, end := lists.Decode.SlotBegin[token], lists.Decode.SlotBegin[token+1]
		for slot := begin; slot < end; slot++ {
			if owner, ok := slots[slot]; !ok || owner != token {
				t.Errorf("slot %d of token %d was written by token %d (%v)", slot, token, owner, ok)
			}
		}
		_, queried := positions[token]
		items := covered[token]
		final := items == 1 && begin == end
		if queried != (items > 0) || !final && items != int(end-begin) {
			t.Errorf("token %d has %d items and %d slots", token, items, end-begin)
		}
	}
}

// Where nothing is shared the lists are decode's own.
func TestSharedWithoutSharing(t *testing.T) {
	var b schedule.SharedBuilder
	for seed := range uint64(1000) {
		sequences, o := random(rand.New(rand.NewPCG(seed, 4)))
		want, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.Build(sequences, o, schedule.SharedOptions{Rows: 64, Keys: 8, Blocks: 4, KVHeads: 1, PadItems: 3})
		if err != nil {
			t.Fatal(err)
		}
		if !same(got.Decode, want) || !slices.Equal(got.Items, make([]abi.Item, 3)) || len(got.Members) > 0 || got.Saved != 0 {
			t.Fatalf("seed %d: got %+v, want %+v", seed, got, want)
		}
	}
}

// Bitwise: what a sequence reads, in which parts and in which order these are
// merged, is the same alone and in any batch.
func TestSharedBitwise(t *testing.T) {
	var alone, together schedule.SharedBuilder
	for seed := range uint64(500) {
		sequences, o, s := randomSharing(rand.New(rand.NewPCG(seed, 2)), 12)
		s.Bitwise = true
		batch, err := together.Build(sequences, o, s)
		if err != nil {
			t.Fatal(err)
		}
		for i, sequence := range sequences {
			single, err := alone.Build([]schedule.Sequence{sequence}, o, s)
			if err != nil {
				t.Fatal(err)
			}
			for j := range sequence.Positions {
				token := sequence.QueryBegin + int32(j)
				want, got := parts(single, token), parts(batch, token)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: sequence %d, token %d\nalone    %q\nin batch %q", seed, i, token, want, got)
				}
			}
		}
	}
}

// parts is what makes up each partial result of a token, in the order of merging.
func parts(lists schedule.SharedLists, token int32) []string {
	first := lists.Decode.SlotBegin[token]
	n := max(1, lists.Decode.SlotBegin[token+1]-first)
	of := make([]string, n)
	for _, item := range lists.Decode.Items {
		if token >= item.QBegin && token < item.QBegin+item.QCount {
			slot := int32(0)
			if item.Slot != abi.Final {
				slot = item.Slot + (token-item.QBegin)*item.SlotStride - first
			}
			of[slot] = fmt.Sprint("decode ", token-item.QBegin, item.QCount, item.QIndex, withoutOnce(lists.Decode.Runs[item.RunBegin:item.RunEnd]))
		}
	}
	for _, item := range lists.Items {
		for i, m := range lists.Members[item.QBegin : item.QBegin+item.QCount] {
			if m.Token != token {
				continue
			}
			for _, r := range lists.Runs[item.RunBegin:item.RunEnd] {
				of[m.Slot-first] += fmt.Sprint("shared ", r.Page, r.Begin, r.End, lists.Offsets[int(r.Offset)+i], " ")
			}
		}
	}
	return of
}

// The cuts of what the issue of balance is about: one H200, 132 blocks of 128 rows,
// 8 KV heads, chunks of 512 tokens.
func TestSharedCuts(t *testing.T) {
	for _, c := range []struct {
		name                    string
		sequences, chunks, each int
		items, keys             int
	}{
		{"32 sequences, 8k", 32, 16, 512, 16, 512},
		{"32 sequences, 8k in one chunk", 32, 1, 8192, 16, 512},
		{"128 sequences, 4k", 128, 8, 512, 16, 1024},
		{"5 sequences, 8k", 5, 16, 512, 16, 512},
		{"256 sequences, 512", 256, 1, 512, 16, 256},
		{"1 sequence", 1, 16, 512, 0, 0},
		{"2 sequences, 128: no gain", 2, 1, 128, 0, 0},
		{"3 sequences, 8k: less gain than the launch takes", 3, 16, 512, 0, 0},
	} {
		var sequences []schedule.Sequence
		for i := range c.sequences {
			s := schedule.Sequence{QueryBegin: int32(i), Positions: []int32{100_000}}
			for j := range c.chunks {
				s.Segments = append(s.Segments, schedule.Segment{Page: int32(j * c.each / 16), Tokens: int32(c.each), Offset: int32(i + j*c.each)})
			}
			s.Segments = append(s.Segments, schedule.Segment{Page: int32(1000 + i), Tokens: 16, Offset: 99_985, Own: true})
			sequences = append(sequences, s)
		}
		lists, err := new(schedule.SharedBuilder).Build(sequences, options(), sharedOptions())
		if err != nil {
			t.Fatal(err)
		}
		checkShared(t, sequences, options(), sharedOptions(), lists)
		most := 0
		for _, item := range lists.Items {
			keys := 0
			for _, r := range lists.Runs[item.RunBegin:item.RunEnd] {
				keys += int(r.End - r.Begin)
			}
			most = max(most, keys)
		}
		if len(lists.Items) != c.items || most != c.keys {
			t.Errorf("%s: %d items of up to %d keys, want %d of %d", c.name, len(lists.Items), most, c.items, c.keys)
		}
	}
}

func TestSharedNoAllocation(t *testing.T) {
	var b schedule.SharedBuilder
	sequences := zipf(rand.New(rand.NewPCG(1, 1)), 64, 20)
	o, s := options(), sharedOptions()
	build := func() {
		if _, err := b.Build(sequences, o, s); err != nil {
			t.Fatal(err)
		}
	}
	build()
	if n := testing.AllocsPerRun(20, build); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func BenchmarkSharedBuilder(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name      string
		sequences []schedule.Sequence
	}{
		{"64x5", zipf(rng, 64, 5)},
		{"256x5", zipf(rng, 256, 5)},
		{"256x20", zipf(rng, 256, 20)},
		{"256x20,unshared", batch(256, 20, func() int32 { return 512 })},
	} {
		for _, bitwise := range []bool{false, true} {
			name := c.name
			if bitwise {
				name += ",bitwise"
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				var builder schedule.SharedBuilder
				o, s := options(), sharedOptions()
				s.Bitwise = bitwise
				var l schedule.SharedLists
				for b.Loop() {
					var err error
					if l, err = builder.Build(c.sequences, o, s); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(len(l.Items)), "items")
				b.ReportMetric(float64(len(l.Members)), "members")
			})
		}
	}
}
