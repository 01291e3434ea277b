package kvcache

import (
	"container/list"
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// hostTier is pages in host memory for chunks that left the device. Memory is
// taken from the host a slab at a time, as it is first needed.
//
// A chunk that comes back to the device stays here too as long as there is
// room: being immutable, it can leave the device again without a copy.
type hostTier struct {
	copier    cuda.Copier // nil: Go's memory
	pageBytes int64
	slabPages int
	limit     int // pages
	slabs     [][]byte
	free      []int32 // pages of the slabs, a stack
	used      int     // pages

	// What is here, what came the longest ago first. What somebody reads is not dropped.
	doubles list.List // of *entry: on the device too
	only    list.List // of *entry: nowhere else
}

const slabBytes = 64 << 20

func newHostTier(copier cuda.Copier, pageBytes, limit int64) *hostTier {
	pages := int(limit / pageBytes)
	return &hostTier{
		copier: copier, pageBytes: pageBytes,
		limit: pages, slabPages: int(min(max(1, slabBytes/pageBytes), int64(max(1, pages)))),
	}
}

// page is the memory of a page.
func (h *hostTier) page(i int32) []byte {
	slab := h.slabs[int(i)/h.slabPages]
	return slab[int64(int(i)%h.slabPages)*h.pageBytes:][:h.pageBytes:h.pageBytes]
}

// grow takes one more slab from the host; false: that is not to be, or the host
// has none.
func (h *hostTier) grow() bool {
	first := len(h.slabs) * h.slabPages
	n := min(h.slabPages, h.limit-first)
	if n <= 0 {
		return false
	}
	var slab []byte
	var err error
	if h.copier == nil {
		slab = make([]byte, int64(n)*h.pageBytes)
	} else if slab, err = h.copier.AllocHost(int64(n) * h.pageBytes); err != nil {
		return false
	}
	h.slabs = append(h.slabs, slab)
	for i := n - 1; i >= 0; i-- {
		h.free = append(h.free, int32(first+i))
	}
	return true
}

// take returns n free pages, or nil if there are not as many, n being positive.
func (h *hostTier) take(n int) []int32 {
	if n > h.limit {
		return nil // and the host gives no memory for it
	}
	for len(h.free) < n {
		if !h.grow() {
			return nil
		}
	}
	rest := len(h.free) - n
	pages := append([]int32(nil), h.free[rest:]...)
	h.free = h.free[:rest]
	h.used += n
	return pages
}

func (h *hostTier) release(pages []int32) {
	h.free = append(h.free, pages...)
	h.used -= len(pages)
}

// victims is what to drop for n free pages, in order: nil if all that may be
// dropped would not give as many.
func (h *hostTier) victims(n int) []*entry {
	var victims []*entry
	n -= len(h.free)
	for _, l := range []*list.List{&h.doubles, &h.only} {
		for item := l.Front(); item != nil && n > 0; item = item.Next() {
			if e := item.Value.(*entry); e.readers == 0 {
				victims = append(victims, e)
				n -= len(e.host)
			}
		}
	}
	if n > 0 {
		return nil
	}
	return victims
}

func (h *hostTier) close() error {
	if h.copier == nil {
		return nil
	}
	var errs []error
	for _, slab := range h.slabs {
		errs = append(errs, h.copier.FreeHost(slab))
	}
	return errors.Join(errs...)
}

// spill copies an entry's pages to the host tier, and drops what came there
// the longest ago to make room. It is false, and nothing is dropped, where the
// tier can't take the entry, for the limit, for want of memory or for what
// somebody reads.
func (c *Cache) spill(e *entry) (bool, error) {
	if e.host != nil {
		return true, nil
	}
	n := len(e.pages)
	pages := c.host.take(n)
	if pages == nil { // and the tier is as large as it gets
		victims := c.host.victims(n)
		if victims == nil {
			return false, nil
		}
		for _, victim := range victims {
			c.stats.HostDrops++
			c.dropHost(victim)
		}
		pages = c.host.take(n)
	}
	for i, page := range pages {
		if err := c.pool.toHost(c.config.Stream, c.host.page(page), e.pages[i]); err != nil {
			c.host.release(pages)
			return false, fmt.Errorf("copy chunk %v to the host: %w", e.id, err)
		}
	}
	e.host = pages
	c.stats.Spills++
	c.stats.BytesToHost += int64(n) * c.host.pageBytes
	return true, nil
}

// restore copies an entry's pages back to the device.
func (c *Cache) restore(e *entry) error {
	e.readers++ // so that what makes room does not drop it
	pages, err := c.take(nil, len(e.host))
	for i := 0; i < len(pages) && err == nil; i++ {
		err = c.pool.fromHost(c.config.Stream, pages[i], c.host.page(e.host[i]))
	}
	e.readers--
	if err != nil {
		c.pool.release(pages)
		c.host.only.MoveToBack(e.hostItem) // somebody wants it
		return fmt.Errorf("kvcache: restore chunk %v: %w", e.id, err)
	}
	c.place(e, pages)
	c.settle(e)
	c.stats.Restores++
	c.stats.BytesFromHost += int64(len(pages)) * c.host.pageBytes
	return nil
}

// dropHost takes an entry's pages in the host tier away, and with them the
// entry if it has no others.
func (c *Cache) dropHost(e *entry) {
	if e.pages == nil {
		c.forget(e)
		return
	}
	c.host.release(e.host)
	e.host = nil
	c.settle(e)
}
