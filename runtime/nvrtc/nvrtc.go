// Package nvrtc compiles CUDA C++ to machine code with NVIDIA's run-time
// compiler, loaded with dlopen: no C compiler, no cgo and no GPU is needed.
package nvrtc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// ID names this compiler in cache keys and manifests.
const ID = "nvrtc"

// Program is what one compile takes.
type Program struct {
	Name   string // file name that messages carry, such as llama3_decode.cu; the cubin's bytes depend on it
	Source []byte // CUDA C++ that includes nothing
	Target string // such as sm_90a
	Flags  []string
}

// Result is what a successful compile gives.
type Result struct {
	Cubin []byte
	PTX   []byte // text
	Log   string // warnings, remarks and what the flags ask for; empty for most programs
}

// CompileError is a program that the compiler did not accept.
type CompileError struct {
	Name   string
	Target string
	Reason string // the compiler's word for the failure
	Log    string // its whole message
}

func (e *CompileError) Error() string {
	s := fmt.Sprintf("nvrtc: %s for %s: %s", e.Name, e.Target, e.Reason)
	if log := strings.TrimSpace(e.Log); log != "" {
		s += "\n" + log
	}
	return s
}

// Library is a loaded NVRTC. Its methods are safe for concurrent use, and
// compiles run in parallel. It is never unloaded: open each path once.
type Library struct {
	path    string
	version string

	getVersion     func(major, minor *int32) int32
	errorString    func(code int32) string
	createProgram  func(prog *uintptr, source *byte, name string, headers int32, bodies, names uintptr) int32
	destroyProgram func(prog *uintptr) int32
	compileProgram func(prog uintptr, count int32, options **byte) int32
	cubinSize      func(prog uintptr, size *uintptr) int32
	cubin          func(prog uintptr, dst *byte) int32
	ptxSize        func(prog uintptr, size *uintptr) int32
	ptx            func(prog uintptr, dst *byte) int32
	logSize        func(prog uintptr, size *uintptr) int32
	log            func(prog uintptr, dst *byte) int32
}

// Open loads libnvrtc from a path that [Find] gave. The compiler's built-in
// functions come from the library beside it, where there is one.
func Open(path string) (*Library, error) {
	// libnvrtc itself looks for it in the loader's folders only.
	if builtins := builtinsBeside(path); builtins != "" {
		if _, err := dlopen(builtins, true); err != nil {
			return nil, fmt.Errorf("nvrtc: load %s: %w", builtins, err)
		}
	}
	handle, err := dlopen(path, false)
	if err != nil {
		return nil, fmt.Errorf("nvrtc: load %s: %w", path, err)
	}
	l := &Library{path: path}
	for _, f := range []struct {
		name string
		dst  any
	}{
		{"nvrtcVersion", &l.getVersion},
		{"nvrtcGetErrorString", &l.errorString},
		{"nvrtcCreateProgram", &l.createProgram},
		{"nvrtcDestroyProgram", &l.destroyProgram},
		{"nvrtcCompileProgram", &l.compileProgram},
		{"nvrtcGetCUBINSize", &l.cubinSize},
		{"nvrtcGetCUBIN", &l.cubin},
		{"nvrtcGetPTXSize", &l.ptxSize},
		{"nvrtcGetPTX", &l.ptx},
		{"nvrtcGetProgramLogSize", &l.logSize},
		{"nvrtcGetProgramLog", &l.log},
	} {
		symbol, err := dlsym(handle, f.name)
		if err != nil {
			return nil, fmt.Errorf("nvrtc: %s is too old or not NVRTC: %w", path, err)
		}
		purego.RegisterFunc(f.dst, symbol)
	}
	if l.version, err = l.findVersion(); err != nil {
		return nil, err
	}
	return l, nil
}

// Version is the compiler's full version, such as 13.0.88.
func (l *Library) Version() string { return l.version }

