package kvcache

import (
	"cmp"
	"container/list"
	"slices"
)

// newEntry makes an entry that has no pages and is in no registry.
func (c *Cache) newEntry(tokens int32) *entry {
	e := &entry{tokens: tokens}
	if n := len(c.slots); n > 0 {
		e.slot, c.slots = c.slots[n-1], c.slots[:n-1]
	} else {
		e.slot = c.numbered
		c.numbered++
	}
	return e
}

// add makes an entry of the registry that has no pages.
func (c *Cache) add(id ID, tokens int32) *entry {
	e := c.newEntry(tokens)
	e.id = id
	c.chunks[id] = e
	return e
}

// unregister takes an entry out of the registry.
func (c *Cache) unregister(e *entry) {
	delete(c.chunks, e.id)
	c.slots = append(c.slots, e.slot)
}

// forget gives up all of an entry.
func (c *Cache) forget(e *entry) {
	c.leave(e)
	c.host.release(e.host)
	e.host = nil
	c.settle(e)
	c.unregister(e)
}

// place gives an entry its pages on the device.
func (c *Cache) place(e *entry, pages []int32) {
	c.serial++
	e.serial, e.pages = c.serial, pages
}

// leave takes an entry's pages on the device away.
func (c *Cache) leave(e *entry) {
	pages := e.pages
	c.unlist(e)
	e.pages = nil
	c.pool.release(pages)
	c.settle(e)
}

// evict moves an idle entry off the device.
func (c *Cache) evict(e *entry) error {
	kept, err := c.spill(e)
	if err != nil {
		return err
	}
	if kept {
		c.leave(e)
	} else {
		c.forget(e)
	}
	return nil
}

// hold returns a new hold on an entry, which is brought back to the device if
// it is not there.
func (c *Cache) hold(e *entry) (*Chunk, error) {
	if e.pages == nil {
		if err := c.restore(e); err != nil {
			return nil, err
		}
	}
	c.stats.Hits++
	c.ref(e)
	return &Chunk{cache: c, entry: e}, nil
}

func (c *Cache) ref(e *entry) {
	e.refs++
	c.touch(e)
	c.settle(e)
}

func (c *Cache) unref(e *entry) {
	e.refs--
	if e.own {
		if e.refs == 0 {
			c.leave(e)
			c.slots = append(c.slots, e.slot)
		}
		return
	}
	c.touch(e)
	c.settle(e)
}

func (c *Cache) touch(e *entry) {
	c.clock++
	e.used = c.clock
}

// settle tells the policy and the host tier what has become of an entry: the
// one may evict it if nobody uses or reads it, the other may drop it.
func (c *Cache) settle(e *entry) {
	if c.closed {
		return
	}
	idle := e.pages != nil && e.flight == nil && e.refs == 0 && !e.pinned && e.readers == 0
	if !idle {
		c.unlist(e)
	} else if !e.listed {
		e.listed = true
		c.evictable += len(e.pages)
		c.config.Policy.Add(e.id, int64(len(e.pages))*c.config.Shape.PageBytes())
	}
	var want *list.List
	switch {
	case e.host == nil:
	case e.pages != nil:
		want = &c.host.doubles
	default:
		want = &c.host.only
	}
	if e.hostList == want {
		return
	}
	if e.hostList != nil {
		e.hostList.Remove(e.hostItem)
	}
	if e.hostList = want; want != nil {
		e.hostItem = want.PushBack(e)
	}
}

// relist tells the policy of what it may choose in the order of use. Who reads
// entries takes them out of its choice for a time, and uses none of them.
func (c *Cache) relist() {
	if c.closed {
		return
	}
	var listed []*entry
	for _, e := range c.chunks {
		if e.listed {
			listed = append(listed, e)
		}
	}
	slices.SortFunc(listed, func(a, b *entry) int { return cmp.Compare(a.used, b.used) })
	for _, e := range listed {
		c.unlist(e)
		c.settle(e)
	}
}

// unlist takes an entry out of the policy's choice.
func (c *Cache) unlist(e *entry) {
	if e.listed {
		e.listed = false
		c.evictable -= len(e.pages)
		c.config.Policy.Remove(e.id)
	}
}
