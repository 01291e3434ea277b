//go:build linux

// Package bindingtest tests a binding of libcuda: that C gets the arguments
// which Go gives and Go the results which C gives. testdata/libcuda.c is the
// libcuda to bind.
package bindingtest

import (
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kgen-project/kgen/runtime/cuda/internal/device"
	"github.com/kgen-project/kgen/runtime/cuda/internal/results"
)

// call is one call of a function, with what C is to see and Go to get.
type call struct {
	call func() device.Code
	want string
	got  func() any // what the call gave
	gave any
}

// Run calls every function of l, which file was bound to, with each of the
// codes that the driver documents.
func Run(t *testing.T, l *device.Library, file string) {
	t.Helper()
	handle, err := purego.Dlopen(file, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	var record func() string
	var answer func(device.Code)
	purego.RegisterLibFunc(&record, handle, "fake_record")
	purego.RegisterLibFunc(&answer, handle, "fake_answer")

	record() // what C saw before
	tests := calls(l)
	for i, field := range reflect.VisibleFields(reflect.TypeFor[device.Library]()) {
		if i >= len(tests) || strings.Fields(tests[i].want)[0] != field.Tag.Get("symbol") {
			t.Fatalf("no test of %s at its place", field.Name)
		}
	}
	for _, test := range tests {
		for _, c := range results.Codes {
			c := device.Code(c)
			answer(c)
			got := test.call()
			if saw := record(); got != c || saw != test.want {
				t.Errorf("returned %d, want %d; C saw %q, want %q", got, c, saw, test.want)
			}
			if c == device.Success && test.got != nil && test.got() != test.gave {
				t.Errorf("%s: gave %v, want %v", test.want, test.got(), test.gave)
			}
		}
	}
}

func calls(l *device.Library) []call {
	var (
		name    [256]byte
		log     [32]byte
		text    *byte
		i32     int32
		f32     float32
		u64, v  uint64
		pointer uintptr
		address unsafe.Pointer
	)
	var aligned struct{ space [191]byte }
	tensorMap := (*[128]byte)(unsafe.Pointer(&aligned.space[-uintptr(unsafe.Pointer(&aligned.space))&63]))
	data := []byte("data")
	jit := device.NewJITLog(log[:])
	const high = 0xfedcba9876543210 // every bit of an address counts
	return []call{
		{func() device.Code { return l.Init(7) }, "cuInit 7", nil, nil},
		{func() device.Code { return l.GetErrorName(719, &text) }, "cuGetErrorName 719", func() any { return device.GoString(text) }, "NAME"},
		{func() device.Code { return l.GetErrorString(2, &text) }, "cuGetErrorString 2", func() any { return device.GoString(text) }, "TEXT"},
		{func() device.Code { return l.DriverGetVersion(&i32) }, "cuDriverGetVersion", func() any { return i32 }, int32(13010)},
		{func() device.Code { return l.DeviceGetCount(&i32) }, "cuDeviceGetCount", func() any { return i32 }, int32(3)},
		{func() device.Code { return l.DeviceGet(&i32, 2) }, "cuDeviceGet 2", func() any { return i32 }, int32(40)},
		{func() device.Code { return l.DeviceGetName(&name[0], 256, 2) }, "cuDeviceGetName 256 2", func() any { return device.GoString(&name[0]) }, "GPU"},
		{func() device.Code { return l.DeviceGetAttribute(&i32, 97, 2) }, "cuDeviceGetAttribute 97 2", func() any { return i32 }, int32(-5)},
		{func() device.Code { return l.DeviceTotalMem(&u64, 2) }, "cuDeviceTotalMem_v2 2", func() any { return u64 }, uint64(1 << 40)},
		{func() device.Code { return l.ContextRetain(&pointer, 2) }, "cuDevicePrimaryCtxRetain 2", func() any { return pointer }, uintptr(0x1234567890)},
		{func() device.Code { return l.ContextRelease(2) }, "cuDevicePrimaryCtxRelease_v2 2", nil, nil},
		{func() device.Code { return l.ContextSetCurrent(high) }, "cuCtxSetCurrent 0xfedcba9876543210", nil, nil},
		{func() device.Code { return l.MemAlloc(&u64, 1<<40) }, "cuMemAlloc_v2 1099511627776", func() any { return u64 }, uint64(0xabcdef0123456789)},
		{func() device.Code { return l.MemFree(high) }, "cuMemFree_v2 fedcba9876543210", nil, nil},
		{func() device.Code { return l.MemGetInfo(&u64, &v) }, "cuMemGetInfo_v2", func() any { return [2]uint64{u64, v} }, [2]uint64{5, 6}},
		{func() device.Code { return l.MemcpyHtoD(high, unsafe.Pointer(&data[0]), 4) }, "cuMemcpyHtoD_v2 fedcba9876543210 data 4", nil, nil},
		{func() device.Code { return l.MemcpyDtoH(unsafe.Pointer(&data[0]), high, 3) }, "cuMemcpyDtoH_v2 fedcba9876543210 3",
			func() any { return string(data) }, "zzza"},
		{func() device.Code { return l.MemHostAlloc(&address, 1<<40, 2) }, "cuMemHostAlloc 1099511627776 2",
			func() any { return device.GoString((*byte)(address)) }, "host"},
		{func() device.Code { return l.MemFreeHost(unsafe.Pointer(&data[0])) }, "cuMemFreeHost zzza", nil, nil},
		{func() device.Code {
			return l.Memcpy2DAsync(&device.Copy2D{
				Src:   device.Copy2DSide{X: 1, Y: 2, Type: 1, Host: unsafe.Pointer(&data[0]), Device: 3, Array: 4, Pitch: 1 << 40},
				Dst:   device.Copy2DSide{X: 5, Y: 6, Type: 2, Host: unsafe.Pointer(&data[3]), Device: high, Array: 7, Pitch: 8},
				Width: 1 << 41, Height: 1 << 42}, 0x99)
		}, "cuMemcpy2DAsync_v2 1 2 1 z 3 0x4 1099511627776 5 6 2 a fedcba9876543210 0x7 8 2199023255552 4398046511104 0x99", nil, nil},
		{func() device.Code { return l.MemsetD8Async(high, 200, 1<<40, 0x99) }, "cuMemsetD8Async fedcba9876543210 200 1099511627776 0x99", nil, nil},
		{func() device.Code { return l.ModuleLoadDataEx(&pointer, []byte("image\x00"), jit) }, "cuModuleLoadDataEx image 2: 5 6 32",
			func() any { return device.GoString(&log[0]) }, "log"},
		{func() device.Code { return l.ModuleGetFunction(&pointer, 0x77, device.CString("add")) }, "cuModuleGetFunction 0x77 add",
			func() any { return pointer }, uintptr(0x88)},
		{func() device.Code { return l.ModuleUnload(0x77) }, "cuModuleUnload 0x77", nil, nil},
		{func() device.Code { return l.FuncSetAttribute(0x88, 8, 232448) }, "cuFuncSetAttribute 0x88 8 232448", nil, nil},
		{func() device.Code {
			return l.LaunchKernel(&device.Launch{Function: 0x88, GridX: 1<<31 - 1, GridY: 2, GridZ: 3, Threads: 128, Shared: 5,
				Stream: 0x99, Params: [1]*byte{device.CString("params")}})
		}, "cuLaunchKernel 0x88 2147483647 2 3 128 1 1 5 0x99 params 0", nil, nil},
		{func() device.Code {
			return l.LaunchKernelEx(&device.Launch{Function: 0x88, GridX: 1<<31 - 1, GridY: 2, GridZ: 3, Threads: 128, Shared: 5,
				Stream: 0x99, Params: [1]*byte{device.CString("params")}}, 6, -7)
		}, "cuLaunchKernelEx 0x88 2147483647 2 3 128 1 1 5 0x99 1 6 -7 params 0", nil, nil},
		{func() device.Code { return l.StreamCreate(&pointer, 1) }, "cuStreamCreate 1", func() any { return pointer }, uintptr(0x99)},
		{func() device.Code { return l.StreamDestroy(0x99) }, "cuStreamDestroy_v2 0x99", nil, nil},
		{func() device.Code { return l.StreamQuery(0x99) }, "cuStreamQuery 0x99", nil, nil},
		{func() device.Code { return l.StreamWaitEvent(0x99, 0xcc, 0) }, "cuStreamWaitEvent 0x99 0xcc 0", nil, nil},
		{func() device.Code { return l.BeginCapture(0x99, 1) }, "cuStreamBeginCapture_v2 0x99 1", nil, nil},
		{func() device.Code { return l.EndCapture(0x99, &pointer) }, "cuStreamEndCapture 0x99", func() any { return pointer }, uintptr(0xaa)},
		{func() device.Code { return l.GraphInstantiate(&pointer, 0xaa, 1<<40) }, "cuGraphInstantiateWithFlags 0xaa 1099511627776",
			func() any { return pointer }, uintptr(0xbb)},
		{func() device.Code { return l.GraphDestroy(0xaa) }, "cuGraphDestroy 0xaa", nil, nil},
		{func() device.Code { return l.GraphLaunch(0xbb, 0x99) }, "cuGraphLaunch 0xbb 0x99", nil, nil},
		{func() device.Code { return l.GraphExecDestroy(0xbb) }, "cuGraphExecDestroy 0xbb", nil, nil},
		{func() device.Code { return l.EventCreate(&pointer, 3) }, "cuEventCreate 3", func() any { return pointer }, uintptr(0xcc)},
		{func() device.Code { return l.EventDestroy(0xcc) }, "cuEventDestroy_v2 0xcc", nil, nil},
		{func() device.Code { return l.EventQuery(0xcc) }, "cuEventQuery 0xcc", nil, nil},
		{func() device.Code { return l.EventRecord(0xcc, 0x99) }, "cuEventRecord 0xcc 0x99", nil, nil},
		{func() device.Code { return l.EventElapsedTime(&f32, 0xcc, 0xdd) }, "cuEventElapsedTime 0xcc 0xdd", func() any { return f32 }, float32(2.5)},
		{func() device.Code {
			return l.TensorMapEncode(&device.TensorMap{Map: tensorMap, DataType: 1, Rank: 5, Base: high,
				Dims: [5]uint64{1 << 40, 2, 3, 4, 5}, Strides: [4]uint64{6, 1 << 38, 7, 8}, Box: [5]uint32{9, 10, 11, 12, 13},
				ElementStrides: [5]uint32{14, 15, 16, 17, 18}, Interleave: 19, Swizzle: 20, L2Promotion: 21, OutOfBounds: 22})
		}, "cuTensorMapEncodeTiled aligned 1 5 0xfedcba9876543210 dims 1099511627776 2 3 4 5 strides 6 274877906944 7 8 " +
			"box 9 10 11 12 13 steps 14 15 16 17 18 19 20 21 22", func() any { return string(tensorMap[:4]) }, "map!"},
	}
}
