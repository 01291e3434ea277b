package serve_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
)

// live is a sequence and what it must hold.
type live struct {
	*serve.Sequence
	request
}

// player does random operations and holds what they give to the oracle.
type player struct {
	*bench
	rng     *rand.Rand
	docs    [][]int32
	live    []*live
	alone   bool       // nobody else uses the engine
	graph   *recording // nil: none
	counts  map[string]int
	context context.Context
}

var errWanted = errors.New("wanted")

// one does one operation.
func (p *player) one() error {
	switch n := p.rng.IntN(100); {
	case n < 12:
		return p.open()
	case n < 15:
		return p.failedEncode()
	case n < 70:
		return p.step(false)
	case n < 76 && p.graph != nil:
		return p.step(true)
	case n < 82:
		return p.fork()
	case n < 88:
		return p.truncate()
	case n < 96:
		return p.close(p.rng.IntN(8))
	case n < 98:
		return p.evict()
	default:
		return p.cancelled()
	}
}

// out says whether an operation that failed ran out of pages, and makes room.
func (p *player) out(err error) (bool, error) {
	if !errors.Is(err, serve.ErrNoPages) {
		return false, err
	}
	p.counts["out of pages"]++
	return true, p.close(0)
}

func (p *player) open() error {
	p.counts["open"]++
	l := &live{}
	var placements []kvcache.Placement
	next, end := 0, 0
	for range p.rng.IntN(5) {
		d := p.docs[p.rng.IntN(len(p.docs))]
		c, err := p.engine.Register(p.context, d, p.encode(d))
		if err != nil {
			if out, err := p.out(err); !out {
				return err
			}
			continue
		}
		defer c.Release()
		offset := kvcache.Packed
		if p.rng.IntN(3) == 0 {
			offset = p.rng.IntN(500)
			next = offset
		}
		placements = append(placements, kvcache.Placement{Chunk: c, Offset: offset})
		l.segments = append(l.segments, placed{d, next})
		next += len(d)
		end = max(end, next)
	}
	own := kvcache.Packed
	if l.offset = end; p.rng.IntN(4) == 0 {
		own = p.rng.IntN(600)
		l.offset = own
	}
	var err error
	if l.Sequence, err = p.engine.Open(placements, own); err != nil {
		return err
	}
	p.live = append(p.live, l)
	return nil
}

func (p *player) failedEncode() error {
	p.counts["failed encode"]++
	d := document(p.rng.Uint64(), 1+p.rng.IntN(30)) // one that nobody knows
	before := p.engine.Cache().Stats().Chunks
	_, err := p.engine.Register(p.context, d, func(ctx context.Context, s *serve.Step) error {
		if p.rng.IntN(2) == 0 {
			return nil // no layer was attended
		}
		return errWanted
	})
	switch {
	case errors.Is(err, serve.ErrNoPages):
		_, err = p.out(err)
		return err
	case !errors.Is(err, errWanted) && !errors.Is(err, serve.ErrIncomplete):
		return fmt.Errorf("a failed encode gives %v", err)
	}
	// To make room, others may have been evicted.
	if after := p.engine.Cache().Stats().Chunks; p.alone && after > before {
		return fmt.Errorf("%d chunks after a failed encode, %d before", after, before)
	}
	return nil
}

func (p *player) step(graphed bool) error {
	if len(p.live) == 0 {
		return p.open()
	}
	order := p.rng.Perm(len(p.live))[:1+p.rng.IntN(min(6, len(p.live)))]
	var batch []serve.Entry
	var tokens []int32
	var before []int
	for _, i := range order {
		n := 1
		switch p.rng.IntN(6) {
		case 0:
			n = 1 + p.rng.IntN(4)
		case 1:
			if !graphed {
				n = 1 + p.rng.IntN(24)
			}
		}
		if graphed && len(tokens)+n > graphTokens {
			break
		}
		batch = append(batch, serve.Entry{Sequence: p.live[i].Sequence, Tokens: n})
		tokens = append(tokens, document(p.rng.Uint64(), n)...)
		before = append(before, p.live[i].Tokens())
	}
	unchanged := func() error {
		for i, entry := range batch {
			if n := entry.Sequence.Tokens(); n != before[i] {
				return fmt.Errorf("%d own tokens after a step that is undone, %d before", n, before[i])
			}
		}
		return nil
	}
	if !graphed && p.rng.IntN(8) == 0 {
		p.counts["abort"]++
		s, err := p.engine.Schedule(p.context, batch)
		if err != nil {
			_, err = p.out(err)
			return err
		}
		if p.rng.IntN(2) == 0 {
			if _, err := p.forward(p.context, s, tokens); err != nil {
				return err
			}
		}
		s.Abort()
		return unchanged()
	}
	run := p.bench.step
	p.counts["step"]++
	if graphed {
		p.counts["graph step"]++
		run = p.graph.step
	}
	outs, err := run(p.context, batch, tokens)
	if err != nil {
		if err := unchanged(); err != nil {
			return err
		}
		_, err = p.out(err)
		return err
	}
	row := 0
	for i, entry := range batch {
		l := p.live[order[i]]
		l.own = append(l.own, tokens[row:row+entry.Tokens]...)
		if err := p.compare(&l.request, entry.Tokens, outs, row); err != nil {
			return fmt.Errorf("sequence of %d segments and %d own tokens: %w", len(l.segments), len(l.own), err)
		}
		row += entry.Tokens
		if l.Tokens() != len(l.own) || l.Next() != l.offset+len(l.own) {
			return fmt.Errorf("%d own tokens, next %d, want %d and %d", l.Tokens(), l.Next(), len(l.own), l.offset+len(l.own))
		}
	}
	return nil
}

