package kvcache

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
)

// entry is a chunk of the registry, or own tokens of a sequence and its forks.
type entry struct {
	id     ID
	slot   int32  // number among the entries there are, reused
	serial uint64 // of this residence on the device, never reused
	tokens int32
	pages  []int32 // on the device; nil: not there
	host   []int32 // in the host tier; nil: not there
	refs   int     // handles and segments of sequences; it is on the device while there are any
	pinned bool    // it is on the device while it is
	own    bool    // in no registry: gone with the last of refs

	flight  *flight // not nil while it is encoded
	readers int     // who copies its pages and must find them in place
	used    uint64  // when it was last acquired or let go of

	listed   bool          // the policy may choose it
	hostList *list.List    // of the host tier's two, that which has it
	hostItem *list.Element // of hostList
}

// flight is one encode, and those who wait for it.
type flight struct {
	waiters int
	cancel  context.CancelFunc
	done    chan struct{} // closed when err and the entry are settled
	err     error
}

// Encode writes the KV of a chunk's tokens to its pages, in all layers: token
// t goes to place t % PageSize of pages[t / PageSize]. It may return when that
// is queued on [Config.Stream]. It runs on a goroutine of its own; ctx carries
// the values of the first caller's context and ends when nobody waits for the
// chunk any more, or the cache is closed. Where it panics, the panic is its error.
type Encode func(ctx context.Context, pages []int32) error

// Chunk is a hold on an encoded document: while it is held, the chunk stays
// on the device.
type Chunk struct {
	cache    *Cache
	entry    *entry
	released bool
}

// ID names the chunk.
func (h *Chunk) ID() ID { return h.entry.id }

// Tokens is the length of the chunk.
func (h *Chunk) Tokens() int { return int(h.entry.tokens) }

// Pages appends the chunk's pages, in order.
func (h *Chunk) Pages(dst []int32) ([]int32, error) {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	if err := h.check(); err != nil {
		return dst, fmt.Errorf("kvcache: %w", err)
	}
	return append(dst, h.entry.pages...), nil
}

// Release gives up this hold; sequences keep their own. A second call does
// nothing.
func (h *Chunk) Release() {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	if h.released {
		return
	}
	h.released = true
	h.cache.unref(h.entry)
}

// Pin keeps the chunk on the device though nobody holds it, until Unpin, by this
// hold or another. A chunk is pinned or not: pins don't count.
func (h *Chunk) Pin() error { return h.setPinned(true) }

// Unpin ends Pin.
func (h *Chunk) Unpin() error { return h.setPinned(false) }

func (h *Chunk) setPinned(pinned bool) error {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	if err := h.check(); err != nil {
		return fmt.Errorf("kvcache: %w", err)
	}
	if h.entry.pinned != pinned {
		h.entry.pinned = pinned
		if pinned {
			h.cache.pinned++
		} else {
			h.cache.pinned--
		}
	}
	return nil
}

func (h *Chunk) check() error {
	switch {
	case h.cache.closed:
		return ErrClosed
	case h.released:
		return fmt.Errorf("chunk %v: %w", h.entry.id, ErrReleased)
	}
	return nil
}

// Key is the key that the cache gives a document.
func (c *Cache) Key(d Document) ChunkKey {
	return ChunkKey{Model: c.config.Model, Spec: c.config.Spec, Encoding: c.config.Encoding, Document: d}
}

// Acquire returns a hold on the document's chunk, and calls encode if there is
// none yet. Of all the callers that ask for one document at a time, one call of
// encode is made; if it fails, all get its error and nothing of it is left. A
// caller whose context ends gives up alone: the encode goes on for the others,
// and is cancelled and its result discarded when the last one has given up.
func (c *Cache) Acquire(ctx context.Context, d Document, encode Encode) (*Chunk, error) {
	if err := c.checkDocument(d); err != nil {
		return nil, fmt.Errorf("kvcache: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("kvcache: %w", err)
	}
	id := c.Key(d).ID()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("kvcache: %w", ErrClosed)
	}
	if encode == nil {
		return nil, fmt.Errorf("kvcache: chunk %v: encode is nil, want a function; Get takes a chunk that there is", id)
	}
	e := c.chunks[id]
	switch {
	case e == nil:
		pages, err := c.take(nil, c.config.Shape.Pages(len(d.Tokens)))
		if err != nil {
			return nil, fmt.Errorf("kvcache: a chunk of %d tokens: %w", len(d.Tokens), err)
		}
		c.stats.Misses++
		e = c.add(id, int32(len(d.Tokens)))
		c.place(e, pages)
		c.start(ctx, e, encode)
	case e.flight != nil:
		c.stats.Joins++
	default:
		return c.hold(e)
	}
	return c.wait(ctx, e)
}

