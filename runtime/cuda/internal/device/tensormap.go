package device

import (
	"fmt"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/cuda"
)

func (d *device) EncodeTensorMap(t cuda.TensorMap) ([128]byte, error) {
	const call = "cuTensorMapEncodeTiled"
	if d.lib.TensorMapEncode == nil {
		return [128]byte{}, fmt.Errorf("%s: %s lacks it: tensor copies need a driver for CUDA 12.0 or newer", call, d.info.Driver)
	}
	if err := t.Check(); err != nil {
		return [128]byte{}, fmt.Errorf("%s: %w", call, err)
	}
	var space [191]byte // somewhere in it is a multiple of 64
	m := &TensorMap{
		Map:      (*[128]byte)(unsafe.Pointer(&space[-uintptr(unsafe.Pointer(&space[0]))&63])),
		DataType: tensorMapUint16, Rank: uint32(len(t.Dims)),
		Base:        uint64(t.Base),
		Swizzle:     tensorMapSwizzle128,
		L2Promotion: tensorMapL2Promote128B,
	}
	for i, n := range t.Dims {
		m.Dims[i], m.Box[i], m.ElementStrides[i] = uint64(n), uint32(t.Box[i]), 1
	}
	for i, n := range t.Strides {
		m.Strides[i] = uint64(n)
	}
	if err := d.do(call, func(l *Library) Code { return l.TensorMapEncode(m) }); err != nil {
		return [128]byte{}, fmt.Errorf("%w: %+v", err, t)
	}
	return *m.Map, nil
}
