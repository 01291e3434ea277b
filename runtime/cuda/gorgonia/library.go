//go:build gorgonia && linux && cgo

package gorgonia

/*
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>

// Handles come as integers: to Go they are no pointers.

static CUresult kgenFuncSetAttribute(uintptr_t f, int attribute, int value) {
  return cuFuncSetAttribute((CUfunction)f, (CUfunction_attribute)attribute, value);
}

static CUresult kgenLaunchKernel(uintptr_t f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared,
                                 uintptr_t stream, void *params) {
  void *arguments[] = {params};
  return cuLaunchKernel((CUfunction)f, x, y, z, threads, 1, 1, shared, (CUstream)stream, arguments, NULL);
}

static CUresult kgenLaunchKernelEx(uintptr_t f, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared,
                                   uintptr_t stream, void *params, int attribute, int value) {
  void *arguments[] = {params};
  CUlaunchAttribute with = {.id = (CUlaunchAttributeID)attribute};
  *(int *)&with.value = value;
  CUlaunchConfig c = {x, y, z, threads, 1, 1, shared, (CUstream)stream, &with, 1};
  return cuLaunchKernelEx(&c, (CUfunction)f, arguments, NULL);
}

static CUresult kgenMemcpy2D(size_t srcX, size_t srcY, int srcType, const void *srcHost, CUdeviceptr src, uintptr_t srcArray,
                             size_t srcPitch, size_t dstX, size_t dstY, int dstType, void *dstHost, CUdeviceptr dst,
                             uintptr_t dstArray, size_t dstPitch, size_t width, size_t height, uintptr_t stream) {
  CUDA_MEMCPY2D c = {srcX, srcY, (CUmemorytype)srcType, srcHost, src, (CUarray)srcArray, srcPitch,
                     dstX, dstY, (CUmemorytype)dstType, dstHost, dst, (CUarray)dstArray, dstPitch, width, height};
  return cuMemcpy2DAsync(&c, (CUstream)stream);
}

static CUresult kgenBeginCapture(uintptr_t stream, unsigned mode) {
  return cuStreamBeginCapture((CUstream)stream, (CUstreamCaptureMode)mode);
}

static CUresult kgenEndCapture(uintptr_t stream, uintptr_t *graph) {
  return cuStreamEndCapture((CUstream)stream, (CUgraph *)graph);
}

static CUresult kgenGraphInstantiate(uintptr_t *exec, uintptr_t graph, unsigned long long flags) {
  return cuGraphInstantiateWithFlags((CUgraphExec *)exec, (CUgraph)graph, flags);
}

static CUresult kgenGraphLaunch(uintptr_t exec, uintptr_t stream) {
  return cuGraphLaunch((CUgraphExec)exec, (CUstream)stream);
}

static CUresult kgenTensorMapEncode(void *map, int type, unsigned rank, uintptr_t base, const void *dims, const void *strides,
                                    const void *box, const void *steps, int interleave, int swizzle, int l2, int fill) {
  return cuTensorMapEncodeTiled((CUtensorMap *)map, (CUtensorMapDataType)type, rank, (void *)base, dims, strides, box, steps,
                                (CUtensorMapInterleave)interleave, (CUtensorMapSwizzle)swizzle, (CUtensorMapL2promotion)l2,
                                (CUtensorMapFloatOOBfill)fill);
}
*/
import "C"

import (
	"reflect"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/kgen-project/kgen/runtime/cuda/internal/device"
)

