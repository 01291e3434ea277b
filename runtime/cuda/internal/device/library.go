package device

import (
	"unsafe"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// Code is a CUresult.
type Code int32

const (
	Success  Code = 0
	NotReady Code = 600
)

// Arguments of the driver's enumerations.
const (
	attributeMaxPitch        = 11
	attributeMultiprocessors = 16
	attributeL2Bytes         = 38
	attributeMajor           = 75
	attributeMinor           = 76
	attributeSharedOptin     = 97

	functionMaxDynamicShared = 8

	launchProgrammaticSerialization = 6

	jitErrorLog     = 5
	jitErrorLogSize = 6

	captureThreadLocal = 1

	eventDisableTiming = 2

	memoryHost   = 1
	memoryDevice = 2

	tensorMapUint16        = 1
	tensorMapSwizzle128    = 3
	tensorMapL2Promote128B = 2
)

// Library is the part of libcuda that kgen calls, one function a field. The
// tag names the symbol. Handles are uintptr; device memory is uint64. A function
// whose tag has optional may be nil.
type Library struct {
	Init               func(flags uint32) Code                                      `symbol:"cuInit"`
	GetErrorName       func(c Code, name **byte) Code                               `symbol:"cuGetErrorName"`
	GetErrorString     func(c Code, text **byte) Code                               `symbol:"cuGetErrorString"`
	DriverGetVersion   func(version *int32) Code                                    `symbol:"cuDriverGetVersion"`
	DeviceGetCount     func(count *int32) Code                                      `symbol:"cuDeviceGetCount"`
	DeviceGet          func(device *int32, ordinal int32) Code                      `symbol:"cuDeviceGet"`
	DeviceGetName      func(name *byte, size int32, device int32) Code              `symbol:"cuDeviceGetName"`
	DeviceGetAttribute func(value *int32, attribute int32, device int32) Code       `symbol:"cuDeviceGetAttribute"`
	DeviceTotalMem     func(bytes *uint64, device int32) Code                       `symbol:"cuDeviceTotalMem_v2"`
	ContextRetain      func(context *uintptr, device int32) Code                    `symbol:"cuDevicePrimaryCtxRetain"`
	ContextRelease     func(device int32) Code                                      `symbol:"cuDevicePrimaryCtxRelease_v2"`
	ContextSetCurrent  func(context uintptr) Code                                   `symbol:"cuCtxSetCurrent"`
	MemAlloc           func(p *uint64, bytes uint64) Code                           `symbol:"cuMemAlloc_v2"`
	MemFree            func(p uint64) Code                                          `symbol:"cuMemFree_v2"`
	MemGetInfo         func(free, total *uint64) Code                               `symbol:"cuMemGetInfo_v2"`
	MemcpyHtoD         func(dst uint64, src unsafe.Pointer, bytes uint64) Code      `symbol:"cuMemcpyHtoD_v2"`
	MemcpyDtoH         func(dst unsafe.Pointer, src uint64, bytes uint64) Code      `symbol:"cuMemcpyDtoH_v2"`
	MemHostAlloc       func(p *unsafe.Pointer, bytes uint64, flags uint32) Code     `symbol:"cuMemHostAlloc"`
	MemFreeHost        func(p unsafe.Pointer) Code                                  `symbol:"cuMemFreeHost"`
	Memcpy2DAsync      func(c *Copy2D, s uintptr) Code                              `symbol:"cuMemcpy2DAsync_v2"`
	MemsetD8Async      func(dst uint64, value uint8, n uint64, s uintptr) Code      `symbol:"cuMemsetD8Async"`
	ModuleLoadDataEx   func(m *uintptr, image []byte, log *JITLog) Code             `symbol:"cuModuleLoadDataEx"`
	ModuleGetFunction  func(f *uintptr, m uintptr, name *byte) Code                 `symbol:"cuModuleGetFunction"`
	ModuleUnload       func(m uintptr) Code                                         `symbol:"cuModuleUnload"`
	FuncSetAttribute   func(f uintptr, attribute, value int32) Code                 `symbol:"cuFuncSetAttribute"`
	LaunchKernel       func(l *Launch) Code                                         `symbol:"cuLaunchKernel"`
	LaunchKernelEx     func(l *Launch, attribute, value int32) Code                 `symbol:"cuLaunchKernelEx" optional:"CUDA 11.8"`
	StreamCreate       func(s *uintptr, flags uint32) Code                          `symbol:"cuStreamCreate"`
	StreamDestroy      func(s uintptr) Code                                         `symbol:"cuStreamDestroy_v2"`
	StreamQuery        func(s uintptr) Code                                         `symbol:"cuStreamQuery"`
	StreamWaitEvent    func(s, event uintptr, flags uint32) Code                    `symbol:"cuStreamWaitEvent"`
	BeginCapture       func(s uintptr, mode uint32) Code                            `symbol:"cuStreamBeginCapture_v2"`
	EndCapture         func(s uintptr, graph *uintptr) Code                         `symbol:"cuStreamEndCapture"`
	GraphInstantiate   func(exec *uintptr, graph uintptr, flags uint64) Code        `symbol:"cuGraphInstantiateWithFlags"`
	GraphDestroy       func(graph uintptr) Code                                     `symbol:"cuGraphDestroy"`
	GraphLaunch        func(exec uintptr, s uintptr) Code                           `symbol:"cuGraphLaunch"`
	GraphExecDestroy   func(exec uintptr) Code                                      `symbol:"cuGraphExecDestroy"`
	EventCreate        func(event *uintptr, flags uint32) Code                      `symbol:"cuEventCreate"`
	EventDestroy       func(event uintptr) Code                                     `symbol:"cuEventDestroy_v2"`
	EventQuery         func(event uintptr) Code                                     `symbol:"cuEventQuery"`
	EventRecord        func(event, s uintptr) Code                                  `symbol:"cuEventRecord"`
	EventElapsedTime   func(milliseconds *float32, start uintptr, end uintptr) Code `symbol:"cuEventElapsedTime"`
	TensorMapEncode    func(m *TensorMap) Code                                      `symbol:"cuTensorMapEncodeTiled" optional:"CUDA 12.0"`
}

// Launch holds the arguments of cuLaunchKernel, and with one attribute those of
// cuLaunchKernelEx. Blocks have one dimension.
type Launch struct {
	Function            uintptr
	GridX, GridY, GridZ uint32
	Threads             uint32
	Shared              uint32
	Stream              uintptr
	Params              [1]*byte // one by-value struct
}

// Copy2D is CUDA_MEMCPY2D: Height rows of Width bytes, Pitch bytes apart.
type Copy2D struct {
	Src, Dst      Copy2DSide
	Width, Height uint64
}

// Copy2DSide is where the rows are.
type Copy2DSide struct {
	X, Y   uint64
	Type   uint32 // memoryHost or memoryDevice
	_      uint32
	Host   unsafe.Pointer
	Device uint64
	Array  uintptr
	Pitch  uint64
}

// TensorMap holds the arguments of cuTensorMapEncodeTiled: all that it wants
// pointers to.
type TensorMap struct {
	Map            *[128]byte // aligned to 64
	DataType, Rank uint32
	Base           uint64
	Dims           [5]uint64
	Strides        [4]uint64
	Box            [5]uint32
	ElementStrides [5]uint32
	Interleave     uint32
	Swizzle        uint32
	L2Promotion    uint32
	OutOfBounds    uint32
}

// JITLog holds the two JIT options that make the driver say what is wrong
// with an image, as cuModuleLoadDataEx takes them.
type JITLog struct {
	Options [2]int32
	Values  struct {
		Log  *byte
		Size uintptr // in: bytes of Log; out: bytes written
	}
}

// NewJITLog asks for the errors in buffer, which must hold a NUL more.
func NewJITLog(buffer []byte) *JITLog {
	l := &JITLog{Options: [2]int32{jitErrorLog, jitErrorLogSize}}
	l.Values.Log, l.Values.Size = &buffer[0], uintptr(len(buffer))
	return l
}

// fail turns a code into an error; nil for success.
func (l *Library) fail(call string, c Code) error {
	if c == Success {
		return nil
	}
	e := &cuda.Error{Call: call, Code: int(c), Name: "unknown CUresult", Text: "the driver has no description of it"}
	var name, text *byte
	if l.GetErrorName(c, &name) == Success && name != nil {
		e.Name = GoString(name)
	}
	if l.GetErrorString(c, &text) == Success && text != nil {
		e.Text = GoString(text)
	}
	return e
}

// GoString copies a NUL-terminated string.
func GoString(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// CString is s with a NUL behind it.
func CString(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}
