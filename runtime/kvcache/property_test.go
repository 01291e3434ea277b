package kvcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

const (
	propertyPages     = 24
	propertyHostPages = 14
	documents         = 12
	propertyPositions = 200
)

// run is a cache beside its model.
type run struct {
	rng       *rand.Rand
	device    *device
	seam      cuda.Device // the device, as a cuda.Copier or not
	cache     *kvcache.Cache
	model     *model
	handles   []handle
	sequences []*sequence
	table     kvcache.Table
	segments  []schedule.Segment
	token     int32 // the last own token that was written
	refused   int   // operations that were out of pages
	restarts  int
	restores  int64 // of the caches before this one, as are the next two
	drops     int64
	copies    int64
}

type handle struct {
	chunk *kvcache.Chunk
	doc   int
}

type sequence struct {
	s        *kvcache.Sequence
	segments []placed
	offset   int
	tokens   []int32
	pages    []*modelPage
}

type placed struct{ doc, offset int }

var errEncode = errors.New("encode failed")

func newRun(seed uint64, async bool) (*run, error) {
	r := &run{rng: rand.New(rand.NewPCG(seed, 7)), device: newDevice()}
	r.seam = r.device
	if async {
		r.seam = copier{r.device}
	}
	r.model = &model{free: propertyPages, total: propertyPages, hostFree: propertyHostPages, hostTotal: propertyHostPages,
		chunks: map[int]*modelChunk{}, tokens: func(doc int) int { return len(r.document(doc).Tokens) }}
	var err error
	r.cache, err = r.newCache()
	return r, err
}

func (r *run) newCache() (*kvcache.Cache, error) {
	return kvcache.New(r.seam, kvcache.Config{Model: "m", Shape: shape, Pages: propertyPages, MaxPosition: propertyPositions,
		HostBytes: propertyHostPages * shape.PageBytes()})
}

// document has 1 to 23 tokens: 1 to 6 pages.
func (r *run) document(doc int) kvcache.Document { return document(int32(doc), 1+2*doc) }

func (r *run) id(doc int) kvcache.ID { return r.cache.Key(r.document(doc)).ID() }

// TestProperties does random things to a cache and to a model of it, and
// compares all counts each time and all contents from time to time.
func TestProperties(t *testing.T) {
	operations := 100000 // on each of two devices
	var total [5]int64
	for _, async := range []bool{true, false} {
		for seed := range uint64(10) {
			t.Run(fmt.Sprintf("async %v, seed %d", async, seed), func(t *testing.T) {
				r, err := newRun(seed, async)
				if err != nil {
					t.Fatal(err)
				}
				for i := range operations / 10 {
					name, err := r.step()
					if err == nil {
						err = r.compare(i)
					}
					if err != nil {
						t.Fatalf("operation %d, %s: %v", i, name, err)
					}
				}
				if err := r.end(); err != nil {
					t.Error(err)
				}
				total[0] += int64(r.refused)
				total[1] += int64(r.restarts)
				total[2] += r.restores + r.model.stats.Restores
				total[3] += r.drops + r.model.stats.HostDrops
				total[4] += r.copies + r.model.stats.PageCopies
			})
		}
	}
	t.Logf("%d refused, %d restarts, %d restores, %d drops from the host tier, %d page copies",
		total[0], total[1], total[2], total[3], total[4])
	if slices.Min(total[:]) < 100 {
		t.Error("too gentle")
	}
}

