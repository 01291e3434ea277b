package device

import (
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
