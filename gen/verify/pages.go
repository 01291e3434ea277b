package verify

import (
	"bytes"
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/numeric"
)

// pages is one cache, K or V, of some pages. Elements that were not set are poison.
type pages struct {
	cache      spec.Cache
	format     numeric.Format
	heads, dim int
	data       []byte
}

func newPages(cache spec.Cache, f numeric.Format, heads, dim, count int) *pages {
	n := 2 * count * cache.PageSize * heads * dim
	return &pages{cache, f, heads, dim, bytes.Repeat([]byte{poison}, n)}
}

// count is the number of pages.
func (p *pages) count() int { return len(p.data) / (2 * p.cache.PageSize * p.heads * p.dim) }

// row is the bytes of one token's one head. slot is page * page size + place.
func (p *pages) row(slot, head int) []byte {
	index := slot*p.heads + head // NHD: [page][place][head]
	if p.cache.Layout == spec.HND {
		page, place := slot/p.cache.PageSize, slot%p.cache.PageSize
		index = (page*p.heads+head)*p.cache.PageSize + place
	}
	return p.data[2*index*p.dim:][:2*p.dim]
}

// set writes one token, [heads][dim], rounded.
func (p *pages) set(slot int, token []float64) {
	for h := range p.heads {
		p.format.Encode(p.row(slot, h)[:0], token[h*p.dim:][:p.dim]...)
	}
}

// cache is pages of K and of V.
type cache struct{ k, v *pages }

func (b *bench) newCache(heads, count int) cache {
	model := b.spec.Model
	return cache{
		newPages(b.spec.Cache, b.format, heads, model.HeadDim, count),
		newPages(b.spec.Cache, b.format, heads, model.VHeadDim, count),
	}
}

// heap gives out the pages of a cache in random order.
type heap struct {
	pageSize int
	free     []int
}

func newHeap(rng *rand.Rand, cache spec.Cache, count int) *heap {
	return &heap{cache.PageSize, rng.Perm(count)}
}

// take returns pages for that many tokens.
func (h *heap) take(tokens int) []int {
	n := (tokens + h.pageSize - 1) / h.pageSize
	taken := h.free[:n]
	h.free = h.free[n:]
	return taken
}

// slot is where token l of the given pages is.
func (h *heap) slot(pages []int, l int) int {
	return pages[l/h.pageSize]*h.pageSize + l%h.pageSize
}

// pageTable is int32 page indices with junk between the ranges in use.
type pageTable struct {
	rng     *rand.Rand
	entries []int32
}

// add appends a range of pages and returns the index of its first entry.
func (t *pageTable) add(pages []int) int32 {
	for range t.rng.IntN(3) {
		t.entries = append(t.entries, -1)
	}
	first := int32(len(t.entries))
	for _, p := range pages {
		t.entries = append(t.entries, int32(p))
	}
	return first
}