// step does one thing to both.
func (r *run) step() (string, error) {
	for {
		switch r.rng.IntN(16) {
		case 0, 1:
			return "acquire", r.acquire()
		case 2:
			return "get", r.get()
		case 3, 4:
			if len(r.handles) > 0 {
				return "release", r.release(r.rng.IntN(len(r.handles)))
			}
		case 5:
			if len(r.handles) > 0 {
				return "pin", r.pin(r.handles[r.rng.IntN(len(r.handles))])
			}
		case 6:
			if len(r.sequences) < 8 {
				return "open", r.open()
			}
		case 7, 8, 9:
			if len(r.sequences) > 0 {
				return "extend", r.extend(r.sequences[r.rng.IntN(len(r.sequences))])
			}
		case 10:
			if len(r.sequences) > 0 && len(r.sequences) < 8 {
				return "fork", r.fork(r.sequences[r.rng.IntN(len(r.sequences))])
			}
		case 11:
			if len(r.sequences) > 0 {
				return "truncate", r.truncate(r.sequences[r.rng.IntN(len(r.sequences))])
			}
		case 12:
			if len(r.sequences) > 0 {
				return "close", r.close(r.rng.IntN(len(r.sequences)))
			}
		case 13:
			return "evict", r.evict(r.rng.IntN(documents))
		case 14:
			if r.rng.IntN(3) == 0 {
				return "drop", r.drop(r.rng.IntN(documents))
			}
		case 15:
			if r.rng.IntN(40) == 0 {
				return "restart", r.restart()
			}
		}
	}
}

// refusal checks that an operation was refused as the model says.
func (r *run) refusal(err error, want bool) error {
	if want {
		r.refused++
	}
	if errors.Is(err, kvcache.ErrNoPages) != want || !want && err != nil {
		return fmt.Errorf("error %v, want out of pages: %v", err, want)
	}
	return nil
}

func (r *run) acquire() error {
	doc := r.rng.IntN(documents)
	fails := r.rng.IntN(8) == 0
	d := r.document(doc)
	chunk, err := r.cache.Acquire(context.Background(), d, func(ctx context.Context, pages []int32) error {
		if fails {
			return errEncode
		}
		return encode(r.cache, r.device, d)(ctx, pages)
	})
	known := r.model.chunks[doc] != nil
	ok := false
	if known {
		ok = r.model.acquire(doc)
	} else {
		ok = r.model.encode(doc, fails)
	}
	if ok && !known && fails {
		if !errors.Is(err, errEncode) {
			return fmt.Errorf("error %v, want that of encode", err)
		}
		return nil
	}
	if ok && err == nil {
		r.handles = append(r.handles, handle{chunk, doc})
	}
	return r.refusal(err, !ok)
}

func (r *run) get() error {
	doc := r.rng.IntN(documents)
	chunk, err := r.cache.Get(context.Background(), r.id(doc))
	if r.model.chunks[doc] == nil {
		if !errors.Is(err, kvcache.ErrUnknown) {
			return fmt.Errorf("error %v, want %v", err, kvcache.ErrUnknown)
		}
		return nil
	}
	ok := r.model.acquire(doc)
	if ok && err == nil {
		r.handles = append(r.handles, handle{chunk, doc})
	}
	return r.refusal(err, !ok)
}

func (r *run) release(i int) error {
	h := r.handles[i]
	h.chunk.Release()
	h.chunk.Release()
	r.model.ref(h.doc, -1)
	r.handles = slices.Delete(r.handles, i, i+1)
	if err := h.chunk.Pin(); !errors.Is(err, kvcache.ErrReleased) {
		return fmt.Errorf("pin of a released chunk: %v", err)
	}
	return nil
}

func (r *run) pin(h handle) error {
	c := r.model.chunks[h.doc]
	c.pinned = r.rng.IntN(4) == 0
	if c.pinned {
		return h.chunk.Pin()
	}
	return h.chunk.Unpin()
}

func (r *run) open() error {
	s := &sequence{}
	var placements []kvcache.Placement
	next, end := 0, 0
	for range r.rng.IntN(min(4, len(r.handles)+1)) {
		h := r.handles[r.rng.IntN(len(r.handles))]
		offset := kvcache.Packed
		if r.rng.IntN(2) == 0 {
			next = r.rng.IntN(40)
			offset = next
		}
		placements = append(placements, kvcache.Placement{Chunk: h.chunk, Offset: offset})
		s.segments = append(s.segments, placed{h.doc, next})
		next += h.chunk.Tokens()
		end = max(end, next)
	}
	own := kvcache.Packed
	s.offset = end
	if r.rng.IntN(4) == 0 {
		own = r.rng.IntN(propertyPositions)
		s.offset = own
	}
	var err error
	if s.s, err = r.cache.Open(placements, own); err != nil {
		return err
	}
	for _, g := range s.segments {
		r.model.ref(g.doc, 1)
	}
	r.model.stats.Sequences++
	r.sequences = append(r.sequences, s)
	return nil
}

