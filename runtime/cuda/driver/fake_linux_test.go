package driver

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
	queries  map[uintptr]int    // stream: answers "not ready" to come
	recorded map[uintptr]bool   // stream: capture under way
	memory   map[uint64][]byte
	shared   map[uintptr]int32
	launches []launch
	params   [][]byte
	images   [][]byte
	calls    map[string]int
	misuse   []string

	total     uint64                             // bytes that Alloc may give at once
	paramSize int                                // bytes of a launch's parameters
	jitLog    string                             // what loading a module logs
	inject    func(symbol string, call int) code // code to fail the symbol's call-th call with
}

func newFake() *fake {
	return &fake{
		next: 4096, held: map[uint64]string{}, owner: map[uint64]uintptr{}, current: map[int]uintptr{}, queries: map[uintptr]int{},
		recorded: map[uintptr]bool{}, memory: map[uint64][]byte{}, shared: map[uintptr]int32{},
		calls: map[string]int{}, total: 1 << 30, paramSize: 8,
		inject: func(string, int) code { return success },
	}
}

// contextFree are the calls that need no current context.
var contextFree = []string{"cuInit", "cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion", "cuDeviceGetCount",
	"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain",
	"cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent"}

// library returns the fake's functions. A call that gives something back does
// so even where it is made to fail, as libcuda does when it reports an
// earlier launch.
func (f *fake) library() *library {
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
			if c == success {
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

func (f *fake) leaks() []string {
	return slices.Sorted(maps.Values(f.held))
}

func (f *fake) hold(what string) uint64 {
	f.next += 4096
	f.held[f.next] = what
	f.owner[f.next] = f.current[syscall.Gettid()]
	return f.next
}

func (f *fake) make(p *uintptr, what string) code {
	*p = uintptr(f.hold(what))
	return success
}

func (f *fake) release(handle uint64, what string) code {
	if f.held[handle] != what {
		f.misuse = append(f.misuse, fmt.Sprintf("release of %s %d, which is %q", what, handle, f.held[handle]))
		return 400
	}
	if current := f.current[syscall.Gettid()]; f.owner[handle] != 0 && f.owner[handle] != current {
		f.misuse = append(f.misuse, fmt.Sprintf("release of %s of context %d in context %d", what, f.owner[handle], current))
	}
	delete(f.held, handle)
	return success
}

func (f *fake) plain() *library {
	const firstContext = 77
	attributes := map[int32]int32{attributeMultiprocessors: 132, attributeL2Bytes: 50 << 20, attributeMajor: 9,
		attributeMinor: 0, attributeSharedOptin: 227 << 10}
	return &library{
		Init:             func(uint32) code { return success },
		DriverGetVersion: func(v *int32) code { *v = 13010; return success },
		GetErrorName: func(c code, p **byte) code {
			names := map[code]string{1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY", 719: "CUDA_ERROR_LAUNCH_FAILED"}
			if names[c] == "" {
				return 1
			}
			*p = cString(names[c])
			return success
		},
		GetErrorString: func(c code, p **byte) code { *p = cString("described"); return success },
		DeviceGetCount: func(n *int32) code { *n = 2; return success },
		DeviceGet:      func(d *int32, ordinal int32) code { *d = ordinal; return success },
		DeviceGetName: func(p *byte, n int32, _ int32) code {
			copy(unsafe.Slice(p, n), "Fake H200\x00")
			return success
		},
		DeviceGetAttribute: func(v *int32, a, _ int32) code { *v = attributes[a]; return success },
		DeviceTotalMem:     func(n *uint64, _ int32) code { *n = f.total; return success },
		ContextRetain: func(p *uintptr, d int32) code {
			*p = firstContext + uintptr(d)
			f.held[uint64(*p)] = "context"
			return success
		},
		ContextRelease: func(d int32) code { return f.release(firstContext+uint64(d), "context") },
		ContextSetCurrent: func(c uintptr) code {
			f.current[syscall.Gettid()] = c
			return success
		},
		MemAlloc: func(p *uint64, n uint64) code {
			if n > f.total {
				return 2
			}
			*p = f.hold("memory")
			f.memory[*p] = make([]byte, n)
			return success
		},
		MemFree:    func(p uint64) code { delete(f.memory, p); return f.release(p, "memory") },
		MemGetInfo: func(free, total *uint64) code { *free, *total = f.total/2, f.total; return success },
		MemcpyHtoD: func(dst uint64, src unsafe.Pointer, n uint64) code {
			copy(f.memory[dst], unsafe.Slice((*byte)(src), n))
			return success
		},
		MemcpyDtoH: func(dst unsafe.Pointer, src uint64, n uint64) code {
			copy(unsafe.Slice((*byte)(dst), n), f.memory[src])
			return success
		},
		MemsetD8Async: func(dst uint64, v uint8, n uint64, _ uintptr) code {
			for i := range f.memory[dst][:n] {
				f.memory[dst][i] = v
			}
			return success
		},
		ModuleLoadDataEx: func(m *uintptr, image *byte, log *jitLog) code {
			f.images = append(f.images, slices.Clone(unsafe.Slice(image, 5)))
			if f.jitLog != "" {
				copy(unsafe.Slice(log.values.log, log.values.size), f.jitLog)
				return 218
			}
			return f.make(m, "module")
		},
		ModuleGetFunction: func(k *uintptr, m uintptr, name *byte) code {
			if goString(name) != "add" {
				return 500
			}
			*k = 1234
			return success
		},
		ModuleUnload: func(m uintptr) code { return f.release(uint64(m), "module") },
		FuncSetAttribute: func(k uintptr, a, v int32) code {
			if v > 227<<10 {
				return 1
			}
			f.shared[k] = v
			return success
		},
		LaunchKernel: func(l *launch) code {
			f.launches = append(f.launches, *l)
			f.params = append(f.params, slices.Clone(unsafe.Slice(l.params[0], f.paramSize)))
			f.queries[l.stream] = 3
			return success
		},
		StreamCreate:  func(s *uintptr, _ uint32) code { return f.make(s, "stream") },
		StreamDestroy: func(s uintptr) code { return f.release(uint64(s), "stream") },
		StreamQuery: func(s uintptr) code {
			if f.queries[s] > 0 {
				f.queries[s]--
				return notReady
			}
			return success
		},
		BeginCapture: func(s uintptr, _ uint32) code { f.recorded[s] = true; return success },
		EndCapture: func(s uintptr, g *uintptr) code {
			if !f.recorded[s] {
				f.misuse = append(f.misuse, "end of a capture that had not begun")
			}
			delete(f.recorded, s)
			return f.make(g, "graph")
		},
		GraphInstantiate: func(e *uintptr, _ uintptr, _ uint64) code { return f.make(e, "exec") },
		GraphDestroy:     func(g uintptr) code { return f.release(uint64(g), "graph") },
		GraphLaunch:      func(_, _ uintptr) code { return success },
		GraphExecDestroy: func(e uintptr) code { return f.release(uint64(e), "exec") },
		EventCreate:      func(e *uintptr, _ uint32) code { return f.make(e, "event") },
		EventDestroy:     func(e uintptr) code { return f.release(uint64(e), "event") },
		EventRecord:      func(_, _ uintptr) code { return success },
		EventElapsedTime: func(ms *float32, _, _ uintptr) code { *ms = 1.5; return success },
	}
}
