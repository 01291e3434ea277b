package serve

import (
	"fmt"
	"sync/atomic"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

// Sequence is a request: chunks at their offsets and its own tokens behind
// them. While it is in a step, its methods but Tokens and Next fail with
// [ErrBusy].
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
// copied but, when one of the two goes on, a last page that is not full.
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

// Truncate leaves the first n own tokens.
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
