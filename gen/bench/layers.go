package bench

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// layer is where a layer's KV is.
type layer struct {
	keys, values   abi.DevicePtr
	attend, shared maps
}

// addLayers has each step compute so many layers, one behind the other, of which each has KV of its
// own: append, attend and merge.
func (p *Problem) addLayers(layers int) error {
	m, size := p.spec.Model, p.spec.Cache.PageSize
	bytes := int64(p.layout.Pages) * int64(2*size*m.KVHeads*(m.HeadDim+m.VHeadDim)) // of a layer
	if cold := 4 * p.dev.Info().L2Bytes; int64(layers)*bytes < cold {
		return fmt.Errorf("the KV of %d layers is %.3g MB, which the L2 cache may still have in the next graph: give %d layers",
			layers, float64(int64(layers)*bytes)/1e6, (cold+bytes-1)/bytes)
	}
	rng := rand.New(rand.NewPCG(p.seed, 5))
	for range layers - 1 {
		c := p.newCache(rng, nil, p.layout.Pages)
		c.table, c.entries = p.cache.table, p.cache.entries
		p.further = append(p.further, c)
	}
	// What append writes is in pages of its own, which a case has no keys in.
	pages := (p.c.Query + size - 1) / size
	slots, positions := make([]int32, 0, p.tokens), make([]int32, 0, p.tokens)
	for i := range p.c.Batch {
		for j := range p.c.Query {
			slots, positions = append(slots, int32(i*pages*size+j)), append(positions, int32(j))
		}
	}
	own := p.newCache(nil, nil, p.c.Batch*pages)
	p.append = abi.AppendParams{
		K: p.random(rng, int64(p.tokens*m.KVHeads*m.HeadDim), formatOf(m.DType)), V: p.random(rng, int64(p.tokens*m.KVHeads*m.VHeadDim), formatOf(m.DType)),
		KCache: own.keys, VCache: own.values, Slots: p.upload(slots), Positions: p.upload(positions), Rope: p.rope,
		KTokenStride: int32(m.KVHeads * m.HeadDim), VTokenStride: int32(m.KVHeads * m.VHeadDim), KVHeads: int32(m.KVHeads), Tokens: int32(p.tokens),
	}
	if p.err == nil {
		p.err = p.dev.Synchronize(context.Background(), 0) // the copies that random starts
	}
	return p.err
}

// launch puts the step on a stream.
func (st *step) launch(stream cuda.Stream) error {
	if err := st.launchLayer(stream); err != nil {
		return err
	}
	for _, l := range st.further {
		of := *st
		for _, x := range []struct {
			params *abi.AttendParams
			maps   maps
		}{{&of.attend, l.attend}, {&of.shared, l.shared}} {
			x.params.KCache, x.params.VCache, x.params.KMap, x.params.VMap = l.keys, l.values, x.maps.keys, x.maps.values
		}
		if st.ahead.CopyCount > 0 { // the keys that attend reads are the rotated ones
			of.ahead.SrcK, of.attend.KCache, of.attend.KMap = l.keys, st.attend.KCache, st.attend.KMap
		}
		if err := of.launchLayer(stream); err != nil {
			return err
		}
	}
	return nil
}
