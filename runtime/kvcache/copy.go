package kvcache

import (
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// part is K or V of all layers.
type part struct {
	base   abi.DevicePtr // page 0 in layer 0
	bytes  int64         // of a page in one layer
	stride int64         // from one layer to the next
	layers int
}

// at is where a page is in layer 0.
func (p part) at(page int32) abi.DevicePtr { return p.base + abi.DevicePtr(int64(page)*p.bytes) }

// blocks is a page in all layers.
func (p part) blocks() cuda.Blocks {
	return cuda.Blocks{Bytes: p.bytes, Stride: p.stride, Count: p.layers}
}

func (p *pool) parts() [2]part {
	first := p.layer(0)
	return [2]part{
		{first.K, p.shape.KPageBytes(), p.kStride, p.shape.Layers},
		{first.V, p.shape.VPageBytes(), p.vStride, p.shape.Layers},
	}
}

// copyPage queues the copy of a page in all layers; toHost and fromHost do
// that from and to host memory, where a page is K of all layers, then V of all
// layers. A device that is no cuda.Copier has copied when they return.
func (p *pool) copyPage(s cuda.Stream, dst, src int32) error {
	for _, part := range p.parts() {
		if p.copier != nil {
			if err := p.copier.CopyAsync(s, part.at(dst), part.at(src), part.blocks()); err != nil {
				return err
			}
			continue
		}
		buffer := make([]byte, part.bytes)
		err := part.eachLayer(func(l int, offset abi.DevicePtr) error {
			if err := p.device.Download(buffer, part.at(src)+offset); err != nil {
				return err
			}
			return p.device.Upload(part.at(dst)+offset, buffer)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pool) toHost(s cuda.Stream, dst []byte, page int32) error {
	for _, part := range p.parts() {
		size := part.blocks().Size()
		if p.copier != nil {
			if err := p.copier.CopyToHostAsync(s, dst[:size], part.at(page), part.blocks()); err != nil {
				return err
			}
		} else if err := part.eachLayer(func(l int, offset abi.DevicePtr) error {
			return p.device.Download(dst[int64(l)*part.bytes:][:part.bytes], part.at(page)+offset)
		}); err != nil {
			return err
		}
		dst = dst[size:]
	}
	return nil
}

func (p *pool) fromHost(s cuda.Stream, page int32, src []byte) error {
	for _, part := range p.parts() {
		size := part.blocks().Size()
		if p.copier != nil {
			if err := p.copier.CopyFromHostAsync(s, part.at(page), src[:size], part.blocks()); err != nil {
				return err
			}
		} else if err := part.eachLayer(func(l int, offset abi.DevicePtr) error {
			return p.device.Upload(part.at(page)+offset, src[int64(l)*part.bytes:][:part.bytes])
		}); err != nil {
			return err
		}
		src = src[size:]
	}
	return nil
}

// eachLayer calls f with each layer and its distance from layer 0.
func (p part) eachLayer(f func(l int, offset abi.DevicePtr) error) error {
	for l := range p.layers {
		if err := f(l, abi.DevicePtr(int64(l)*p.stride)); err != nil {
			return err
		}
	}
	return nil
}
