package kvcache

import (
	"errors"
	"fmt"
)

// Kinds of failure that callers tell apart with errors.Is. Whatever fails
// leaves the cache as it was, but for idle chunks that were evicted to make
// room before a copy failed, or for other sequences of the batch.
var (
	ErrNoPages  = errors.New("out of pages") // always a *NoPagesError
	ErrClosed   = errors.New("closed")
	ErrReleased = errors.New("the chunk was released")
	ErrInUse    = errors.New("the chunk is in use or pinned")
	ErrUnknown  = errors.New("no such chunk")
	ErrPosition = errors.New("position out of range")
	ErrDamaged  = errors.New("the file is damaged or cut short")
	ErrVersion  = errors.New("the file is of another version")
	ErrMismatch = errors.New("the file is of another model, spec, encoding or shape")
)

// NoPagesError says how many pages an operation needs and how many it could
// have had. errors.Is(err, ErrNoPages) holds for it.
type NoPagesError struct {
	Needed    int // pages that the operation needs
	Free      int // pages that nobody holds
	Evictable int // pages of chunks that could be evicted
	Total     int // pages of the pool, and for Load those of the host tier
}

func (e *NoPagesError) Error() string {
	return fmt.Sprintf("%v: %d needed, %d free and %d evictable of %d; close sequences, release or unpin chunks, or make the pool larger",
		ErrNoPages, e.Needed, e.Free, e.Evictable, e.Total)
}

// Is makes every NoPagesError an [ErrNoPages].
func (e *NoPagesError) Is(target error) bool { return target == ErrNoPages }