// library is libcuda by gorgonia.org/cu. What that lacks is called here: the
// names of errors, attributes of functions, captured graphs, tensor maps, host
// memory that comes with a code, copies from or to host memory in rows. So are
// launches, for its own pass parameters of 8 bytes each and not a struct, and
// cuDriverGetVersion, whose code it drops.
func library() *device.Library {
	return &device.Library{
		Init: func(flags uint32) device.Code { return device.Code(C.cuInit(C.uint(flags))) },
		GetErrorName: func(c device.Code, name **byte) device.Code {
			return device.Code(C.cuGetErrorName(C.CUresult(c), (**C.char)(unsafe.Pointer(name))))
		},
		GetErrorString: func(c device.Code, text **byte) device.Code {
			return device.Code(C.cuGetErrorString(C.CUresult(c), (**C.char)(unsafe.Pointer(text))))
		},
		DriverGetVersion: func(version *int32) device.Code {
			return device.Code(C.cuDriverGetVersion((*C.int)(version)))
		},
		DeviceGetCount: func(count *int32) device.Code {
			n, err := cu.NumDevices()
			*count = int32(n)
			return code(err)
		},
		DeviceGet: func(d *int32, ordinal int32) device.Code {
			got, err := cu.GetDevice(int(ordinal))
			*d = int32(got)
			return code(err)
		},
		DeviceGetName: func(name *byte, size, d int32) device.Code {
			got, err := cu.Device(d).Name()
			to := unsafe.Slice(name, size)
			to[copy(to[:size-1], got)] = 0
			return code(err)
		},
		DeviceGetAttribute: func(value *int32, attribute, d int32) device.Code {
			got, err := cu.Device(d).Attribute(cu.DeviceAttribute(attribute))
			*value = int32(got)
			return code(err)
		},
		DeviceTotalMem: func(bytes *uint64, d int32) device.Code {
			got, err := cu.Device(d).TotalMem()
			*bytes = uint64(got)
			return code(err)
		},
		ContextRetain: func(context *uintptr, d int32) device.Code {
			got, err := cu.Device(d).RetainPrimaryCtx()
			*context = handle(got)
			return code(err)
		},
		ContextRelease:    func(d int32) device.Code { return code(cu.Device(d).ReleasePrimaryCtx()) },
		ContextSetCurrent: func(context uintptr) device.Code { return code(cu.SetCurrentContext(as[cu.CUContext](context))) },
		MemAlloc: func(p *uint64, bytes uint64) device.Code {
			got, err := cu.MemAlloc(int64(bytes))
			*p = uint64(got)
			return code(err)
		},
		MemFree: func(p uint64) device.Code { return code(cu.MemFree(cu.DevicePtr(p))) },
		MemGetInfo: func(free, total *uint64) device.Code {
			f, t, err := cu.MemInfo()
			*free, *total = uint64(f), uint64(t)
			return code(err)
		},
		MemcpyHtoD: func(dst uint64, src unsafe.Pointer, bytes uint64) device.Code {
			return code(cu.MemcpyHtoD(cu.DevicePtr(dst), src, int64(bytes)))
		},
		MemcpyDtoH: func(dst unsafe.Pointer, src uint64, bytes uint64) device.Code {
			return code(cu.MemcpyDtoH(dst, cu.DevicePtr(src), int64(bytes)))
		},
		MemHostAlloc: func(p *unsafe.Pointer, bytes uint64, flags uint32) device.Code {
			return device.Code(C.cuMemHostAlloc(p, C.size_t(bytes), C.uint(flags)))
		},
		MemFreeHost: func(p unsafe.Pointer) device.Code { return device.Code(C.cuMemFreeHost(p)) },
		Memcpy2DAsync: func(c *device.Copy2D, s uintptr) device.Code {
			// The struct holds pointers, perhaps to Go's memory, which cgo passes by themselves only.
			src, dst := &c.Src, &c.Dst
			return device.Code(C.kgenMemcpy2D(C.size_t(src.X), C.size_t(src.Y), C.int(src.Type), src.Host, C.CUdeviceptr(src.Device),
				C.uintptr_t(src.Array), C.size_t(src.Pitch), C.size_t(dst.X), C.size_t(dst.Y), C.int(dst.Type), dst.Host,
				C.CUdeviceptr(dst.Device), C.uintptr_t(dst.Array), C.size_t(dst.Pitch), C.size_t(c.Width), C.size_t(c.Height),
				C.uintptr_t(s)))
		},
		MemsetD8Async: func(dst uint64, value uint8, n uint64, s uintptr) device.Code {
			return code(cu.MemsetD8Async(cu.DevicePtr(dst), value, int64(n), as[cu.Stream](s)))
		},
		ModuleLoadDataEx: loadModule,
		ModuleGetFunction: func(f *uintptr, m uintptr, name *byte) device.Code {
			got, err := as[cu.Module](m).Function(device.GoString(name))
			*f = handle(got)
			return code(err)
		},
		ModuleUnload: func(m uintptr) device.Code { return code(as[cu.Module](m).Unload()) },
		FuncSetAttribute: func(f uintptr, attribute, value int32) device.Code {
			return device.Code(C.kgenFuncSetAttribute(C.uintptr_t(f), C.int(attribute), C.int(value)))
		},
		LaunchKernel: func(l *device.Launch) device.Code {
			params := l.Params[0]
			return device.Code(C.kgenLaunchKernel(C.uintptr_t(l.Function), C.uint(l.GridX), C.uint(l.GridY), C.uint(l.GridZ),
				C.uint(l.Threads), C.uint(l.Shared), C.uintptr_t(l.Stream), unsafe.Pointer(params)))
		},
		LaunchKernelEx: func(l *device.Launch, attribute, value int32) device.Code {
			params := l.Params[0]
			return device.Code(C.kgenLaunchKernelEx(C.uintptr_t(l.Function), C.uint(l.GridX), C.uint(l.GridY), C.uint(l.GridZ),
				C.uint(l.Threads), C.uint(l.Shared), C.uintptr_t(l.Stream), unsafe.Pointer(params), C.int(attribute), C.int(value)))
		},
		StreamCreate: func(s *uintptr, flags uint32) device.Code {
			got, err := cu.MakeStream(cu.StreamFlags(flags))
			*s = handle(got)
			return code(err)
		},
		StreamDestroy: func(s uintptr) device.Code {
			stream := as[cu.Stream](s)
			return code(stream.Destroy())
		},
		StreamQuery: func(s uintptr) device.Code { return code(as[cu.Stream](s).Query()) },
		BeginCapture: func(s uintptr, mode uint32) device.Code {
			return device.Code(C.kgenBeginCapture(C.uintptr_t(s), C.uint(mode)))
		},
		EndCapture: func(s uintptr, graph *uintptr) device.Code {
			return device.Code(C.kgenEndCapture(C.uintptr_t(s), (*C.uintptr_t)(unsafe.Pointer(graph))))
		},
		GraphInstantiate: func(exec *uintptr, graph uintptr, flags uint64) device.Code {
			return device.Code(C.kgenGraphInstantiate((*C.uintptr_t)(unsafe.Pointer(exec)), C.uintptr_t(graph), C.ulonglong(flags)))
		},
		GraphDestroy: func(graph uintptr) device.Code { return code(as[cu.Graph](graph).Destroy()) },
		GraphLaunch: func(exec, s uintptr) device.Code {
			return device.Code(C.kgenGraphLaunch(C.uintptr_t(exec), C.uintptr_t(s)))
		},
		GraphExecDestroy: func(exec uintptr) device.Code { return code(as[cu.ExecGraph](exec).Destroy()) },
		EventCreate: func(event *uintptr, flags uint32) device.Code {
			got, err := cu.MakeEvent(cu.EventFlags(flags))
			*event = handle(got)
			return code(err)
		},
		EventDestroy: func(event uintptr) device.Code {
			e := as[cu.Event](event)
			return code(cu.DestroyEvent(&e))
		},
		EventQuery: func(event uintptr) device.Code { return code(as[cu.Event](event).Query()) },
		StreamWaitEvent: func(s, event uintptr, flags uint32) device.Code {
			return code(as[cu.Stream](s).Wait(as[cu.Event](event), uint(flags)))
		},
		EventRecord: func(event, s uintptr) device.Code { return code(as[cu.Event](event).Record(as[cu.Stream](s))) },
		EventElapsedTime: func(milliseconds *float32, start, end uintptr) device.Code {
			got, err := as[cu.Event](start).Elapsed(as[cu.Event](end))
			*milliseconds = float32(got)
			return code(err)
		},
		TensorMapEncode: func(m *device.TensorMap) device.Code {
			return device.Code(C.kgenTensorMapEncode(unsafe.Pointer(m.Map), C.int(m.DataType), C.uint(m.Rank), C.uintptr_t(m.Base),
				unsafe.Pointer(&m.Dims[0]), unsafe.Pointer(&m.Strides[0]), unsafe.Pointer(&m.Box[0]), unsafe.Pointer(&m.ElementStrides[0]),
				C.int(m.Interleave), C.int(m.Swizzle), C.int(m.L2Promotion), C.int(m.OutOfBounds)))
		},
	}
}

