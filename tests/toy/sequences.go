package toy

import (
	"slices"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

func (p *Player) open() error {
	p.Counts["open"]++
	placements, segments, own, err := p.placements(0, 5)
	if err != nil {
		return err
	}
	defer release(placements)
	l := &live{Request: Request{Segments: segments, Offset: own.want}}
	if l.Sequence, err = p.Engine.Open(placements, own.given); err != nil {
		return err
	}
	p.live = append(p.live, l)
	return nil
}

// place has a sequence go on with further documents.
func (p *Player) place() error {
	if len(p.live) == 0 {
		return p.open()
	}
	p.Counts["place"]++
	l := p.live[p.rng.IntN(len(p.live))]
	next := l.Next()
	placements, segments, own, err := p.placements(next, 3)
	if err != nil {
		return err
	}
	defer release(placements)
	if !slices.Contains(p.live, l) { // closed to make room
		return nil
	}
	if err := l.Sequence.Place(placements, own.given); err != nil {
		return err
	}
	l.Request.Place(segments...)
	l.Offset = own.want
	return nil
}

// offset is one as it is given, and the position that it must mean.
type offset struct{ given, want int }

// placements registers fewer than n documents, to stand behind position next.
func (p *Player) placements(next, n int) (placements []kvcache.Placement, segments []Placed, own offset, err error) {
	end := next
	for range p.rng.IntN(n) {
		d := p.docs[p.rng.IntN(len(p.docs))]
		c, err := p.Engine.Register(p.ctx, d, p.Encode(d))
		if err != nil {
			if out, err := p.out(err); !out {
				release(placements)
				return nil, nil, own, err
			}
			continue
		}
		at := kvcache.Packed
		if p.rng.IntN(3) == 0 {
			next = p.rng.IntN(500)
			at = next
		}
		placements = append(placements, kvcache.Placement{Chunk: c, Offset: at})
		segments = append(segments, Placed{Tokens: d, Offset: next})
		next += len(d)
		end = max(end, next)
	}
	if p.rng.IntN(4) == 0 {
		at := p.rng.IntN(600)
		return placements, segments, offset{at, at}, nil
	}
	return placements, segments, offset{kvcache.Packed, end}, nil
}

func release(placements []kvcache.Placement) {
	for _, placed := range placements {
		placed.Chunk.Release()
	}
}

func (p *Player) fork() error {
	if len(p.live) == 0 {
		return nil
	}
	p.Counts["fork"]++
	l := p.live[p.rng.IntN(len(p.live))]
	s, err := l.Fork()
	if err != nil {
		return err
	}
	fork := &live{Sequence: s, Request: l.Request}
	fork.Own = slices.Clone(l.Own)
	p.live = append(p.live, fork)
	return nil
}

func (p *Player) truncate() error {
	if len(p.live) == 0 {
		return nil
	}
	p.Counts["truncate"]++
	l := p.live[p.rng.IntN(len(p.live))]
	n := p.rng.IntN(l.Tokens() + 1)
	if n < l.Before() {
		p.Counts["place taken back"]++
	}
	l.Request.Truncate(n)
	return l.Sequence.Truncate(n)
}

// CloseAll closes sequences until at most so many are left.
func (p *Player) CloseAll(left int) error {
	for len(p.live) > left {
		p.Counts["close"]++
		i := p.rng.IntN(len(p.live))
		if err := p.live[i].Close(); err != nil {
			return err
		}
		p.live = slices.Delete(p.live, i, i+1)
	}
	return nil
}
