package device

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/kgen-project/kgen/runtime/cuda"
)

type module struct {
	device *device
	handle uintptr
}

func (m *module) Kernel(entry string) (cuda.Kernel, error) {
	k := &kernel{device: m.device, entry: entry}
	err := m.device.do("cuModuleGetFunction", func(l *Library) Code {
		return l.ModuleGetFunction(&k.handle, m.handle, CString(entry))
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", entry, err)
	}
	return k, nil
}

func (m *module) Unload() error {
	return m.device.do("cuModuleUnload", func(l *Library) Code { return l.ModuleUnload(m.handle) })
}

type kernel struct {
	device *device
	entry  string
	handle uintptr

	mu     sync.Mutex   // held while shared grows
	shared atomic.Int64 // dynamic shared memory that the driver has agreed to, bytes
}

func (k *kernel) Launch(s cuda.Stream, c cuda.LaunchConfig, params []byte) error {
	if err := k.launch(s, c, params); err != nil {
		return fmt.Errorf("%s, grid (%d, %d, %d), %d threads, %d bytes of shared memory: %w",
			k.entry, c.GridX, c.GridY, c.GridZ, c.Threads, c.SharedBytes, err)
	}
	return nil
}

func (k *kernel) launch(s cuda.Stream, c cuda.LaunchConfig, params []byte) error {
	if len(params) == 0 {
		return fmt.Errorf("cuLaunchKernel: no parameters")
	}
	for _, n := range [...]int{c.GridX, c.GridY, c.GridZ, c.Threads, c.SharedBytes} {
		if n < 0 || n > math.MaxInt32 {
			return fmt.Errorf("cuLaunchKernel: %d is out of range", n)
		}
	}
	if err := k.allowShared(c.SharedBytes); err != nil {
		return err
	}
	l := &Launch{
		Function: k.handle,
		GridX:    uint32(c.GridX), GridY: uint32(c.GridY), GridZ: uint32(c.GridZ),
		Threads: uint32(c.Threads),
		Shared:  uint32(c.SharedBytes),
		Stream:  uintptr(s),
		Params:  [1]*byte{&params[0]},
	}
	if c.Early && k.device.early {
		return k.device.do("cuLaunchKernelEx", func(lib *Library) Code {
			return lib.LaunchKernelEx(l, launchProgrammaticSerialization, 1)
		})
	}
	return k.device.do("cuLaunchKernel", func(lib *Library) Code { return lib.LaunchKernel(l) })
}

// allowShared raises the kernel's limit on dynamic shared memory, which starts
// at 48 KB less what the kernel has of its own.
func (k *kernel) allowShared(bytes int) error {
	if int64(bytes) <= k.shared.Load() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if int64(bytes) <= k.shared.Load() {
		return nil
	}
	err := k.device.do("cuFuncSetAttribute", func(l *Library) Code {
		return l.FuncSetAttribute(k.handle, functionMaxDynamicShared, int32(bytes))
	})
	if err != nil {
		return fmt.Errorf("%w (a block of this device has at most %d)", err, k.device.info.SharedPerBlock)
	}
	k.shared.Store(int64(bytes))
	return nil
}
