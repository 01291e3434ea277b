package kvcache_test

import (
	"slices"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

// model is a cache without pages: what is where, and who uses it. Documents
// are numbers.
type model struct {
	free, total         int // pages on the device
	hostFree, hostTotal int // pages in the host tier
	tokens              func(doc int) int
	chunks              map[int]*modelChunk
	idle                []int // evicted first to last
	doubles, only       []int // dropped from the host tier first to last
	stats               kvcache.Stats
}

type modelChunk struct {
	resident, host, pinned bool
	refs                   int
}

// modelPage is a page of own tokens.
type modelPage struct{ refs int }

func (m *model) pages(doc int) int { return shape.Pages(m.tokens(doc)) }

func (m *model) snapshot() kvcache.Stats {
	s := m.stats
	s.PagesFree, s.PagesUsed = m.free, m.total-m.free
	for _, doc := range m.idle {
		s.PagesEvictable += m.pages(doc)
	}
	s.Chunks = len(m.chunks)
	for _, c := range m.chunks {
		if c.pinned {
			s.Pinned++
		}
	}
	s.HostPages, s.HostPagesLimit = m.hostTotal-m.hostFree, m.hostTotal
	return s
}

func without(list []int, doc int) []int {
	return slices.DeleteFunc(list, func(d int) bool { return d == doc })
}

// settle puts a document at the end of the lists it has come to belong to.
func (m *model) settle(doc int) {
	c := m.chunks[doc]
	if c == nil {
		c = &modelChunk{refs: 1} // in no list
	}
	for _, l := range []struct {
		list *[]int
		want bool
	}{
		{&m.idle, c.resident && c.refs == 0 && !c.pinned},
		{&m.doubles, c.resident && c.host},
		{&m.only, !c.resident && c.host},
	} {
		if !l.want {
			*l.list = without(*l.list, doc)
		} else if !slices.Contains(*l.list, doc) {
			*l.list = append(*l.list, doc)
		}
	}
}

// take takes pages and evicts for them; false: there are not as many.
func (m *model) take(n int) bool {
	if s := m.snapshot(); n > m.free+s.PagesEvictable {
		return false
	}
	for m.free < n {
		m.evict(m.idle[0])
		m.stats.Evictions++
	}
	m.free -= n
	return true
}

func (m *model) evict(doc int) {
	c, n := m.chunks[doc], m.pages(doc)
	if !c.host && n <= m.hostTotal {
		for m.hostFree < n {
			victim := slices.Concat(m.doubles, m.only)[0]
			m.stats.HostDrops++
			m.chunks[victim].host = false
			m.hostFree += m.pages(victim)
			if !m.chunks[victim].resident {
				delete(m.chunks, victim)
			}
			m.settle(victim)
		}
		m.hostFree -= n
		c.host = true
		m.stats.Spills++
		m.stats.BytesToHost += int64(n) * shape.PageBytes()
	}
	c.resident = false
	m.free += n
	if !c.host {
		delete(m.chunks, doc)
	}
	m.settle(doc)
}

// acquire holds a document that there is; false: no pages to bring it back.
func (m *model) acquire(doc int) bool {
	c := m.chunks[doc]
	if !c.resident {
		m.only = without(m.only, doc) // nobody drops it
		if !m.take(m.pages(doc)) {
			m.settle(doc)
			return false
		}
		c.resident = true
		m.stats.Restores++
		m.stats.BytesFromHost += int64(m.pages(doc)) * shape.PageBytes()
	}
	m.stats.Hits++
	m.ref(doc, 1)
	return true
}

// encode makes a document's chunk, held once; false: no pages.
func (m *model) encode(doc int, fails bool) bool {
	if !m.take(m.pages(doc)) {
		return false
	}
	m.stats.Misses++
	if fails {
		m.stats.EncodeFailures++
		m.free += m.pages(doc)
		return true
	}
	m.stats.Encodes++
	m.chunks[doc] = &modelChunk{resident: true, refs: 1}
	return true
}

func (m *model) ref(doc, n int) {
	m.chunks[doc].refs += n
	m.settle(doc)
}

func (m *model) drop(doc int) {
	if m.chunks[doc].resident {
		m.free += m.pages(doc)
	}
	if m.chunks[doc].host {
		m.hostFree += m.pages(doc)
	}
	delete(m.chunks, doc)
	m.settle(doc)
}

// release gives up one use of each page.
func (m *model) release(pages []*modelPage) {
	for _, p := range pages {
		if p.refs--; p.refs == 0 {
			m.free++
		}
	}
}
