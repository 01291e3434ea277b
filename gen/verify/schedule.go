package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// scheduleCase is a decode step whose lists are made. Nobody reads the pages.
type scheduleCase struct {
	sequences []schedule.Sequence
	options   schedule.Options
	sharing   *schedule.SharedOptions // nil: there is no shared decode
	spare     [2]int                  // room for more sequences and segments than there are
}

// scheduleTrial is one case of schedule, which is held to package schedule's lists to the bit. It
// does not depend on the encoding.
func (b *bench) scheduleTrial(rng *rand.Rand) trial {
	c := b.dice(rng).scheduleCase(b.kernels[spec.Baked])
	want, err := c.build(rng)
	return func(ctx context.Context, e spec.Encoding) (measure, error) {
		if err != nil {
			return measure{}, err
		}
		return measure{bound: b.format.Epsilon()}, c.run(ctx, b, e, want)
	}
}

func (d dice) scheduleCase(kernels Kernels) scheduleCase {
	group, page := d.spec.Model.Group(), d.spec.Cache.PageSize
	rows := func(kind spec.Kind, otherwise int) int { return max(kernels.Tiles[kind].Rows, otherwise, group) }
	blocks, heads := 1+d.IntN(300), 1+d.IntN(8)
	o := schedule.Options{
		Rows: rows(spec.Decode, 16), Group: group, Causal: d.spec.Masks.Causal, MaxPosition: math.MaxInt32, PageSize: page,
		Fold: !d.oneIn(4), AtOnce: d.IntN(100), PadItems: 1, PadTokens: 1,
	}
	switch d.IntN(5) {
	case 0, 2: // many
		o.SplitTokens, o.MaxItems = page*(1+d.IntN(4)), d.IntN(20)
	case 1: // few cuts, at places that are no page's start
		o.SplitTokens, o.MaxItems = page+d.IntN(3000), 1+d.IntN(4)
	default:
		o = o.FillBy(blocks, o.AtOnce*heads, heads, max(page, 256))
	}
	if o.Fold && d.oneIn(2) {
		o.PartsPerItem = 1 << d.IntN(5)
	}
	o.Whole = o.Fold && d.oneIn(6)
	if d.oneIn(2) {
		o.OnceTokens = 1 + d.IntN(200_000)
	}
	c := scheduleCase{options: o, spare: [2]int{d.IntN(3), d.IntN(40)}}
	if !d.oneIn(4) {
		c.sharing = &schedule.SharedOptions{
			Rows: rows(spec.SharedDecode, 128), Keys: 64 << d.IntN(2), Blocks: blocks, KVHeads: heads, Bitwise: d.oneIn(3),
			PadItems: math.MaxInt32, MaxMembers: math.MaxInt32,
		}
	}
	c.sequences = d.heldSequences(o.Rows / group)
	return c
}

// heldSequences are sequences that hold chunks of a few documents: any of them, twice too, or packs
// that many hold, one chunk behind the other.
func (d dice) heldSequences(mostQueries int) []schedule.Sequence {
	type chunk struct{ page, tokens int32 }
	longest := []int{100, 700, 5000}[d.IntN(3)]
	page := int32(0)
	place := func(tokens int) int32 {
		at := page
		page += int32((tokens + d.spec.Cache.PageSize - 1) / d.spec.Cache.PageSize)
		return at
	}
	ragged := !d.oneIn(3)
	documents := make([][]chunk, 1+d.IntN(30))
	for i := range documents {
		for range 1 + d.IntN(1+d.IntN(8)) {
			tokens := 1 + d.length(longest)
			if !ragged {
				tokens = (tokens/d.spec.Cache.PageSize + 1) * d.spec.Cache.PageSize
			}
			documents[i] = append(documents[i], chunk{place(tokens), int32(tokens)})
		}
	}
	count, held := d.IntN(1+d.size.holders/(1+d.IntN(8))), d.IntN(12)
	if d.oneIn(8) {
		held = 60
	}
	var sequences []schedule.Sequence
	token := int32(0)
	for range count {
		s := schedule.Sequence{QueryBegin: token, Positions: make([]int32, 1)}
		if d.oneIn(4) {
			s.Positions = make([]int32, 1+d.IntN(mostQueries))
		}
		token += int32(len(s.Positions))
		offset := int32(d.IntN(1000))
		add := func(page int32, tokens int32, own bool) {
			s.Segments = append(s.Segments, schedule.Segment{Page: page, Tokens: tokens, Offset: offset, Own: own})
			offset += tokens
		}
		for len(s.Segments) < held {
			of := documents[min(d.IntN(len(documents)), d.IntN(len(documents)))]
			if d.oneIn(10) {
				of = of[d.IntN(len(of)):]
			}
			if d.oneIn(10) {
				of = of[:1+d.IntN(len(of))]
			}
			for _, c := range of {
				add(c.page, c.tokens, false)
			}
			if d.oneIn(4) {
				break
			}
		}
		if d.oneIn(20) {
			add(page, 0, false)
		}
		// Of those whose chunks are shared too, some have own tokens of several parts.
		if own := len(s.Positions) + d.length(longest*(1+d.IntN(4))); !d.oneIn(20) {
			add(place(own), int32(own), true)
		}
		if d.oneIn(20) { // own tokens between chunks
			d.Shuffle(len(s.Segments), func(i, j int) { s.Segments[i], s.Segments[j] = s.Segments[j], s.Segments[i] })
		}
		sequences = append(sequences, s)
	}
	return sequences
}

