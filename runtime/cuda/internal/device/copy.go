package device

import (
	"fmt"
	"unsafe"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

func (d *device) Upload(dst abi.DevicePtr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return d.do("cuMemcpyHtoD", func(l *Library) Code {
		return l.MemcpyHtoD(uint64(dst), unsafe.Pointer(&src[0]), uint64(len(src)))
	})
}

func (d *device) Download(dst []byte, src abi.DevicePtr) error {
	if len(dst) == 0 {
		return nil
	}
	return d.do("cuMemcpyDtoH", func(l *Library) Code {
		return l.MemcpyDtoH(unsafe.Pointer(&dst[0]), uint64(src), uint64(len(dst)))
	})
}

func (d *device) Fill(s cuda.Stream, dst abi.DevicePtr, value byte, n int64) error {
	if n == 0 {
		return nil
	}
	return d.do("cuMemsetD8Async", func(l *Library) Code {
		return l.MemsetD8Async(uint64(dst), value, uint64(n), uintptr(s))
	})
}

func (d *device) AllocHost(n int64) ([]byte, error) {
	const call = "cuMemHostAlloc"
	if n <= 0 {
		return nil, fmt.Errorf("%s: %d bytes: must be positive", call, n)
	}
	var p unsafe.Pointer
	if err := d.do(call, func(l *Library) Code { return l.MemHostAlloc(&p, uint64(n), 0) }); err != nil {
		return nil, fmt.Errorf("%w: wanted %d bytes of host memory", err, n)
	}
	return unsafe.Slice((*byte)(p), n), nil
}

func (d *device) FreeHost(memory []byte) error {
	return d.do("cuMemFreeHost", func(l *Library) Code { return l.MemFreeHost(unsafe.Pointer(unsafe.SliceData(memory))) })
}

func (d *device) CopyAsync(s cuda.Stream, dst, src abi.DevicePtr, b cuda.Blocks) error {
	return d.copyBlocks(s, onDevice(dst), onDevice(src), b)
}

func (d *device) CopyToHostAsync(s cuda.Stream, dst []byte, src abi.DevicePtr, b cuda.Blocks) error {
	if int64(len(dst)) != b.Size() {
		return fmt.Errorf("%s: %d bytes of host memory for %+v", copy2D, len(dst), b)
	}
	return d.copyBlocks(s, onHost(dst), onDevice(src), b)
}

func (d *device) CopyFromHostAsync(s cuda.Stream, dst abi.DevicePtr, src []byte, b cuda.Blocks) error {
	if int64(len(src)) != b.Size() {
		return fmt.Errorf("%s: %d bytes of host memory for %+v", copy2D, len(src), b)
	}
	return d.copyBlocks(s, onDevice(dst), onHost(src), b)
}

const copy2D = "cuMemcpy2DAsync"

func onDevice(p abi.DevicePtr) Copy2DSide { return Copy2DSide{Type: memoryDevice, Device: uint64(p)} }

func onHost(b []byte) Copy2DSide {
	return Copy2DSide{Type: memoryHost, Host: unsafe.Pointer(unsafe.SliceData(b))}
}

// copyBlocks queues one copy, or where the blocks are further apart than the
// driver takes, one a block.
func (d *device) copyBlocks(s cuda.Stream, dst, src Copy2DSide, b cuda.Blocks) error {
	if b.Bytes < 0 || b.Count < 0 || b.Stride < b.Bytes {
		return fmt.Errorf("%s: %+v: negative or overlapping", copy2D, b)
	}
	if b.Size() == 0 {
		return nil
	}
	c := &Copy2D{Src: src, Dst: dst, Width: uint64(b.Bytes), Height: uint64(b.Count)}
	calls := 1
	if b.Stride > int64(d.maxPitch) {
		c.Height, calls = 1, b.Count
	}
	for _, side := range []*Copy2DSide{&c.Src, &c.Dst} {
		side.Pitch = uint64(b.Bytes)
		if side.Type == memoryDevice && calls == 1 {
			side.Pitch = uint64(b.Stride)
		}
	}
	for i := range calls {
		for _, side := range []*Copy2DSide{&c.Src, &c.Dst} {
			switch {
			case i == 0:
			case side.Type == memoryDevice:
				side.Device += uint64(b.Stride)
			default:
				side.Host = unsafe.Add(side.Host, b.Bytes)
			}
		}
		if err := d.do(copy2D, func(l *Library) Code { return l.Memcpy2DAsync(c, uintptr(s)) }); err != nil {
			return fmt.Errorf("%w: %+v", err, b)
		}
	}
	return nil
}