func (p *player) fork() error {
	if len(p.live) == 0 {
		return nil
	}
	p.counts["fork"]++
	l := p.live[p.rng.IntN(len(p.live))]
	s, err := l.Fork()
	if err != nil {
		return err
	}
	fork := &live{Sequence: s, request: l.request}
	fork.own = slices.Clone(l.own)
	p.live = append(p.live, fork)
	return nil
}

func (p *player) truncate() error {
	if len(p.live) == 0 {
		return nil
	}
	p.counts["truncate"]++
	l := p.live[p.rng.IntN(len(p.live))]
	n := p.rng.IntN(len(l.own) + 1)
	l.own = l.own[:n:n]
	return l.Truncate(n)
}

// close closes sequences until at most so many are left.
func (p *player) close(left int) error {
	for len(p.live) > left {
		p.counts["close"]++
		i := p.rng.IntN(len(p.live))
		if err := p.live[i].Close(); err != nil {
			return err
		}
		p.live = slices.Delete(p.live, i, i+1)
	}
	return nil
}

func (p *player) evict() error {
	p.counts["evict"]++
	cache := p.engine.Cache()
	id := cache.Key(kvcache.Document{Tokens: p.docs[p.rng.IntN(len(p.docs))]}).ID()
	err := cache.Evict(id)
	if p.rng.IntN(2) == 0 {
		err = cache.Drop(id)
	}
	if errors.Is(err, kvcache.ErrInUse) || errors.Is(err, kvcache.ErrUnknown) {
		return nil
	}
	return err
}

func (p *player) cancelled() error {
	if len(p.live) == 0 {
		return nil
	}
	p.counts["cancel"]++
	ctx, cancel := context.WithCancel(p.context)
	cancel()
	l := p.live[0]
	if _, err := p.engine.Schedule(ctx, []serve.Entry{{Sequence: l.Sequence, Tokens: 1}}); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a cancelled schedule gives %v", err)
	}
	d := p.docs[0]
	if _, err := p.engine.Register(ctx, d, p.encode(d)); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a cancelled register gives %v", err)
	}
	return nil
}

// finish closes everything and looks for what is left.
func (p *player) finish() error {
	if err := p.close(0); err != nil {
		return err
	}
	for _, d := range p.docs {
		cache := p.engine.Cache()
		if err := cache.Drop(cache.Key(kvcache.Document{Tokens: d}).ID()); err != nil && !errors.Is(err, kvcache.ErrUnknown) {
			return err
		}
	}
	return nil
}

const graphTokens = 6

// randomModel makes short steps on the CPU.
func randomModel() serve.Model {
	m := smallModel()
	m.Layers, m.KVHeads = 1, 1
	return m
}

func documents() [][]int32 {
	var docs [][]int32
	for i := range 10 {
		docs = append(docs, document(uint64(1000+i), 1+i*i/2))
	}
	return docs
}

// Random operations from a seed give what the oracle gives, whatever runs out or
// fails, and leave nothing. KGEN_SERVE_OPERATIONS says how many.
func TestRandomOperations(t *testing.T) {
	operations := 10000
	if s := os.Getenv("KGEN_SERVE_OPERATIONS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		operations = n
	}
	const seed = 1
	b := newBench(t, randomModel(), serve.Options{Pages: 120, HostBytes: 20 * 160})
	p := &player{bench: b, alone: true, rng: rand.New(rand.NewPCG(seed, 4)), docs: documents(), counts: map[string]int{}, context: t.Context()}
	var err error
	if p.graph, err = b.record(t.Context(), serve.GraphSize{Tokens: graphTokens, Segments: 40}); err != nil {
		t.Fatal(err)
	}
	defer p.graph.free()
	for i := range operations {
		if err := p.one(); err != nil {
			t.Fatalf("seed %d, operation %d: %v", seed, i, err)
		}
	}
	if err := p.finish(); err != nil {
		t.Fatal(err)
	}
	s := b.engine.Cache().Stats()
	if s.PagesUsed != 0 || s.Sequences != 0 || s.Chunks != 0 {
		t.Errorf("left over: %+v", s)
	}
	t.Logf("%v, %+v", p.counts, s)
	for _, name := range []string{"step", "graph step", "abort", "fork", "truncate", "out of pages", "failed encode", "cancel"} {
		if p.counts[name] == 0 {
			t.Errorf("no %s in %d operations", name, operations)
		}
	}
}

// Many goroutines on one engine, each with sequences of its own and documents
// that all share.
func TestGoroutines(t *testing.T) {
	const goroutines, operations = 8, 150
	b := newBench(t, randomModel(), serve.Options{Pages: 400, HostBytes: 100 * 160})
	docs := documents()
	var group sync.WaitGroup
	for i := range goroutines {
		group.Go(func() {
			p := &player{bench: b, rng: rand.New(rand.NewPCG(uint64(i), 5)), docs: docs, counts: map[string]int{}, context: t.Context()}
			for n := range operations {
				if err := p.one(); err != nil {
					t.Errorf("goroutine %d, operation %d: %v", i, n, err)
					break
				}
			}
			if err := p.close(0); err != nil {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	group.Go(func() { // what a server's other goroutines do
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			if g, err := b.record(t.Context(), serve.GraphSize{Tokens: 2}); err != nil {
				t.Error(err)
			} else {
				if err := g.Close(t.Context()); err != nil {
					t.Error(err)
				}
				g.free()
			}
		}
	})
	time.AfterFunc(500*time.Millisecond, func() { close(done) })
	group.Wait()
	if s := b.engine.Cache().Stats(); s.Sequences != 0 || s.PagesUsed != s.PagesEvictable {
		t.Errorf("left over: %+v", s)
	}
}
