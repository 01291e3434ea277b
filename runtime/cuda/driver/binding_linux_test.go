package driver

import (
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// TestBinding calls a C library through the binding and compares what arrives.
func TestBinding(t *testing.T) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	file := filepath.Join(t.TempDir(), "libcuda.so.1")
	out, err := exec.Command(compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", file, "testdata/libcuda.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l, err := loadLibrary(file)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := purego.Dlopen(file, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	var record func() string
	purego.RegisterLibFunc(&record, handle, "fake_record")

	var (
		name    [16]byte
		log     [32]byte
		text    *byte
		i32     int32
		f32     float32
		u64, v  uint64
		pointer uintptr
	)
	data := []byte("data")
	jit := newJITLog(log[:])
	const high = 0xfedcba9876543210 // every bit of an address counts
	tests := []struct {
		call func() code
		want string
		got  func() any // what the call gave
		gave any
	}{
		{func() code { return l.Init(7) }, "cuInit 7", nil, nil},
		{func() code { return l.GetErrorName(719, &text) }, "cuGetErrorName 719", func() any { return goString(text) }, "NAME"},
		{func() code { return l.GetErrorString(2, &text) }, "cuGetErrorString 2", func() any { return goString(text) }, "TEXT"},
		{func() code { return l.DriverGetVersion(&i32) }, "cuDriverGetVersion", func() any { return i32 }, int32(13010)},
		{func() code { return l.DeviceGetCount(&i32) }, "cuDeviceGetCount", func() any { return i32 }, int32(3)},
		{func() code { return l.DeviceGet(&i32, 2) }, "cuDeviceGet 2", func() any { return i32 }, int32(40)},
		{func() code { return l.DeviceGetName(&name[0], 16, 2) }, "cuDeviceGetName 16 2", func() any { return goString(&name[0]) }, "GPU"},
		{func() code { return l.DeviceGetAttribute(&i32, 97, 2) }, "cuDeviceGetAttribute 97 2", func() any { return i32 }, int32(-5)},
		{func() code { return l.DeviceTotalMem(&u64, 2) }, "cuDeviceTotalMem_v2 2", func() any { return u64 }, uint64(1 << 40)},
		{func() code { return l.ContextRetain(&pointer, 2) }, "cuDevicePrimaryCtxRetain 2", func() any { return pointer }, uintptr(0x1234567890)},
		{func() code { return l.ContextRelease(2) }, "cuDevicePrimaryCtxRelease_v2 2", nil, nil},
		{func() code { return l.ContextSetCurrent(high) }, "cuCtxSetCurrent 0xfedcba9876543210", nil, nil},
		{func() code { return l.MemAlloc(&u64, 1<<40) }, "cuMemAlloc_v2 1099511627776", func() any { return u64 }, uint64(0xabcdef0123456789)},
		{func() code { return l.MemFree(high) }, "cuMemFree_v2 fedcba9876543210", nil, nil},
		{func() code { return l.MemGetInfo(&u64, &v) }, "cuMemGetInfo_v2", func() any { return [2]uint64{u64, v} }, [2]uint64{5, 6}},
		{func() code { return l.MemcpyHtoD(high, unsafe.Pointer(&data[0]), 4) }, "cuMemcpyHtoD_v2 fedcba9876543210 data 4", nil, nil},
		{func() code { return l.MemcpyDtoH(unsafe.Pointer(&data[0]), high, 3) }, "cuMemcpyDtoH_v2 fedcba9876543210 3",
			func() any { return string(data) }, "zzza"},
		{func() code { return l.MemsetD8Async(high, 200, 1<<40, 0x99) }, "cuMemsetD8Async fedcba9876543210 200 1099511627776 0x99", nil, nil},
		{func() code { return l.ModuleLoadDataEx(&pointer, cString("image"), jit) }, "cuModuleLoadDataEx image 2: 5 6 32",
			func() any { return goString(&log[0]) }, "log"},
		{func() code { return l.ModuleGetFunction(&pointer, 0x77, cString("add")) }, "cuModuleGetFunction 0x77 add",
			func() any { return pointer }, uintptr(0x88)},
		{func() code { return l.ModuleUnload(0x77) }, "cuModuleUnload 0x77", nil, nil},
		{func() code { return l.FuncSetAttribute(0x88, 8, 232448) }, "cuFuncSetAttribute 0x88 8 232448", nil, nil},
		{func() code {
			return l.LaunchKernel(&launch{function: 0x88, gridX: 1<<31 - 1, gridY: 2, gridZ: 3, threads: 128, shared: 5,
				stream: 0x99, params: [1]*byte{cString("params")}})
		}, "cuLaunchKernel 0x88 2147483647 2 3 128 1 1 5 0x99 params 0", nil, nil},
		{func() code { return l.StreamCreate(&pointer, 1) }, "cuStreamCreate 1", func() any { return pointer }, uintptr(0x99)},
		{func() code { return l.StreamDestroy(0x99) }, "cuStreamDestroy_v2 0x99", nil, nil},
		{func() code { return l.StreamQuery(0x99) - notReady }, "cuStreamQuery 0x99", nil, nil},
		{func() code { return l.BeginCapture(0x99, 1) }, "cuStreamBeginCapture_v2 0x99 1", nil, nil},
		{func() code { return l.EndCapture(0x99, &pointer) }, "cuStreamEndCapture 0x99", func() any { return pointer }, uintptr(0xaa)},
		{func() code { return l.GraphInstantiate(&pointer, 0xaa, 1<<40) }, "cuGraphInstantiateWithFlags 0xaa 1099511627776",
			func() any { return pointer }, uintptr(0xbb)},
		{func() code { return l.GraphDestroy(0xaa) }, "cuGraphDestroy 0xaa", nil, nil},
		{func() code { return l.GraphLaunch(0xbb, 0x99) }, "cuGraphLaunch 0xbb 0x99", nil, nil},
		{func() code { return l.GraphExecDestroy(0xbb) }, "cuGraphExecDestroy 0xbb", nil, nil},
		{func() code { return l.EventCreate(&pointer, 3) }, "cuEventCreate 3", func() any { return pointer }, uintptr(0xcc)},
		{func() code { return l.EventDestroy(0xcc) }, "cuEventDestroy_v2 0xcc", nil, nil},
		{func() code { return l.EventRecord(0xcc, 0x99) }, "cuEventRecord 0xcc 0x99", nil, nil},
		{func() code { return l.EventElapsedTime(&f32, 0xcc, 0xdd) }, "cuEventElapsedTime 0xcc 0xdd", func() any { return f32 }, float32(2.5)},
	}
	if n := reflect.TypeFor[library]().NumField(); n != len(tests) {
		t.Errorf("%d functions, %d tests", n, len(tests))
	}
	for _, test := range tests {
		c := test.call()
		if got := record(); c != success || got != test.want {
			t.Errorf("returned %d, C saw %q, want %q", c, got, test.want)
		}
		if test.got != nil && test.got() != test.gave {
			t.Errorf("%s: gave %v, want %v", test.want, test.got(), test.gave)
		}
	}
}