// Get returns a hold on a chunk that there is; [ErrUnknown] if there is none.
func (c *Cache) Get(ctx context.Context, id ID) (*Chunk, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("kvcache: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("kvcache: %w", ErrClosed)
	}
	e := c.chunks[id]
	switch {
	case e == nil:
		return nil, fmt.Errorf("kvcache: chunk %v: %w", id, ErrUnknown)
	case e.flight != nil:
		c.stats.Joins++
		return c.wait(ctx, e)
	}
	return c.hold(e)
}

// Drop forgets a chunk that nobody holds and that is not pinned.
func (c *Cache) Drop(id ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, err := c.idle(id)
	if err != nil {
		return err
	}
	c.forget(e)
	return nil
}

// Evict moves a chunk that nobody holds and that is not pinned off the device:
// to the host tier, or away if there is none.
func (c *Cache) Evict(id ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, err := c.idle(id)
	if err != nil || e.pages == nil {
		return err
	}
	if err := c.evict(e); err != nil {
		return fmt.Errorf("kvcache: %w", err)
	}
	return nil
}

func (c *Cache) idle(id ID) (*entry, error) {
	if c.closed {
		return nil, fmt.Errorf("kvcache: %w", ErrClosed)
	}
	e := c.chunks[id]
	switch {
	case e == nil:
		return nil, fmt.Errorf("kvcache: chunk %v: %w", id, ErrUnknown)
	case e.flight != nil || e.refs > 0 || e.pinned || e.readers > 0:
		return nil, fmt.Errorf("kvcache: chunk %v: %w", id, ErrInUse)
	}
	return e, nil
}

func (c *Cache) checkDocument(d Document) error {
	if len(d.Tokens) == 0 {
		return errors.New("a chunk of no tokens")
	}
	if len(d.Tokens) > c.config.MaxPosition {
		return fmt.Errorf("%w: a chunk of %d tokens, want at most %d", ErrPosition, len(d.Tokens), c.config.MaxPosition)
	}
	last := int32(0)
	for _, b := range d.Boundaries {
		if b <= last || int(b) >= len(d.Tokens) {
			return fmt.Errorf("boundary %d of a chunk of %d tokens: want them ascending, within 1 to %d", b, len(d.Tokens), len(d.Tokens)-1)
		}
		last = b
	}
	return nil
}

// start encodes a new entry on a goroutine of its own.
func (c *Cache) start(ctx context.Context, e *entry, encode Encode) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{cancel: cancel, done: make(chan struct{}), err: errors.New("encode did not return")}
	e.flight = f
	pages := slices.Clone(e.pages)
	c.working.Add(1)
	go func() {
		defer c.working.Done()
		defer cancel()
		defer c.land(e, f)
		f.err = encode.call(ctx, pages)
	}()
}

// call makes a panic an error.
func (encode Encode) call(ctx context.Context, pages []int32) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("encode panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return encode(ctx, pages)
}

// land ends a flight: its waiters get their holds, or the error.
func (c *Cache) land(e *entry, f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(f.done)
	e.flight = nil
	switch {
	case c.closed:
		f.err = fmt.Errorf("kvcache: encode chunk %v: %w", e.id, ErrClosed)
	case f.err != nil:
		c.stats.EncodeFailures++
		f.err = fmt.Errorf("kvcache: encode chunk %v: %w", e.id, f.err)
	default:
		c.stats.Encodes++
	}
	if f.err == nil && f.waiters > 0 {
		e.refs = f.waiters
		c.touch(e)
		return
	}
	c.leave(e)
	if c.chunks[e.id] == e { // else the last waiter took it away
		c.unregister(e)
	}
}

// wait waits for the entry's flight. The lock is held when it is called and
// when it returns, and not in between.
func (c *Cache) wait(ctx context.Context, e *entry) (*Chunk, error) {
	f := e.flight
	f.waiters++
	c.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
	}
	c.mu.Lock()
	err := ctx.Err()
	landed := e.flight != f
	switch {
	case landed && f.err != nil:
		return nil, f.err
	case landed && err == nil:
		return &Chunk{cache: c, entry: e}, nil
	case landed:
		c.unref(e)
	default:
		if f.waiters--; f.waiters == 0 {
			f.cancel()
			c.unregister(e) // who comes now starts afresh
		}
	}
	return nil, fmt.Errorf("kvcache: wait for chunk %v: %w", e.id, err)
}