var ptxVersion = regexp.MustCompile(`(?m)^// Cuda compilation tools, release [0-9.]+, V([0-9.]+)`)

// findVersion reads the full version from the heading of an empty program's
// PTX: nvrtcVersion leaves out the last number.
func (l *Library) findVersion() (string, error) {
	var major, minor int32
	if code := l.getVersion(&major, &minor); code != 0 {
		return "", l.failed("nvrtcVersion", code)
	}
	empty, err := l.compile(Program{Name: "version.cu"})
	if err != nil {
		return "", fmt.Errorf("nvrtc: %s does not compile an empty program: %w", l.path, err)
	}
	m := ptxVersion.FindSubmatch(empty.PTX)
	if m == nil || !strings.HasPrefix(string(m[1]), fmt.Sprintf("%d.%d.", major, minor)) {
		return "", fmt.Errorf("nvrtc: %s gives no version that kgen can read", l.path)
	}
	return string(m[1]), nil
}

// Compile makes a cubin, the same bytes every time. A program that the compiler does not accept is a
// [*CompileError].
//
// When ctx ends Compile returns ctx's error at once. NVRTC can't be relied on
// to stop: the compile goes on in its thread and its result is dropped.
func (l *Library) Compile(ctx context.Context, p Program) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if p.Target == "" {
		return Result{}, errors.New("nvrtc: no target")
	}
	p.Flags = append([]string{"--gpu-architecture=" + p.Target}, p.Flags...)
	type outcome struct {
		result Result
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := l.compile(p)
		done <- outcome{result, err}
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

// compile runs one compile in this thread.
func (l *Library) compile(p Program) (r Result, err error) {
	source := append(append(make([]byte, 0, len(p.Source)+1), p.Source...), 0)
	if end := bytes.IndexByte(source, 0); end < len(p.Source) {
		return Result{}, fmt.Errorf("nvrtc: %s: byte %d of the source is zero", p.Name, end)
	}
	var prog uintptr
	if code := l.createProgram(&prog, &source[0], p.Name, 0, 0, 0); code != 0 {
		return Result{}, l.failed("nvrtcCreateProgram", code)
	}
	defer l.destroyProgram(&prog)
	status := l.compileWith(prog, p.Flags)
	log, err := l.read("nvrtcGetProgramLog", prog, l.logSize, l.log)
	if err != nil {
		return Result{}, err
	}
	r.Log = cString(log)
	if status != 0 {
		return Result{}, &CompileError{Name: p.Name, Target: p.Target, Reason: l.errorString(status), Log: r.Log}
	}
	ptx, err := l.read("nvrtcGetPTX", prog, l.ptxSize, l.ptx)
	if err != nil {
		return Result{}, err
	}
	r.PTX = []byte(cString(ptx))
	if r.Cubin, err = l.read("nvrtcGetCUBIN", prog, l.cubinSize, l.cubin); err != nil {
		return Result{}, err
	}
	return r, nil
}

func cString(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func (l *Library) compileWith(prog uintptr, flags []string) int32 {
	if len(flags) == 0 {
		return l.compileProgram(prog, 0, nil)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	options := make([]*byte, len(flags))
	for i, f := range flags {
		options[i] = &append([]byte(f), 0)[0]
		pin.Pin(options[i])
	}
	return l.compileProgram(prog, int32(len(options)), unsafe.SliceData(options))
}

func (l *Library) read(what string, prog uintptr, size func(uintptr, *uintptr) int32, get func(uintptr, *byte) int32) ([]byte, error) {
	var n uintptr
	if code := size(prog, &n); code != 0 {
		return nil, l.failed(what, code)
	}
	if n == 0 {
		return nil, nil
	}
	dst := make([]byte, n)
	if code := get(prog, &dst[0]); code != 0 {
		return nil, l.failed(what, code)
	}
	return dst, nil
}

func (l *Library) failed(call string, code int32) error {
	return fmt.Errorf("nvrtc: %s: %s", call, l.errorString(code))
}
