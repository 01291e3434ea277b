package driver

import (
	"unsafe"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// code is a CUresult.
type code int32

const (
	success  code = 0
	notReady code = 600
)

// Arguments of the driver's enumerations.
const (
	attributeMultiprocessors = 16
	attributeL2Bytes         = 38
	attributeMajor           = 75
	attributeMinor           = 76
	attributeSharedOptin     = 97

	functionMaxDynamicShared = 8

	jitErrorLog     = 5
	jitErrorLogSize = 6

	captureThreadLocal = 1
)

// library is the part of libcuda that kgen calls, one function a field. The
// tag names the symbol. Handles are uintptr; device memory is uint64.
type library struct {
	Init               func(flags uint32) code                                      `symbol:"cuInit"`
	GetErrorName       func(c code, name **byte) code                               `symbol:"cuGetErrorName"`
	GetErrorString     func(c code, text **byte) code                               `symbol:"cuGetErrorString"`
	DriverGetVersion   func(version *int32) code                                    `symbol:"cuDriverGetVersion"`
	DeviceGetCount     func(count *int32) code                                      `symbol:"cuDeviceGetCount"`
	DeviceGet          func(device *int32, ordinal int32) code                      `symbol:"cuDeviceGet"`
	DeviceGetName      func(name *byte, size int32, device int32) code              `symbol:"cuDeviceGetName"`
	DeviceGetAttribute func(value *int32, attribute int32, device int32) code       `symbol:"cuDeviceGetAttribute"`
	DeviceTotalMem     func(bytes *uint64, device int32) code                       `symbol:"cuDeviceTotalMem_v2"`
	ContextRetain      func(context *uintptr, device int32) code                    `symbol:"cuDevicePrimaryCtxRetain"`
	ContextRelease     func(device int32) code                                      `symbol:"cuDevicePrimaryCtxRelease_v2"`
	ContextSetCurrent  func(context uintptr) code                                   `symbol:"cuCtxSetCurrent"`
	MemAlloc           func(p *uint64, bytes uint64) code                           `symbol:"cuMemAlloc_v2"`
	MemFree            func(p uint64) code                                          `symbol:"cuMemFree_v2"`
	MemGetInfo         func(free, total *uint64) code                               `symbol:"cuMemGetInfo_v2"`
	MemcpyHtoD         func(dst uint64, src unsafe.Pointer, bytes uint64) code      `symbol:"cuMemcpyHtoD_v2"`
	MemcpyDtoH         func(dst unsafe.Pointer, src uint64, bytes uint64) code      `symbol:"cuMemcpyDtoH_v2"`
	MemsetD8Async      func(dst uint64, value uint8, n uint64, s uintptr) code      `symbol:"cuMemsetD8Async"`
	ModuleLoadDataEx   func(m *uintptr, image *byte, log *jitLog) code              `symbol:"cuModuleLoadDataEx"`
	ModuleGetFunction  func(f *uintptr, m uintptr, name *byte) code                 `symbol:"cuModuleGetFunction"`
	ModuleUnload       func(m uintptr) code                                         `symbol:"cuModuleUnload"`
	FuncSetAttribute   func(f uintptr, attribute, value int32) code                 `symbol:"cuFuncSetAttribute"`
	LaunchKernel       func(l *launch) code                                         `symbol:"cuLaunchKernel"`
	StreamCreate       func(s *uintptr, flags uint32) code                          `symbol:"cuStreamCreate"`
	StreamDestroy      func(s uintptr) code                                         `symbol:"cuStreamDestroy_v2"`
	StreamQuery        func(s uintptr) code                                         `symbol:"cuStreamQuery"`
	BeginCapture       func(s uintptr, mode uint32) code                            `symbol:"cuStreamBeginCapture_v2"`
	EndCapture         func(s uintptr, graph *uintptr) code                         `symbol:"cuStreamEndCapture"`
	GraphInstantiate   func(exec *uintptr, graph uintptr, flags uint64) code        `symbol:"cuGraphInstantiateWithFlags"`
	GraphDestroy       func(graph uintptr) code                                     `symbol:"cuGraphDestroy"`
	GraphLaunch        func(exec uintptr, s uintptr) code                           `symbol:"cuGraphLaunch"`
	GraphExecDestroy   func(exec uintptr) code                                      `symbol:"cuGraphExecDestroy"`
	EventCreate        func(event *uintptr, flags uint32) code                      `symbol:"cuEventCreate"`
	EventDestroy       func(event uintptr) code                                     `symbol:"cuEventDestroy_v2"`
	EventRecord        func(event, s uintptr) code                                  `symbol:"cuEventRecord"`
	EventElapsedTime   func(milliseconds *float32, start uintptr, end uintptr) code `symbol:"cuEventElapsedTime"`
}

// launch holds the arguments of cuLaunchKernel.
type launch struct {
	function            uintptr
	gridX, gridY, gridZ uint32
	threads             uint32
	shared              uint32
	stream              uintptr
	params              [1]*byte // one by-value struct
}

// jitLog holds the two JIT options that make the driver say what is wrong
// with an image, as cuModuleLoadDataEx takes them.
type jitLog struct {
	options [2]int32
	values  struct {
		log  *byte
		size uintptr // in: bytes of log; out: bytes written
	}
}

func newJITLog(buffer []byte) *jitLog {
	l := &jitLog{options: [2]int32{jitErrorLog, jitErrorLogSize}}
	l.values.log, l.values.size = &buffer[0], uintptr(len(buffer))
	return l
}

// fail turns a code into an error; nil for success.
func (l *library) fail(call string, c code) error {
	if c == success {
		return nil
	}
	e := &cuda.Error{Call: call, Code: int(c), Name: "unknown CUresult", Text: "the driver has no description of it"}
	var name, text *byte
	if l.GetErrorName(c, &name) == success && name != nil {
		e.Name = goString(name)
	}
	if l.GetErrorString(c, &text) == success && text != nil {
		e.Text = goString(text)
	}
	return e
}

// goString copies a NUL-terminated string.
func goString(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// cString is s with a NUL behind it.
func cString(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}
