package serve

import (
	"fmt"
	"sync/atomic"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

// Sequence is a request: chunks at their offsets and its own tokens, behind them
// or, by [Sequence.Place], between them. While it is in a step, its methods but Tokens
// and Next fail with [ErrBusy]; so does one of two that are called at the same time.
type Sequence struct {
	engine *Engine
	kv     *kvcache.Sequence
	busy   atomic.Bool
}

// Tokens is the number of own tokens, those of an open step included.
func (s *Sequence) Tokens() int { return s.kv.Tokens() }

// Next is the position of the next own token.
func (s *Sequence) Next() int { return s.kv.Next() }

// Fork returns a sequence with the same segments and own tokens. Nothing is
// copied but, when one of the two goes on, a last page that is not full. Own tokens
// before the last [Sequence.Place] are as a chunk that both hold: with Place(nil,
// kvcache.Packed) before the forks of a long prompt, shared decode reads it once.
func (s *Sequence) Fork() (*Sequence, error) {
	if err := s.claim(); err != nil {
		return nil, fmt.Errorf("serve: fork: %w", err)
	}
	defer s.unclaim()
	kv, err := s.kv.Fork()
	if err != nil {
		return nil, fmt.Errorf("serve: fork: %w", err)
	}
	return &Sequence{engine: s.engine, kv: kv}, nil
}

// Place puts further chunks behind the own tokens that there are, such as what an
// agent's tool has found or the documents of a conversation's next turn. The tokens
// of later steps see all of it, each chunk as it was encoded: alone. Offsets and own,
// the position of the next own token, are as in [Engine.Open], but that
// kvcache.Packed is behind the own tokens. See [kvcache.Sequence.Place].
func (s *Sequence) Place(placements []kvcache.Placement, own int) error {
	if err := s.claim(); err != nil {
		return fmt.Errorf("serve: place: %w", err)
	}
	defer s.unclaim()
	if err := s.engine.checkBaked(placements, s.kv.Next()); err != nil {
		return fmt.Errorf("serve: place: %w", err)
	}
	if err := s.kv.Place(placements, own); err != nil {
		return fmt.Errorf("serve: place: %w", err)
	}
	return nil
}

// Truncate leaves the first n own tokens. A chunk that was placed behind a token
// that goes, goes too.
func (s *Sequence) Truncate(n int) error {
	if err := s.claim(); err != nil {
		return fmt.Errorf("serve: truncate: %w", err)
	}
	defer s.unclaim()
	if err := s.kv.Truncate(n); err != nil {
		return fmt.Errorf("serve: truncate: %w", err)
	}
	return nil
}

// Close gives up the sequence's pages and its holds on chunks. A second call
// does nothing.
func (s *Sequence) Close() error {
	if err := s.claim(); err != nil {
		return fmt.Errorf("serve: close the sequence: %w", err)
	}
	defer s.unclaim()
	s.kv.Close()
	return nil
}

// claim takes the sequence for one who changes it.
func (s *Sequence) claim() error {
	if !s.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("the sequence: %w", ErrBusy)
	}
	return nil
}

func (s *Sequence) unclaim() { s.busy.Store(false) }
