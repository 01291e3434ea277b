package kvcache

import "container/list"

// Policy chooses which chunk is evicted next. It is told of a chunk when that
// may be evicted and when it no longer may, so whatever it answers, nothing in
// use is touched. It is called with the cache's lock held and must not call
// the cache.
type Policy interface {
	// Add is called when the last holder lets go of a chunk that is not pinned.
	// bytes is what evicting it frees.
	Add(id ID, bytes int64)
	// Remove is called when the chunk is acquired, evicted or dropped, or read by
	// [Cache.Persist]. When that has ended it removes all that may be evicted and adds
	// it again, what was let go of the longest ago first.
	Remove(id ID)
	// Victim is one of the chunks added and not removed. It is called only where
	// there is one.
	Victim() ID
}

// NewLRU returns the policy that evicts what was let go of the longest ago.
func NewLRU() Policy {
	return &lru{elements: map[ID]*list.Element{}}
}

// lru holds IDs, the least recently used first.
type lru struct {
	order    list.List
	elements map[ID]*list.Element
}

func (p *lru) Add(id ID, _ int64) { p.elements[id] = p.order.PushBack(id) }

func (p *lru) Remove(id ID) {
	p.order.Remove(p.elements[id])
	delete(p.elements, id)
}

func (p *lru) Victim() ID { return p.order.Front().Value.(ID) }
