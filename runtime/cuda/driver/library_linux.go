package driver

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/internal/device"
)

// loadLibrary binds every function of device.Library. libcuda is never unloaded: it
// does not support that.
func loadLibrary(file string) (*device.Library, error) {
	handle, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: install the NVIDIA driver, or use the emulator or CPU backend (%w)",
			cuda.ErrNoDevice, cuda.ErrNoLibrary, err)
	}
	l := &device.Library{}
	fields := reflect.ValueOf(l).Elem()
	address := map[string]uintptr{}
	for i := range fields.NumField() {
		tag := fields.Type().Field(i).Tag
		symbol := tag.Get("symbol")
		a, err := purego.Dlsym(handle, symbol)
		if err != nil && tag.Get("optional") != "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s lacks %s: kgen needs a driver for CUDA 11.4 or newer (%w)",
				cuda.ErrNoLibrary, file, symbol, err)
		}
		address[symbol] = a
		if field := fields.Field(i).Addr().Interface(); !bindByHand(symbol) {
			purego.RegisterFunc(field, a)
		}
	}
	bindDirect(l, address)
	return l, nil
}

// bindByHand tells which functions bindDirect binds: those whose arguments
// kgen bundles, and those of every step, where reflection costs too much: it takes
// four times as long as a call without.
func bindByHand(symbol string) bool {
	switch symbol {
	case "cuModuleLoadDataEx", "cuTensorMapEncodeTiled",
		"cuCtxSetCurrent", "cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemcpy2DAsync_v2",
		"cuEventRecord", "cuEventQuery", "cuStreamWaitEvent":
		return true
	}
	return false
}

// launchConfig is CUlaunchConfig.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      uintptr
	attributes  *launchAttribute
	count       uint32
}

// launchAttribute is CUlaunchAttribute with a value of one number.
type launchAttribute struct {
	id, _ int32
	value [16]int32 // the union's 64 bytes
}

func bindDirect(l *device.Library, address map[string]uintptr) {
	launchKernel := address["cuLaunchKernel"]
	l.LaunchKernel = func(a *device.Launch) device.Code {
		r, _, _ := purego.SyscallN(launchKernel, a.Function,
			uintptr(a.GridX), uintptr(a.GridY), uintptr(a.GridZ), uintptr(a.Threads), 1, 1,
			uintptr(a.Shared), a.Stream, uintptr(unsafe.Pointer(&a.Params)), 0)
		return device.Code(r)
	}
	if launchKernelEx := address["cuLaunchKernelEx"]; launchKernelEx != 0 {
		l.LaunchKernelEx = func(a *device.Launch, attribute, value int32) device.Code {
			with := launchAttribute{id: attribute, value: [16]int32{value}}
			c := launchConfig{grid: [3]uint32{a.GridX, a.GridY, a.GridZ}, block: [3]uint32{a.Threads, 1, 1}, shared: a.Shared,
				stream: a.Stream, attributes: &with, count: 1}
			r, _, _ := purego.SyscallN(launchKernelEx, uintptr(unsafe.Pointer(&c)), a.Function, uintptr(unsafe.Pointer(&a.Params)), 0)
			return device.Code(r)
		}
	}
	loadData := address["cuModuleLoadDataEx"]
	l.ModuleLoadDataEx = func(m *uintptr, image []byte, log *device.JITLog) device.Code {
		r, _, _ := purego.SyscallN(loadData, uintptr(unsafe.Pointer(m)), uintptr(unsafe.Pointer(&image[0])),
			uintptr(len(log.Options)), uintptr(unsafe.Pointer(&log.Options)), uintptr(unsafe.Pointer(&log.Values)))
		return device.Code(r)
	}
	if encode := address["cuTensorMapEncodeTiled"]; encode != 0 {
		l.TensorMapEncode = func(m *device.TensorMap) device.Code {
			r, _, _ := purego.SyscallN(encode, uintptr(unsafe.Pointer(m.Map)), uintptr(m.DataType), uintptr(m.Rank), uintptr(m.Base),
				uintptr(unsafe.Pointer(&m.Dims)), uintptr(unsafe.Pointer(&m.Strides)), uintptr(unsafe.Pointer(&m.Box)),
				uintptr(unsafe.Pointer(&m.ElementStrides)), uintptr(m.Interleave), uintptr(m.Swizzle),
				uintptr(m.L2Promotion), uintptr(m.OutOfBounds))
			return device.Code(r)
		}
	}
	copy2D := address["cuMemcpy2DAsync_v2"]
	l.Memcpy2DAsync = func(c *device.Copy2D, s uintptr) device.Code {
		r, _, _ := purego.SyscallN(copy2D, uintptr(unsafe.Pointer(c)), s)
		return device.Code(r)
	}
	// call is of functions whose arguments are numbers: what a pointer points to would not be kept.
	call := func(symbol string) func(arguments ...uintptr) device.Code {
		a := address[symbol]
		return func(arguments ...uintptr) device.Code {
			r, _, _ := purego.SyscallN(a, arguments...)
			return device.Code(r)
		}
	}
	setCurrent, graphLaunch := call("cuCtxSetCurrent"), call("cuGraphLaunch")
	l.ContextSetCurrent = func(context uintptr) device.Code { return setCurrent(context) }
	l.GraphLaunch = func(exec, s uintptr) device.Code { return graphLaunch(exec, s) }
	record, query, wait := call("cuEventRecord"), call("cuEventQuery"), call("cuStreamWaitEvent")
	l.EventRecord = func(event, s uintptr) device.Code { return record(event, s) }
	l.EventQuery = func(event uintptr) device.Code { return query(event) }
	l.StreamWaitEvent = func(s, event uintptr, flags uint32) device.Code { return wait(s, event, uintptr(flags)) }
}
