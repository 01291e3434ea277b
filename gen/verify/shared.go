package verify

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// sharedLists are the work lists of one launch of shared_decode, and of one of decode
// for what is not shared.
type sharedLists struct {
	shared, own schedule.Lists // one merge takes the slots of shared
	members     []abi.Member
	offsets     []int32
}

// part is some tokens of a stored copy of a chunk; a run is made of it.
type part struct{ copy, begin, end int }

// holding is a query token that sees a part, its segment placed at offset.
type holding struct {
	token, offset int
	order         int // of its partial result among the token's
}

// sharing is the state of making sharedLists.
type sharing struct {
	sharedLists
	*rand.Rand
	l        *layout
	capacity int // members of an item
	parts    []part
	holders  map[part][]holding // that have no item yet
	results  []result
}

// result is the place in an item or a member where a slot goes.
type result struct {
	token, order int
	own          bool
	index        int // of the item of own, or of the member
}

// sharedLists are those of package schedule, or lists that a kernel must take as well.
func (r *attendRun) sharedLists(which []int) (lists sharedLists, err error) {
	if r.c.scheduled {
		lists, err = r.scheduledLists(which)
	} else {
		lists = r.inventedLists(which)
	}
	lists.shared.Items = append(lists.shared.Items, make([]abi.Item, r.c.padding)...)
	return lists, err
}

func (r *attendRun) scheduledLists(which []int) (sharedLists, error) {
	c := r.c
	var sequences []schedule.Sequence
	for _, i := range which {
		sequence := r.l.sequences[i]
		sequence.Segments = slices.Clone(sequence.Segments)
		for j := range sequence.Segments { // segments of one chunk have one page
			sequence.Segments[j].Page = r.l.pages[r.l.copies[i][j]]
		}
		sequences = append(sequences, sequence)
	}
	tile := r.kernels.Tiles[c.kind]
	lists, err := new(schedule.SharedBuilder).Build(sequences, r.scheduleOptions(spec.Decode), schedule.SharedOptions{
		Rows: tile.Rows, Keys: tile.Keys, Blocks: 1 + int(c.layoutSeed%200), KVHeads: c.kvHeads, Bitwise: c.bitwise,
	})
	return sharedLists{
		shared: schedule.Lists{Items: lists.Items, Runs: lists.Runs, SlotBegin: lists.Decode.SlotBegin, Slots: lists.Decode.Slots},
		own:    lists.Decode, members: lists.Members, offsets: lists.Offsets,
	}, err
}

// inventedLists shares out the chunks of some of the sequences. Where the case is to
// have the same bits alone and in a batch, each item has one part of a chunk, cut at
// places that depend on the chunk alone; else items have members and runs at random.
func (r *attendRun) inventedLists(which []int) sharedLists {
	c, s := r.c, r.bench.spec
	b := sharing{
		Rand: rand.New(rand.NewPCG(c.layoutSeed, 1)), l: r.l,
		capacity: r.kernels.Tiles[c.kind].Rows / s.Model.Group(), holders: map[part][]holding{},
	}
	for _, i := range which {
		b.hold(c, i, s)
	}
	if c.bitwise {
		b.oneItemAPart()
	} else {
		b.itemsAtRandom()
	}
	b.shared.SlotBegin = make([]int32, c.tokens+1)
	slices.SortStableFunc(b.results, func(x, y result) int {
		return cmp.Or(cmp.Compare(x.token, y.token), cmp.Compare(x.order, y.order))
	})
	for slot, x := range b.results {
		if x.own {
			b.own.Items[x.index].Slot = int32(slot)
		} else {
			b.members[x.index].Slot = int32(slot)
		}
		b.shared.SlotBegin[x.token+1]++
	}
	for t := range c.tokens {
		b.shared.SlotBegin[t+1] += b.shared.SlotBegin[t]
	}
	b.shared.Slots = len(b.results)
	return b.sharedLists
}

