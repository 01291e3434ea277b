package toy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
)

// live is a sequence and what it must hold.
type live struct {
	*serve.Sequence
	Request
}

// Player does random operations and holds what they give to the oracle.
type Player struct {
	*Bench
	Counts map[string]int // operations of each sort

	ctx   context.Context
	rng   *rand.Rand
	docs  [][]int32
	live  []*live
	graph *Recording // nil: none
	alone bool
}

// NewPlayer returns a player whose operations follow from the seed. graph may be
// nil, and is of GraphTokens. alone says that nobody else uses the engine.
func NewPlayer(ctx context.Context, b *Bench, seed uint64, graph *Recording, alone bool) *Player {
	return &Player{
		Bench: b, Counts: map[string]int{}, ctx: ctx, rng: rand.New(rand.NewPCG(seed, 4)), docs: Documents(), graph: graph, alone: alone,
	}
}

var errWanted = errors.New("wanted")

// Operation does one.
func (p *Player) Operation() error {
	switch n := p.rng.IntN(100); {
	case n < 12:
		return p.open()
	case n < 15:
		return p.failedEncode()
	case n < 70:
		return p.step(false)
	case n < 76 && p.graph != nil:
		return p.step(true)
	case n < 81:
		return p.fork()
	case n < 84:
		return p.place()
	case n < 88:
		return p.truncate()
	case n < 96:
		return p.CloseAll(p.rng.IntN(8))
	case n < 98:
		return p.evict()
	default:
		return p.cancelled()
	}
}

// out says whether an operation that failed ran out of pages, and makes room.
func (p *Player) out(err error) (bool, error) {
	if !errors.Is(err, serve.ErrNoPages) {
		return false, err
	}
	p.Counts["out of pages"]++
	return true, p.CloseAll(0)
}

func (p *Player) failedEncode() error {
	p.Counts["failed encode"]++
	d := Document(p.rng.Uint64(), 5+p.rng.IntN(30)) // one that nobody knows
	before := p.Engine.Cache().Stats().Chunks
	_, err := p.Engine.Register(p.ctx, d, func(ctx context.Context, s *serve.Step) error {
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
		return fmt.Errorf("a failed encode gives %w", err)
	}
	// To make room, others may have been evicted.
	if after := p.Engine.Cache().Stats().Chunks; p.alone && after > before {
		return fmt.Errorf("%d chunks after a failed encode, %d before", after, before)
	}
	return nil
}

func (p *Player) step(graphed bool) error {
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
		if graphed && len(tokens)+n > GraphTokens {
			break
		}
		batch = append(batch, serve.Entry{Sequence: p.live[i].Sequence, Tokens: n})
		tokens = append(tokens, Document(p.rng.Uint64(), n)...)
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
		p.Counts["abort"]++
		s, err := p.Engine.Schedule(p.ctx, batch)
		if err != nil {
			_, err = p.out(err)
			return err
		}
		defer s.Abort()
		if p.rng.IntN(2) == 0 {
			if _, err := p.Forward(p.ctx, s, tokens); err != nil {
				return err
			}
		}
		s.Abort()
		return unchanged()
	}
	run := p.Bench.Step
	p.Counts["step"]++
	if graphed {
		p.Counts["graph step"]++
		run = p.graph.Step
	}
	outs, err := run(p.ctx, batch, tokens)
	if err != nil {
		if err := unchanged(); err != nil {
			return err
		}
		if graphed && p.segments(batch, order) > GraphSegments && errors.Is(err, serve.ErrFixedSize) {
			p.Counts["too large for the graph"]++
			return nil
		}
		_, err = p.out(err)
		return err
	}
	row := 0
	for i, entry := range batch {
		l := p.live[order[i]]
		l.Own = append(l.Own, tokens[row:row+entry.Tokens]...)
		if err := p.Compare(&l.Request, entry.Tokens, outs, row); err != nil {
			return fmt.Errorf("sequence of %d segments and %d own tokens: %w", len(l.Segments), len(l.Own), err)
		}
		row += entry.Tokens
		if n := l.Before() + len(l.Own); l.Tokens() != n || l.Next() != l.Offset+len(l.Own) {
			return fmt.Errorf("%d own tokens, next %d, want %d and %d", l.Tokens(), l.Next(), n, l.Offset+len(l.Own))
		}
	}
	return nil
}

// segments is what a step of the batch needs of GraphSegments.
func (p *Player) segments(batch []serve.Entry, order []int) (n int) {
	for i, entry := range batch {
		n += entry.Tokens * (len(p.live[order[i]].Segments) + 1)
	}
	return n
}

func (p *Player) evict() error {
	p.Counts["evict"]++
	cache := p.Engine.Cache()
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

func (p *Player) cancelled() error {
	if len(p.live) == 0 {
		return nil
	}
	p.Counts["cancel"]++
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	l := p.live[0]
	if _, err := p.Engine.Schedule(ctx, []serve.Entry{{Sequence: l.Sequence, Tokens: 1}}); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a cancelled schedule gives %w", err)
	}
	d := p.docs[0]
	if _, err := p.Engine.Register(ctx, d, p.Encode(d)); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a cancelled register gives %w", err)
	}
	return nil
}

// Finish closes all sequences and drops all documents.
func (p *Player) Finish() error {
	if err := p.CloseAll(0); err != nil {
		return err
	}
	for _, d := range p.docs {
		cache := p.Engine.Cache()
		if err := cache.Drop(cache.Key(kvcache.Document{Tokens: d}).ID()); err != nil && !errors.Is(err, kvcache.ErrUnknown) {
			return err
		}
	}
	return nil
}

// GraphTokens and GraphSegments are the size of the graph that a player may have.
const GraphTokens, GraphSegments = 6, 40

// Tiny makes short steps on the CPU.
func Tiny() serve.Model {
	m := Small()
	m.Layers, m.KVHeads = 1, 1
	return m
}

// Documents are what a player registers.
func Documents() [][]int32 {
	var docs [][]int32
	for i := range 10 {
		docs = append(docs, Document(uint64(1000+i), 1+i*i/2))
	}
	return docs
}