func (r *run) extend(s *sequence) error {
	n := r.rng.IntN(10)
	before := len(s.tokens)
	err := s.s.Extend(n)
	if s.offset+before+n > propertyPositions {
		if !errors.Is(err, kvcache.ErrPosition) {
			return fmt.Errorf("error %v, want %v", err, kvcache.ErrPosition)
		}
		return nil
	}
	need := shape.Pages(before+n) - len(s.pages)
	copies := n > 0 && before%shape.PageSize != 0 && s.pages[len(s.pages)-1].refs > 1
	if copies {
		need++
	}
	ok := r.model.take(need)
	if err := r.refusal(err, !ok); err != nil || !ok {
		return err
	}
	if copies {
		r.model.stats.PageCopies++
		r.model.release(s.pages[len(s.pages)-1:])
		s.pages = s.pages[:len(s.pages)-1]
	}
	for range need {
		s.pages = append(s.pages, &modelPage{refs: 1})
	}
	for range n {
		r.token++
		s.tokens = append(s.tokens, -r.token)
	}
	slots, err := s.s.Slots(nil, before)
	if err == nil {
		write(r.cache, r.device, s.tokens[before:], slots)
	}
	return err
}

func (r *run) fork(s *sequence) error {
	f, err := s.s.Fork()
	if err != nil {
		return err
	}
	fork := &sequence{s: f, segments: s.segments, offset: s.offset, tokens: slices.Clone(s.tokens), pages: slices.Clone(s.pages)}
	for _, p := range fork.pages {
		p.refs++
	}
	for _, g := range fork.segments {
		r.model.ref(g.doc, 1)
	}
	r.model.stats.Sequences++
	r.sequences = append(r.sequences, fork)
	return nil
}

func (r *run) truncate(s *sequence) error {
	n := r.rng.IntN(len(s.tokens) + 1)
	keep := shape.Pages(n)
	r.model.release(s.pages[keep:])
	s.tokens, s.pages = s.tokens[:n], s.pages[:keep]
	return s.s.Truncate(n)
}

func (r *run) close(i int) error {
	s := r.sequences[i]
	s.s.Close()
	s.s.Close()
	r.model.release(s.pages)
	for _, g := range s.segments {
		r.model.ref(g.doc, -1)
	}
	r.model.stats.Sequences--
	r.sequences = slices.Delete(r.sequences, i, i+1)
	if err := s.s.Extend(1); !errors.Is(err, kvcache.ErrClosed) {
		return fmt.Errorf("extend of a closed sequence: %v", err)
	}
	return nil
}

// idle is the error that evicting and dropping want.
func (r *run) idle(doc int) error {
	switch c := r.model.chunks[doc]; {
	case c == nil:
		return kvcache.ErrUnknown
	case c.refs > 0 || c.pinned:
		return kvcache.ErrInUse
	}
	return nil
}

func (r *run) evict(doc int) error {
	want := r.idle(doc)
	if err := r.cache.Evict(r.id(doc)); !errors.Is(err, want) {
		return fmt.Errorf("error %v, want %v", err, want)
	}
	if want == nil && r.model.chunks[doc].resident {
		r.model.evict(doc)
	}
	return nil
}

func (r *run) drop(doc int) error {
	want := r.idle(doc)
	if err := r.cache.Drop(r.id(doc)); !errors.Is(err, want) {
		return fmt.Errorf("error %v, want %v", err, want)
	}
	if want == nil {
		r.model.drop(doc)
	}
	return nil
}
