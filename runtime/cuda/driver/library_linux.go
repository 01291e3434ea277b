package driver

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// loadLibrary binds every function of library. libcuda is never unloaded: it
// does not support that.
func loadLibrary(file string) (*library, error) {
	handle, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: install the NVIDIA driver, or use the emulator or CPU backend (%w)",
			cuda.ErrNoDevice, cuda.ErrNoLibrary, err)
	}
	l := &library{}
	fields := reflect.ValueOf(l).Elem()
	address := map[string]uintptr{}
	for i := range fields.NumField() {
		symbol := fields.Type().Field(i).Tag.Get("symbol")
		a, err := purego.Dlsym(handle, symbol)
		if err != nil {
			return nil, fmt.Errorf("%w: %s lacks %s: kgen needs a driver for CUDA 11.4 or newer (%w)",
				cuda.ErrNoLibrary, file, symbol, err)
		}
		address[symbol] = a
		if field := fields.Field(i).Addr().Interface(); !bindByHand(symbol) {
			purego.RegisterFunc(field, a)
		}
	}
	l.bindDirect(address)
	return l, nil
}

// bindByHand tells which functions bindDirect binds: those whose arguments
// kgen bundles, and those of the launch path, where reflection costs too much.
func bindByHand(symbol string) bool {
	switch symbol {
	case "cuLaunchKernel", "cuModuleLoadDataEx", "cuCtxSetCurrent", "cuGraphLaunch":
		return true
	}
	return false
}

func (l *library) bindDirect(address map[string]uintptr) {
	launchKernel := address["cuLaunchKernel"]
	l.LaunchKernel = func(a *launch) code {
		r, _, _ := purego.SyscallN(launchKernel, a.function,
			uintptr(a.gridX), uintptr(a.gridY), uintptr(a.gridZ), uintptr(a.threads), 1, 1,
			uintptr(a.shared), a.stream, uintptr(unsafe.Pointer(&a.params)), 0)
		return code(r)
	}
	loadData := address["cuModuleLoadDataEx"]
	l.ModuleLoadDataEx = func(m *uintptr, image *byte, log *jitLog) code {
		r, _, _ := purego.SyscallN(loadData, uintptr(unsafe.Pointer(m)), uintptr(unsafe.Pointer(image)),
			uintptr(len(log.options)), uintptr(unsafe.Pointer(&log.options)), uintptr(unsafe.Pointer(&log.values)))
		return code(r)
	}
	setCurrent := address["cuCtxSetCurrent"]
	l.ContextSetCurrent = func(context uintptr) code {
		r, _, _ := purego.SyscallN(setCurrent, context)
		return code(r)
	}
	graphLaunch := address["cuGraphLaunch"]
	l.GraphLaunch = func(exec, s uintptr) code {
		r, _, _ := purego.SyscallN(graphLaunch, exec, s)
		return code(r)
	}
}