// hold takes the segments of a sequence: chunks become holdings, own tokens items of
// decode, one a query token.
func (b *sharing) hold(c *attendCase, i int, s spec.Spec) {
	sequence, order := b.l.sequences[i], 0
	unit := math.MaxInt
	if size := s.Cache.PageSize; c.splitTokens > 0 {
		unit = (c.splitTokens + size - 1) / size * size
	}
	for j, segment := range sequence.Segments {
		tokens := int(segment.Tokens)
		for begin := 0; begin == 0 || begin < tokens; begin += unit {
			p := part{b.l.copies[i][j], begin, tokens}
			if tokens-begin > unit {
				p.end = begin + unit
			}
			for t := range sequence.Positions {
				token := int(sequence.QueryBegin) + t
				if segment.Own {
					b.addOwn(sequence, t, order, segment, p, s.Masks.Causal)
					continue
				}
				if b.holders[p] == nil {
					b.parts = append(b.parts, p)
				}
				b.holders[p] = append(b.holders[p], holding{token, int(segment.Offset), order})
			}
			order++
			if p.end == tokens {
				break
			}
		}
	}
	if order > 0 {
		return
	}
	for t := range sequence.Positions { // it sees nothing, which a kernel must say
		b.addItem([]holding{{token: int(sequence.QueryBegin) + t}}, nil)
	}
}

func (b *sharing) addOwn(sequence schedule.Sequence, t, order int, segment schedule.Segment, p part, causal bool) {
	run := abi.Run{Page: segment.Page, Begin: int32(p.begin), End: int32(p.end), Offset: segment.Offset, Causal: abi.Visible}
	if causal {
		run.Causal = segment.Tokens - int32(len(sequence.Positions))
	}
	n := int32(len(b.own.Runs))
	b.own.Runs = append(b.own.Runs, run)
	token := sequence.QueryBegin + int32(t)
	b.results = append(b.results, result{int(token), order, true, len(b.own.Items)})
	b.own.Items = append(b.own.Items, abi.Item{QBegin: token, QCount: 1, QIndex: int32(t), RunBegin: n, RunEnd: n + 1})
}

// addItem adds an item of shared_decode without runs, its members between some that
// nobody may read.
func (b *sharing) addItem(members []holding, runs []abi.Run) {
	for range b.IntN(3) {
		b.members = append(b.members, abi.Member{Token: math.MinInt32, Slot: math.MinInt32})
	}
	n := int32(len(b.shared.Runs))
	b.shared.Runs = append(b.shared.Runs, runs...)
	b.shared.Items = append(b.shared.Items, abi.Item{
		QBegin: int32(len(b.members)), QCount: int32(len(members)), RunBegin: n, RunEnd: n + int32(len(runs)),
	})
	for _, h := range members {
		b.results = append(b.results, result{h.token, h.order, false, len(b.members)})
		b.members = append(b.members, abi.Member{Token: int32(h.token)})
	}
}

// run is a run over p with its members' offsets.
func (b *sharing) run(p part, members []holding) abi.Run {
	for range b.IntN(3) {
		b.offsets = append(b.offsets, math.MinInt32)
	}
	run := abi.Run{
		Page: b.l.pages[p.copy], Begin: int32(p.begin), End: int32(p.end), Offset: int32(len(b.offsets)), Causal: abi.Visible,
	}
	for _, h := range members {
		b.offsets = append(b.offsets, int32(h.offset))
	}
	return run
}

func (b *sharing) oneItemAPart() {
	for _, p := range b.parts {
		for members := range slices.Chunk(b.holders[p], b.capacity) {
			b.addItem(members, []abi.Run{b.run(p, members)})
		}
	}
}

// itemsAtRandom takes some holders of a part for an item, and of the other parts that
// all of these hold some too.
func (b *sharing) itemsAtRandom() {
	for _, i := range b.Perm(len(b.parts)) {
		p := b.parts[i]
		b.Shuffle(len(b.holders[p]), func(i, j int) { b.holders[p][i], b.holders[p][j] = b.holders[p][j], b.holders[p][i] })
		for len(b.holders[p]) > 0 {
			n := min(b.capacity, len(b.holders[p]))
			if b.IntN(3) == 0 {
				n = 1 + b.IntN(n)
			}
			members := slices.Clone(b.holders[p][:n])
			b.holders[p] = b.holders[p][n:]
			runs := []abi.Run{b.run(p, members)}
			for _, j := range b.Perm(len(b.parts)) {
				if b.IntN(4) == 0 {
					continue
				}
				if more := b.take(b.parts[j], members); more != nil {
					runs = append(runs, b.run(b.parts[j], more))
				}
			}
			b.addItem(members, runs)
		}
	}
}

// take removes and returns one holding of p for each of the members, or nil.
func (b *sharing) take(p part, members []holding) []holding {
	left := slices.Clone(b.holders[p])
	var taken []holding
	for _, m := range members {
		i := slices.IndexFunc(left, func(h holding) bool { return h.token == m.token })
		if i < 0 {
			return nil
		}
		taken = append(taken, left[i])
		left = slices.Delete(left, i, i+1)
	}
	b.holders[p] = left
	return taken
}
