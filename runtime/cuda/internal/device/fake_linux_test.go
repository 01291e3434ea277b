package device

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// fake is a libcuda that computes nothing: it counts what is held, and finds
// calls on threads where no context is current.
type fake struct {
	mu       sync.Mutex
	next     uint64
	held     map[uint64]string  // handle or address: what it is
	owner    map[uint64]uintptr // handle or address: the context it was made in
	current  map[int]uintptr    // thread: context
	queries  map[uintptr]int    // stream or event: answers "not ready" to come
	recorded map[uintptr]bool   // stream: capture under way
	memory   map[uint64][]byte
	shared   map[uintptr]int32
	launches []Launch
	params   [][]byte
	early    []earlyLaunch
	images   [][]byte
	maps     []TensorMap
	calls    map[string]int
	misuse   []string

	total     uint64                             // bytes that Alloc may give at once
	paramSize int                                // bytes of a launch's parameters
	JITLog    string                             // what loading a module logs
	inject    func(symbol string, call int) Code // Code to fail the symbol's call-th call with
}

type earlyLaunch struct {
	Launch
	attribute, value int32
}

func newFake() *fake {
	return &fake{
		next: 4096, held: map[uint64]string{}, owner: map[uint64]uintptr{}, current: map[int]uintptr{}, queries: map[uintptr]int{},
		recorded: map[uintptr]bool{}, memory: map[uint64][]byte{}, shared: map[uintptr]int32{},
		calls: map[string]int{}, total: 1 << 30, paramSize: 8,
		inject: func(string, int) Code { return Success },
	}
}

// contextFree are the calls that need no current context.
var contextFree = []string{"cuInit", "cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion", "cuDeviceGetCount",
	"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain",
	"cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent"}

// library returns the fake's functions. A call that gives something back does
// so even where it is made to fail, as libcuda does when it reports an
// earlier launch.
func (f *fake) library() *Library {
	l := f.plain()
	fields := reflect.ValueOf(l).Elem()
	for i := range fields.NumField() {
		field, symbol := fields.Field(i), fields.Type().Field(i).Tag.Get("symbol")
		inner := reflect.ValueOf(field.Interface())
		givesBack := strings.Contains(symbol, "Free") || strings.Contains(symbol, "Destroy") ||
			strings.Contains(symbol, "Release") || strings.Contains(symbol, "Unload") || strings.Contains(symbol, "EndCapture")
		field.Set(reflect.MakeFunc(field.Type(), func(args []reflect.Value) []reflect.Value {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.calls[symbol]++
			if f.current[syscall.Gettid()] == 0 && !slices.Contains(contextFree, symbol) {
				f.misuse = append(f.misuse, symbol+" on a thread without a context")
			}
			c := f.inject(symbol, f.calls[symbol])
			if c == Success {
				return inner.Call(args)
			}
			if givesBack {
				inner.Call(args)
			}
			return []reflect.Value{reflect.ValueOf(c)}
		}))
	}
	return l
}

// maxPitch is the fake's limit of a copy in blocks.
const maxPitch = 40

// row is the bytes of one row of a copy.
func (f *fake) row(side Copy2DSide, row, width uint64) []byte {
	if side.Type == memoryHost {
		return unsafe.Slice((*byte)(unsafe.Add(side.Host, row*side.Pitch)), width)
	}
	at := side.Device + row*side.Pitch
	for base, memory := range f.memory {
		if at >= base && at+width <= base+uint64(len(memory)) {
			return memory[at-base:][:width]
		}
	}
	f.misuse = append(f.misuse, "copy of no memory")
	return nil
}

func (f *fake) leaks() []string {
	return slices.Sorted(maps.Values(f.held))
}

func (f *fake) hold(what string) uint64 {
	f.next += 4096
	f.held[f.next] = what
	f.owner[f.next] = f.current[syscall.Gettid()]
	return f.next
}

func (f *fake) make(p *uintptr, what string) Code {
	*p = uintptr(f.hold(what))
	return Success
}

func (f *fake) release(handle uint64, what string) Code {
	if f.held[handle] != what {
		f.misuse = append(f.misuse, fmt.Sprintf("release of %s %d, which is %q", what, handle, f.held[handle]))
		return 400
	}
	if current := f.current[syscall.Gettid()]; f.owner[handle] != 0 && f.owner[handle] != current {
		f.misuse = append(f.misuse, fmt.Sprintf("release of %s of context %d in context %d", what, f.owner[handle], current))
	}
	delete(f.held, handle)
	return Success
}

