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
	copied    struct {
		number uint64
		pages  []int32
	} // the table's, of which each step copies what has changed
	layouts   map[uint64]string // what sequences of a layout hold
	placed    map[uint64]string // and with which pages those of a place stand
	token     int32             // the last own token that was written
	refused   int               // operations that were out of pages
	restarts  int
	restores  int64 // of the caches before this one, as are the next two
	drops     int64
	copies    int64
	places    int64
	truncated int64 // places that a truncation took back
}

type handle struct {
	chunk *kvcache.Chunk
	doc   int
}

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
	r.layouts, r.placed = map[uint64]string{}, map[uint64]string{}
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
	var total [7]int64
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
				total[5] += r.places
				total[6] += r.truncated
			})
		}
	}
	t.Logf("%d refused, %d restarts, %d restores, %d drops from the host tier, %d page copies, %d places, %d taken back",
		total[0], total[1], total[2], total[3], total[4], total[5], total[6])
	if slices.Min(total[:]) < 100 {
		t.Error("too gentle")
	}
}

// step does one thing to both.
func (r *run) step() (string, error) {
	for {
		switch r.rng.IntN(17) {
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
		case 16:
			if len(r.sequences) > 0 {
				return "place", r.place(r.sequences[r.rng.IntN(len(r.sequences))])
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