// build makes the lists that are wanted, and room for them or, where the builder makes do with less, too little.
func (c *scheduleCase) build(rng *rand.Rand) (want schedule.SharedLists, err error) {
	o := &c.options
	loose := *o
	loose.PadItems, loose.PadTokens = 0, 0
	if c.sharing == nil {
		var lists schedule.Lists
		if lists, err = schedule.Build(c.sequences, loose); err != nil {
			return want, err
		}
		o.PadItems, o.PadTokens = max(1, len(lists.Items)+rng.IntN(3)), max(1, len(lists.SlotBegin)-1+rng.IntN(3))
		want.Decode, err = schedule.Build(c.sequences, *o)
		return want, err
	}
	s := c.sharing
	unbound := *s
	unbound.PadItems = 0
	if want, err = new(schedule.SharedBuilder).Build(c.sequences, loose, unbound); err != nil {
		return want, err
	}
	spare := rng.IntN(3) * (1 + rng.IntN(2)*1000)
	s.PadItems, s.MaxMembers = len(want.Items)+spare, max(1, len(want.Members)+spare)
	if !s.Bitwise && rng.IntN(3) == 0 { // too little room for all, or for any
		s.PadItems, s.MaxMembers = rng.IntN(len(want.Items)+1), 1+rng.IntN(len(want.Members)+1)
	}
	s.PadItems = max(1, s.PadItems)
	if want, err = new(schedule.SharedBuilder).Build(c.sequences, loose, *s); err != nil {
		return want, err
	}
	o.PadItems, o.PadTokens = max(1, len(want.Decode.Items)+rng.IntN(3)), max(1, len(want.Decode.SlotBegin)-1+rng.IntN(3))
	return new(schedule.SharedBuilder).Build(c.sequences, *o, *s)
}

// run makes the lists twice, where others were, and compares them.
func (c *scheduleCase) run(ctx context.Context, b *bench, e spec.Encoding, want schedule.SharedLists) error {
	var given schedule.Given
	needs, err := given.List(c.sequences, c.options)
	if err != nil {
		return err
	}
	memory := newArena(b.dev)
	defer memory.free()
	m := allocations{arena: memory}
	p := c.options.Params(c.sharing)
	p.SequenceRoom, p.SegmentRoom, p.PartRoom = int32(len(given.Sequences)+c.spare[0]), int32(len(given.Segments)+c.spare[1]), int32(max(1, needs.Parts))
	counts := m.upload("counts", []int32{int32(len(given.Sequences)), int32(len(given.Segments))})
	sequences, segments := m.upload("sequences", given.Sequences), m.upload("segments", given.Segments)
	p.Counts, p.Sequences, p.Segments = counts.pointer(), sequences.pointer(), segments.pointer()
	p.Scratch = m.alloc("scratch", 4*p.ScratchWords()).pointer()
	written := []struct {
		name string
		to   *abi.DevicePtr
		want any
		at   *buffer
	}{
		{"Items", &p.Items, want.Decode.Items, nil},
		{"Runs", &p.Runs, want.Decode.Runs, nil},
		{"SlotBegin", &p.SlotBegin, want.Decode.SlotBegin, nil},
		{"SharedItems", &p.SharedItems, want.Items, nil},
		{"SharedRuns", &p.SharedRuns, want.Runs, nil},
		{"Members", &p.Members, want.Members, nil},
		{"MemberOffsets", &p.MemberOffsets, want.Offsets, nil},
	}
	if c.sharing == nil {
		written = written[:3]
	}
	for i := range written {
		written[i].at = m.alloc(written[i].name, binary.Size(written[i].want))
		*written[i].to = written[i].at.pointer()
	}
	spared := m.upload("spared", []int64{0})
	if c.sharing != nil {
		p.Spared = spared.pointer()
	}
	if m.err != nil {
		return m.err
	}
	for range 2 {
		if err := b.kernels[e].Schedule(0, p); err != nil {
			return wrongf("launch: %w", err)
		}
		if err := b.dev.Synchronize(ctx, 0); err != nil {
			return wrongf("run: %w", err)
		}
		for _, w := range written {
			if err := sameList(w.name, w.at, w.want); err != nil {
				return err
			}
		}
	}
	sum, err := spared.download()
	if err != nil {
		return err
	}
	if got := int64(binary.LittleEndian.Uint64(sum)); got != 2*int64(want.Saved) {
		return wrongf("Spared: two runs added %d, want %d twice", got, want.Saved)
	}
	return nil
}

// sameList says where a list is not what is wanted. What is reserved may hold anything.
func sameList(name string, at *buffer, want any) error {
	data, err := at.download()
	if err != nil {
		return err
	}
	wanted := reflect.ValueOf(want)
	got := reflect.MakeSlice(wanted.Type(), wanted.Len(), wanted.Len())
	if _, err := binary.Decode(data, binary.LittleEndian, got.Interface()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if runs, ok := got.Interface().([]abi.Run); ok {
		for i := range runs {
			runs[i].Reserved = 0
		}
	}
	for i := range wanted.Len() {
		if x, y := got.Index(i).Interface(), wanted.Index(i).Interface(); x != y {
			return wrongf("%s: element %d of %d is %+v, want %+v", name, i, wanted.Len(), x, y)
		}
	}
	return nil
}
