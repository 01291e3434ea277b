package kvcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// Config is what a cache holds, and how much of it.
type Config struct {
	// Model, Spec and Encoding are part of every chunk's identity: see [ChunkKey].
	Model, Spec, Encoding string

	Shape       Shape
	Pages       int         // of the pool; Shape.PageBytes each
	MaxPosition int         // positions stay below it; 0: no limit
	Stream      cuda.Stream // that the cache's copies are queued on
	HostBytes   int64       // limit of the host tier; 0: evicted chunks are lost
	Policy      Policy      // of eviction from the device; nil: NewLRU()
}

// Cache is the KV on one device.
type Cache struct {
	config Config
	pool   *pool
	host   *hostTier

	mu        sync.Mutex
	closed    bool
	chunks    map[ID]*entry
	slots     []int32 // free numbers of entries
	numbered  int32   // entries have numbers below it
	serial    uint64  // of the last residence
	numbers   uint64  // so far: see newNumber
	evictable int     // pages that eviction could free
	pinned    int
	sequences int
	unshared  int            // as in Stats
	clock     uint64         // of entry.used
	working   sync.WaitGroup // encodes, persisting and loading
	stats     Stats          // counters alone
}

// New allocates the pool on the device. [Cache.Close] gives it back.
func New(d cuda.Device, c Config) (*Cache, error) {
	if c.MaxPosition == 0 {
		c.MaxPosition = math.MaxInt32
	}
	if c.Policy == nil {
		c.Policy = NewLRU()
	}
	err := c.Shape.check()
	switch {
	case err != nil:
	case c.MaxPosition < 1 || c.MaxPosition > math.MaxInt32:
		err = fmt.Errorf("MaxPosition is %d, want 1 to %d", c.MaxPosition, math.MaxInt32)
	case c.HostBytes < 0:
		err = fmt.Errorf("HostBytes is %d, want at least 0", c.HostBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("kvcache: %w", err)
	}
	p, err := newPool(d, c.Shape, c.Pages)
	if err != nil {
		return nil, fmt.Errorf("kvcache: %w", err)
	}
	return &Cache{config: c, pool: p, host: newHostTier(p.copier, c.Shape.PageBytes(), c.HostBytes), chunks: map[ID]*entry{}}, nil
}

// Config is what the cache was made with, defaults filled in.
func (c *Cache) Config() Config { return c.config }

// Layer says where the pages of a layer, counted from 0, begin.
func (c *Cache) Layer(layer int) Layer { return c.pool.layer(layer) }

// Close cancels the encodes under way and waits for them and for whoever
// persists or loads, waits for the stream, and frees the memory. Sequences and
// chunks that are still held are worth nothing afterwards: their methods fail
// with [ErrClosed].
func (c *Cache) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("kvcache: %w", ErrClosed)
	}
	c.closed = true
	for _, e := range c.chunks {
		if e.flight != nil {
			e.flight.cancel()
		}
	}
	c.mu.Unlock()
	c.working.Wait()
	err := errors.Join(
		c.pool.device.Synchronize(context.Background(), c.config.Stream),
		c.pool.device.Free(c.pool.base), c.host.close())
	if err != nil {
		return fmt.Errorf("kvcache: close: %w", err)
	}
	return nil
}

// Stats is what a cache holds and what has happened since it was made.
type Stats struct {
	PagesFree      int
	PagesUsed      int
	PagesEvictable int // of those used: held by chunks that nobody uses and that are not pinned
	PagesUnshared  int // that the open sequences would hold if each had copies of its own
	Chunks         int // on the device or in the host tier, those being encoded included
	Pinned         int // chunks
	Sequences      int // open
	HostPages      int // used in the host tier
	HostPagesLimit int

	Hits           int64 // acquired without encoding, on the device or in the host tier
	Misses         int64 // acquired by encoding
	Joins          int64 // waited for another's encode
	Encodes        int64 // ended well
	EncodeFailures int64
	Evictions      int64 // chunks that left the device to make room
	PageCopies     int64 // by writes behind a fork

	Spills        int64 // chunks copied to the host tier
	Restores      int64 // chunks copied back
	HostDrops     int64 // chunks that left the host tier to make room
	BytesToHost   int64
	BytesFromHost int64
}

// Stats returns a snapshot.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.PagesFree = len(c.pool.free)
	s.PagesUsed = len(c.pool.refs) - s.PagesFree
	s.PagesEvictable, s.PagesUnshared = c.evictable, c.unshared
	s.Chunks = len(c.chunks)
	s.Pinned = c.pinned
	s.Sequences = c.sequences
	s.HostPages, s.HostPagesLimit = c.host.used, c.host.limit
	return s
}

// take appends n pages to dst and evicts chunks for them as needed. Where
// that could not give enough, it evicts none.
func (c *Cache) take(dst []int32, n int) ([]int32, error) {
	if n > len(c.pool.free)+c.evictable {
		return dst, &NoPagesError{Needed: n, Free: len(c.pool.free), Evictable: c.evictable, Total: len(c.pool.refs)}
	}
	for len(c.pool.free) < n {
		id := c.config.Policy.Victim()
		e := c.chunks[id]
		if e == nil || !e.listed {
			return dst, fmt.Errorf("the policy named chunk %v, which can't be evicted", id)
		}
		if err := c.evict(e); err != nil {
			return dst, err
		}
		c.stats.Evictions++
	}
	return c.pool.take(dst, n), nil
}
