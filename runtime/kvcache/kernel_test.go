package kvcache_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kvcache"
)

// What stands for a token's K and V in a layer: different for each token and
// layer.
func content(token int32, layer int) (k uint32, v uint16) {
	x := uint32(token)*0x9e3779b1 + uint32(layer)*0x85ebca6b
	return x, uint16(x>>16) ^ uint16(x) ^ 0x55
}

// addresses is where a slot's K and V are in a layer. The shape is that of
// the tests: 4 bytes of K and 2 of V a token.
func addresses(c *kvcache.Cache, slot int32, layer int) (k, v abi.DevicePtr) {
	l := c.Layer(layer)
	return l.K + abi.DevicePtr(slot)*4, l.V + abi.DevicePtr(slot)*2
}

// write queues an append of tokens to slots, in all layers.
func write(c *kvcache.Cache, d *device, tokens, slots []int32) {
	tokens = slices.Clone(tokens)
	d.launch(func() {
		for i, slot := range slots {
			for l := range shape.Layers {
				k, v := content(tokens[i], l)
				kAt, vAt := addresses(c, slot, l)
				binary.LittleEndian.PutUint32(d.at(kAt, 4), k)
				binary.LittleEndian.PutUint16(d.at(vAt, 2), v)
			}
		}
	})
}

// check waits for the device and compares what stands in slots with tokens.
func check(c *kvcache.Cache, d *device, tokens, slots []int32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.land()
	for i, slot := range slots {
		for l := range shape.Layers {
			k, v := content(tokens[i], l)
			kAt, vAt := addresses(c, slot, l)
			if gotK, gotV := binary.LittleEndian.Uint32(d.at(kAt, 4)), binary.LittleEndian.Uint16(d.at(vAt, 2)); gotK != k || gotV != v {
				return fmt.Errorf("token %d of %d, slot %d, layer %d: K %x, V %x, want %x, %x", i, len(slots), slot, l, gotK, gotV, k, v)
			}
		}
	}
	return nil
}

// encode returns what writes a document's tokens.
func encode(c *kvcache.Cache, d *device, doc kvcache.Document) kvcache.Encode {
	return func(_ context.Context, pages []int32) error {
		write(c, d, doc.Tokens, shape.Slots(nil, pages, 0, len(doc.Tokens)))
		return nil
	}
}