func (f *fake) plain() *Library {
	const firstContext = 77
	attributes := map[int32]int32{attributeMultiprocessors: 132, attributeL2Bytes: 50 << 20, attributeMajor: 9,
		attributeMinor: 0, attributeMaxPitch: maxPitch, attributeSharedOptin: 227 << 10}
	return &Library{
		Init:             func(uint32) Code { return Success },
		DriverGetVersion: func(v *int32) Code { *v = 13010; return Success },
		GetErrorName: func(c Code, p **byte) Code {
			names := map[Code]string{1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY", 719: "CUDA_ERROR_LAUNCH_FAILED"}
			if names[c] == "" {
				return 1
			}
			*p = CString(names[c])
			return Success
		},
		GetErrorString: func(c Code, p **byte) Code { *p = CString("described"); return Success },
		DeviceGetCount: func(n *int32) Code { *n = 2; return Success },
		DeviceGet:      func(d *int32, ordinal int32) Code { *d = ordinal; return Success },
		DeviceGetName: func(p *byte, n int32, _ int32) Code {
			copy(unsafe.Slice(p, n), "Fake H200\x00")
			return Success
		},
		DeviceGetAttribute: func(v *int32, a, _ int32) Code { *v = attributes[a]; return Success },
		DeviceTotalMem:     func(n *uint64, _ int32) Code { *n = f.total; return Success },
		ContextRetain: func(p *uintptr, d int32) Code {
			*p = firstContext + uintptr(d)
			f.held[uint64(*p)] = "context"
			return Success
		},
		ContextRelease: func(d int32) Code { return f.release(firstContext+uint64(d), "context") },
		ContextSetCurrent: func(c uintptr) Code {
			f.current[syscall.Gettid()] = c
			return Success
		},
		MemAlloc: func(p *uint64, n uint64) Code {
			if n > f.total {
				return 2
			}
			*p = f.hold("memory")
			f.memory[*p] = make([]byte, n)
			return Success
		},
		MemFree:    func(p uint64) Code { delete(f.memory, p); return f.release(p, "memory") },
		MemGetInfo: func(free, total *uint64) Code { *free, *total = f.total/2, f.total; return Success },
		MemcpyHtoD: func(dst uint64, src unsafe.Pointer, n uint64) Code {
			copy(f.memory[dst], unsafe.Slice((*byte)(src), n))
			return Success
		},
		MemcpyDtoH: func(dst unsafe.Pointer, src uint64, n uint64) Code {
			copy(unsafe.Slice((*byte)(dst), n), f.memory[src])
			return Success
		},
		MemHostAlloc: func(p *unsafe.Pointer, n uint64, _ uint32) Code {
			if n > f.total {
				return 2
			}
			memory := make([]byte, n)
			*p = unsafe.Pointer(&memory[0])
			f.held[uint64(uintptr(*p))] = "host memory"
			return Success
		},
		MemFreeHost: func(p unsafe.Pointer) Code { return f.release(uint64(uintptr(p)), "host memory") },
		Memcpy2DAsync: func(c *Copy2D, _ uintptr) Code {
			for _, side := range []Copy2DSide{c.Src, c.Dst} {
				if side.Pitch < c.Width || side.Pitch > maxPitch {
					return 1
				}
			}
			for row := range c.Height {
				copy(f.row(c.Dst, row, c.Width), f.row(c.Src, row, c.Width))
			}
			return Success
		},
		MemsetD8Async: func(dst uint64, v uint8, n uint64, _ uintptr) Code {
			for i := range f.memory[dst][:n] {
				f.memory[dst][i] = v
			}
			return Success
		},
		ModuleLoadDataEx: func(m *uintptr, image []byte, log *JITLog) Code {
			f.images = append(f.images, slices.Clone(image))
			if f.JITLog != "" {
				copy(unsafe.Slice(log.Values.Log, log.Values.Size), f.JITLog)
				return 218
			}
			return f.make(m, "module")
		},
		ModuleGetFunction: func(k *uintptr, m uintptr, name *byte) Code {
			if GoString(name) != "add" {
				return 500
			}
			*k = 1234
			return Success
		},
		ModuleUnload: func(m uintptr) Code { return f.release(uint64(m), "module") },
		FuncSetAttribute: func(k uintptr, a, v int32) Code {
			if v > 227<<10 {
				return 1
			}
			f.shared[k] = v
			return Success
		},
		LaunchKernel: func(l *Launch) Code {
			f.launches = append(f.launches, *l)
			f.params = append(f.params, slices.Clone(unsafe.Slice(l.Params[0], f.paramSize)))
			f.queries[l.Stream] = 3
			return Success
		},
		LaunchKernelEx: func(l *Launch, attribute, value int32) Code {
			f.early = append(f.early, earlyLaunch{*l, attribute, value})
			f.queries[l.Stream] = 3
			return Success
		},
		StreamCreate:  func(s *uintptr, _ uint32) Code { return f.make(s, "stream") },
		StreamDestroy: func(s uintptr) Code { return f.release(uint64(s), "stream") },
		StreamQuery: func(s uintptr) Code {
			if f.queries[s] > 0 {
				f.queries[s]--
				return NotReady
			}
			return Success
		},
		BeginCapture: func(s uintptr, _ uint32) Code { f.recorded[s] = true; return Success },
		EndCapture: func(s uintptr, g *uintptr) Code {
			if !f.recorded[s] {
				f.misuse = append(f.misuse, "end of a capture that had not begun")
			}
			delete(f.recorded, s)
			return f.make(g, "graph")
		},
		GraphInstantiate: func(e *uintptr, _ uintptr, _ uint64) Code { return f.make(e, "exec") },
		GraphDestroy:     func(g uintptr) Code { return f.release(uint64(g), "graph") },
		GraphLaunch:      func(_, _ uintptr) Code { return Success },
		GraphExecDestroy: func(e uintptr) Code { return f.release(uint64(e), "exec") },
		EventCreate:      func(e *uintptr, _ uint32) Code { return f.make(e, "event") },
		EventDestroy:     func(e uintptr) Code { return f.release(uint64(e), "event") },
		EventQuery: func(e uintptr) Code {
			if f.queries[e] > 0 {
				f.queries[e]--
				return NotReady
			}
			return Success
		},
		EventRecord: func(e, _ uintptr) Code { f.queries[e] = 3; return Success },
		TensorMapEncode: func(m *TensorMap) Code {
			f.maps = append(f.maps, *m)
			m.Map[0], m.Map[127] = 1, 2
			return Success
		},
		StreamWaitEvent: func(s, e uintptr, _ uint32) Code {
			f.queries[s] = max(f.queries[s], f.queries[e])
			return Success
		},
		EventElapsedTime: func(ms *float32, _, _ uintptr) Code { *ms = 1.5; return Success },
	}
}
