package kvcache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

var shape = kvcache.Shape{Layers: 2, KVHeads: 1, HeadDim: 2, VHeadDim: 1, ElementBytes: 2, PageSize: 4}

// open makes a cache of the pages on a new device.
func open(t testing.TB, pages int) (*kvcache.Cache, *device) {
	t.Helper()
	d := newDevice()
	c, err := kvcache.New(d, kvcache.Config{Model: "m", Spec: "s", Encoding: "segment", Shape: shape, Pages: pages})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, kvcache.ErrClosed) {
			t.Error(err)
		}
		if len(d.regions) > 0 || len(d.host) > 0 {
			t.Errorf("%d device and %d host allocations are left", len(d.regions), len(d.host))
		}
	})
	return c, d
}

// document has n tokens that are those of no other document.
func document(number int32, n int) kvcache.Document {
	d := kvcache.Document{Tokens: make([]int32, n)}
	for i := range d.Tokens {
		d.Tokens[i] = number*1000 + int32(i)
	}
	return d
}

func nothing(context.Context, []int32) error { return nil }

func acquire(t testing.TB, c *kvcache.Cache, d kvcache.Document) *kvcache.Chunk {
	t.Helper()
	h, err := c.Acquire(context.Background(), d, nothing)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestSequence(t *testing.T) {
	c, _ := open(t, 10)
	a, b := acquire(t, c, document(1, 6)), acquire(t, c, document(2, 4))
	s, err := c.Open(kvcache.Pack(a, b, a), kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	a.Release()
	b.Release()
	if err := s.Extend(5); err != nil {
		t.Fatal(err)
	}
	var table kvcache.Table
	for range 2 {
		table.Reset()
		got, err := table.Add(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		want := []schedule.Segment{
			{Page: 0, Tokens: 6}, {Page: 2, Tokens: 4, Offset: 6}, {Page: 0, Tokens: 6, Offset: 10},
			{Page: 3, Tokens: 5, Offset: 16, Own: true}}
		if !slices.Equal(got, want) || !slices.Equal(table.Pages, []int32{0, 1, 2, 3, 4}) {
			t.Errorf("segments %v of pages %v, want %v", got, table.Pages, want)
		}
	}
	slots, err := s.Slots(nil, 2)
	if want := []int32{14, 15, 16}; err != nil || !slices.Equal(slots, want) {
		t.Errorf("slots %v, %v, want %v", slots, err, want)
	}
	if s.Tokens() != 5 || s.Next() != 21 {
		t.Errorf("%d own tokens, the next at %d", s.Tokens(), s.Next())
	}
	err = s.Extend(24)
	var short *kvcache.NoPagesError
	if !errors.As(err, &short) || *short != (kvcache.NoPagesError{Needed: 6, Free: 5, Total: 10}) {
		t.Errorf("error %v", err)
	}
	s.Close()
	if got := c.Stats(); got.PagesFree != 7 || got.PagesEvictable != 3 || got.Sequences != 0 || got.Chunks != 2 {
		t.Errorf("%+v", got)
	}
}

func TestOffsets(t *testing.T) {
	d := newDevice()
	c, err := kvcache.New(d, kvcache.Config{Shape: shape, Pages: 10, MaxPosition: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a, b := acquire(t, c, document(1, 6)), acquire(t, c, document(2, 4))
	at := func(h *kvcache.Chunk, offset int) kvcache.Placement {
		return kvcache.Placement{Chunk: h, Offset: offset}
	}
	const packed = kvcache.Packed
	for _, test := range []struct {
		name       string
		placements []kvcache.Placement
		own        int
		want       []int32 // offsets, that of the own tokens last
	}{
		{"nothing", nil, packed, []int32{0}},
		{"own tokens at a position", nil, 100, []int32{100}},
		{"packed", kvcache.Pack(a, b), packed, []int32{0, 6, 10}},
		{"a gap", []kvcache.Placement{at(a, 3), at(b, 20)}, packed, []int32{3, 20, 24}},
		{"packed behind a gap", []kvcache.Placement{at(a, 50), at(b, packed)}, packed, []int32{50, 56, 60}},
		{"equal", []kvcache.Placement{at(a, 7), at(b, 7)}, packed, []int32{7, 7, 13}},
		{"backwards", []kvcache.Placement{at(b, 80), at(a, 2), at(b, packed)}, packed, []int32{80, 2, 8, 84}},
		{"to the end", []kvcache.Placement{at(a, 94)}, packed, []int32{94, 100}},
		{"own tokens among them", kvcache.Pack(a, b), 3, []int32{0, 6, 3}},
		{"twice", kvcache.Pack(a, a), packed, []int32{0, 6, 12}},
		{"behind the end", []kvcache.Placement{at(a, 95)}, packed, nil},
		{"far behind the end", []kvcache.Placement{at(a, math.MaxInt)}, packed, nil},
		{"negative", []kvcache.Placement{at(a, -2)}, packed, nil},
		{"own tokens behind the end", nil, 101, nil},
		{"own tokens negative", nil, -2, nil},
	} {
		s, err := c.Open(test.placements, test.own)
		if test.want == nil {
			if !errors.Is(err, kvcache.ErrPosition) {
				t.Errorf("%s: error %v", test.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		var table kvcache.Table
		segments, err := table.Add(nil, s)
		got := []int32{}
		for _, g := range segments {
			got = append(got, g.Offset)
		}
		if got = append(got, int32(s.Next())); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: offsets %v, %v, want %v", test.name, got, err, test.want)
		}
		s.Close()
	}
	if s := c.Stats(); s.Sequences != 0 || s.PagesUsed != 3 {
		t.Errorf("%+v", s)
	}
}

// Every order of five documents finds each document's chunk, in the same
// pages, and needs none.
func TestPermutations(t *testing.T) {
	c, d := open(t, 15)
	const n = 5
	var documents [n]kvcache.Document
	var pages [n][]int32
	for i := range documents {
		documents[i] = document(int32(i), 3+4*i%9)
		h, err := c.Acquire(context.Background(), documents[i], encode(c, d, documents[i]))
		if err != nil {
			t.Fatal(err)
		}
		if pages[i], err = h.Pages(nil); err != nil {
			t.Fatal(err)
		}
		h.Release()
	}
	used := c.Stats().PagesUsed
	orders := 0
	var table kvcache.Table
	permute([]int{0, 1, 2, 3, 4}, func(order []int) {
		orders++
		var chunks []*kvcache.Chunk
		for _, i := range order {
			h, err := c.Acquire(context.Background(), documents[i], func(context.Context, []int32) error {
				return errors.New("there is a chunk already")
			})
			if err != nil {
				t.Fatal(err)
			}
			chunks = append(chunks, h)
		}
		s, err := c.Open(kvcache.Pack(chunks...), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		table.Reset()
		segments, err := table.Add(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		offset := int32(0)
		for k, i := range order {
			g, tokens := segments[k], documents[i].Tokens
			got := table.Pages[g.Page:][:len(pages[i])]
			if !slices.Equal(got, pages[i]) || g.Offset != offset || int(g.Tokens) != len(tokens) {
				t.Fatalf("order %v: document %d is %+v in pages %v, want pages %v at %d", order, i, g, got, pages[i], offset)
			}
			if err := check(c, d, tokens, shape.Slots(nil, got, 0, len(tokens))); err != nil {
				t.Fatalf("order %v: document %d: %v", order, i, err)
			}
			offset += g.Tokens
		}
		if got := c.Stats().PagesUsed; got != used {
			t.Fatalf("order %v: %d pages used, want %d", order, got, used)
		}
		s.Close()
		for _, h := range chunks {
			h.Release()
		}
	})
	if s := c.Stats(); orders != 120 || s.Hits != 5*120 || s.Misses != n || s.Encodes != n {
		t.Errorf("%d orders: %+v", orders, s)
	}
}

// permute calls f with every order of list.
func permute(list []int, f func([]int)) {
	var fix func(n int)
	fix = func(n int) {
		if n == len(list) {
			f(list)
			return
		}
		for i := n; i < len(list); i++ {
			list[n], list[i] = list[i], list[n]
			fix(n + 1)
			list[n], list[i] = list[i], list[n]
		}
	}
	fix(0)
}

func TestMisuse(t *testing.T) {
	c, _ := open(t, 10)
	other, _ := open(t, 10)
	a := acquire(t, c, document(1, 6))
	foreign := acquire(t, other, document(1, 6))
	released := acquire(t, c, document(2, 4))
	released.Release()
	s, err := c.Open(kvcache.Pack(a), kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	before := c.Stats()
	ctx := context.Background()
	var table kvcache.Table
	only := func(_ any, err error) error { return err }
	for name, test := range map[string]struct {
		err error
		is  error
	}{
		"no tokens":           {only(c.Acquire(ctx, kvcache.Document{}, nothing)), nil},
		"boundary at 0":       {only(c.Acquire(ctx, kvcache.Document{Tokens: []int32{1, 2}, Boundaries: []int32{0}}, nothing)), nil},
		"boundary at the end": {only(c.Acquire(ctx, kvcache.Document{Tokens: []int32{1, 2}, Boundaries: []int32{2}}, nothing)), nil},
		"boundaries equal":    {only(c.Acquire(ctx, kvcache.Document{Tokens: []int32{1, 2, 3}, Boundaries: []int32{1, 1}}, nothing)), nil},
		"too large":           {only(c.Acquire(ctx, document(3, 100), nothing)), kvcache.ErrNoPages},
		"unknown":             {only(c.Get(ctx, kvcache.ID{1})), kvcache.ErrUnknown},
		"drop unknown":        {c.Drop(kvcache.ID{1}), kvcache.ErrUnknown},
		"drop held":           {c.Drop(a.ID()), kvcache.ErrInUse},
		"evict held":          {c.Evict(a.ID()), kvcache.ErrInUse},
		"open released":       {only(c.Open(kvcache.Pack(a, released), kvcache.Packed)), kvcache.ErrReleased},
		"open foreign":        {only(c.Open(kvcache.Pack(a, foreign), kvcache.Packed)), nil},
		"open nothing":        {only(c.Open(make([]kvcache.Placement, 1), 0)), nil},
		"pages of released":   {only(released.Pages(nil)), kvcache.ErrReleased},
		"extend by -1":        {s.Extend(-1), kvcache.ErrPosition},
		"extend too far":      {s.Extend(math.MaxInt), kvcache.ErrPosition},
		"truncate to -1":      {s.Truncate(-1), nil},
		"truncate to more":    {s.Truncate(1), nil},
		"slots from more":     {only(s.Slots(nil, 1)), nil},
	} {
		if test.err == nil || test.is != nil && !errors.Is(test.err, test.is) {
			t.Errorf("%s: error %v", name, test.err)
		}
	}
	if after := c.Stats(); after != before {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Close": c.Close(), "Acquire": only(c.Acquire(ctx, document(1, 6), nothing)), "Get": only(c.Get(ctx, a.ID())),
		"Drop": c.Drop(a.ID()), "Evict": c.Evict(a.ID()), "Open": only(c.Open(nil, 0)), "Pages": only(a.Pages(nil)),
		"Pin": a.Pin(), "Extend": s.Extend(1), "Truncate": s.Truncate(0), "Fork": only(s.Fork()), "Slots": only(s.Slots(nil, 0)),
		"Add": only(table.Add(nil, s)),
	} {
		if !errors.Is(err, kvcache.ErrClosed) {
			t.Errorf("%s of a closed cache: %v", name, err)
		}
	}
	s.Close()
	a.Release()
}

func TestPinned(t *testing.T) {
	c, _ := open(t, 4)
	h := acquire(t, c, document(1, 8))
	if err := h.Pin(); err != nil {
		t.Fatal(err)
	}
	id := h.ID()
	h.Release()
	if err := c.Drop(id); !errors.Is(err, kvcache.ErrInUse) {
		t.Errorf("drop of a pinned chunk: %v", err)
	}
	_, err := c.Acquire(context.Background(), document(2, 12), nothing)
	var short *kvcache.NoPagesError
	if !errors.As(err, &short) || *short != (kvcache.NoPagesError{Needed: 3, Free: 2, Total: 4}) {
		t.Errorf("error %v", err)
	}
	h, err = c.Get(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Unpin(); err != nil {
		t.Error(err)
	}
	h.Release()
	acquire(t, c, document(2, 12)).Release()
	if _, err := c.Get(context.Background(), id); !errors.Is(err, kvcache.ErrUnknown) {
		t.Errorf("get of an evicted chunk: %v", err)
	}
}

func TestKeys(t *testing.T) {
	key := func(model, spec, encoding string, tokens, boundaries []int32) kvcache.ID {
		return kvcache.ChunkKey{Model: model, Spec: spec, Encoding: encoding,
			Document: kvcache.Document{Tokens: tokens, Boundaries: boundaries}}.ID()
	}
	same := key("m", "s", "segment", []int32{1, 2, 3}, []int32{1})
	if same != key("m", "s", "segment", []int32{1, 2, 3}, []int32{1}) {
		t.Error("equal keys have different IDs")
	}
	seen := map[kvcache.ID]bool{same: true}
	for i, id := range []kvcache.ID{
		key("n", "s", "segment", []int32{1, 2, 3}, []int32{1}),
		key("m", "t", "segment", []int32{1, 2, 3}, []int32{1}),
		key("m", "s", "raw", []int32{1, 2, 3}, []int32{1}),
		key("ms", "", "segment", []int32{1, 2, 3}, []int32{1}),
		key("m", "s", "segment", []int32{1, 2}, []int32{1}),
		key("m", "s", "segment", []int32{1, 3, 2}, []int32{1}),
		key("m", "s", "segment", []int32{1, 2, 3}, nil),
		key("m", "s", "segment", []int32{1, 2}, []int32{3, 1}),
		key("m", "s", "segment", []int32{1, 2, -3}, []int32{1}),
	} {
		if seen[id] {
			t.Errorf("key %d has the ID of another", i)
		}
		seen[id] = true
	}
	// The ID is part of the file format.
	if got, want := fmt.Sprint(same), "c78fb3814dd2f3d6c73a03a59c1618243ce9cc437e13021a28cc23d702a990a4"; got != want {
		t.Errorf("ID %s, want %s", got, want)
	}
}

// mostRecent evicts what was let go of last, and at times names what it must not.
type mostRecent struct {
	ids   []kvcache.ID
	wrong *kvcache.ID
}

func (p *mostRecent) Add(id kvcache.ID, _ int64) { p.ids = append(p.ids, id) }

func (p *mostRecent) Remove(id kvcache.ID) {
	p.ids = slices.DeleteFunc(p.ids, func(i kvcache.ID) bool { return i == id })
}

func (p *mostRecent) Victim() kvcache.ID {
	if p.wrong != nil {
		return *p.wrong
	}
	return p.ids[len(p.ids)-1]
}

func TestPolicy(t *testing.T) {
	policy := &mostRecent{}
	c, err := kvcache.New(newDevice(), kvcache.Config{Shape: shape, Pages: 4, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first := acquire(t, c, document(1, 8))
	first.Release()
	acquire(t, c, document(2, 8)).Release()
	acquire(t, c, document(3, 8)).Release()
	if _, err := c.Get(context.Background(), first.ID()); err != nil {
		t.Errorf("the first is gone: %v", err)
	}
	wrong := first.ID()
	policy.wrong = &wrong
	before := c.Stats()
	if _, err := c.Acquire(context.Background(), document(4, 8), nothing); err == nil || errors.Is(err, kvcache.ErrNoPages) {
		t.Errorf("error %v", err)
	}
	if after := c.Stats(); after != before {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
}