// loadModule gives the driver a log in C's memory: cgo lets no pointer to
// Go's be passed inside of an array.
func loadModule(m *uintptr, image []byte, log *device.JITLog) device.Code {
	size := log.Values.Size
	buffer := (*byte)(C.calloc(C.size_t(size), 1))
	defer C.free(unsafe.Pointer(buffer))
	inC := unsafe.Slice(buffer, size)
	got, err := cu.LoadDataEx(string(image), &cu.JITErrorLogBuffer{Buffer: inC})
	*m = handle(got)
	copy(unsafe.Slice(log.Values.Log, size), inC)
	return code(err)
}

// code is the CUresult that cu has made an error of. Its type is not exported.
func code(err error) device.Code {
	if err == nil {
		return device.Success
	}
	if v := reflect.ValueOf(err); v.CanInt() {
		return device.Code(v.Int())
	}
	return unknown
}

const unknown = 999 // CUDA_ERROR_UNKNOWN

// handles are cu's types that hold one pointer of the driver's and no more.
type handles interface {
	cu.CUContext | cu.Module | cu.Function | cu.Stream | cu.Event | cu.Graph | cu.ExecGraph
}

func handle[T handles](v T) uintptr { return *(*uintptr)(unsafe.Pointer(&v)) }

func as[T handles](h uintptr) T { return *(*T)(unsafe.Pointer(&h)) }

// A type of another size would not be such a handle: then this does not compile.
var (
	_ [unsafe.Sizeof(cu.CUContext{})]byte = [unsafe.Sizeof(uintptr(0))]byte{}
	_ [unsafe.Sizeof(cu.Module{})]byte    = [unsafe.Sizeof(uintptr(0))]byte{}
	_ [unsafe.Sizeof(cu.Function{})]byte  = [unsafe.Sizeof(uintptr(0))]byte{}
	_ [unsafe.Sizeof(cu.Stream{})]byte    = [unsafe.Sizeof(uintptr(0))]byte{}
	_ [unsafe.Sizeof(cu.Event{})]byte     = [unsafe.Sizeof(uintptr(0))]byte{}
	_ [unsafe.Sizeof(cu.Graph{})]byte     = [unsafe.Sizeof(uintptr(0))]byte{}
	_ [unsafe.Sizeof(cu.ExecGraph{})]byte = [unsafe.Sizeof(uintptr(0))]byte{}
)
