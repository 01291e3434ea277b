package kvcache

import (
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// copyPage copies a page in all layers.
func (p *pool) copyPage(s cuda.Stream, dst, src int32) error {
	for _, part := range p.parts() {
		d, from := part.at(dst), part.at(src)
		buffer := make([]byte, part.bytes)
		for range p.shape.Layers {
			if err := p.device.Download(buffer, from); err != nil {
				return err
			}
			if err := p.device.Upload(d, buffer); err != nil {
				return err
			}
			d, from = d+abi.DevicePtr(part.stride), from+abi.DevicePtr(part.stride)
		}
	}
	return nil
}

// part is K or V.
type part struct {
	base   abi.DevicePtr // page 0 in layer 0
	bytes  int64         // of a page in one layer
	stride int64         // from one layer to the next
}

func (p part) at(page int32) abi.DevicePtr { return p.base + abi.DevicePtr(int64(page)*p.bytes) }

func (p *pool) parts() [2]part {
	first := p.layer(0)
	return [2]part{
		{first.K, p.shape.KPageBytes(), p.kStride},
		{first.V, p.shape.VPageBytes(), p.vStride},
	}
}
