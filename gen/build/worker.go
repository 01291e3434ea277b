package build

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/kgen-project/kgen/gen/subprocess"
	"github.com/kgen-project/kgen/runtime/nvrtc"
)

// answer is what a worker says to a program.
type answer struct {
	Version  string
	Result   nvrtc.Result
	Rejected *nvrtc.CompileError
	Failure  string // any other failure
}

// Work is a worker of [Isolate]: it compiles the programs that it reads from
// in with the NVRTC at path library, until in ends. Its answers go to out,
// which should be no stream that the compiler might write to.
func Work(ctx context.Context, library string, in io.Reader, out io.Writer) error {
	compiler, openErr := nvrtc.Open(library)
	programs, answers := gob.NewDecoder(in), gob.NewEncoder(out)
	for {
		var p nvrtc.Program
		if err := programs.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("build: read a program: %w", err)
		}
		var a answer
		if err := openErr; err != nil {
			a.Failure = err.Error()
		} else {
			a.Version = compiler.Version()
			a.Result, err = compiler.Compile(ctx, p)
			if err != nil && !errors.As(err, &a.Rejected) {
				a.Failure = err.Error()
			}
		}
		if err := answers.Encode(a); err != nil {
			return fmt.Errorf("build: answer: %w", err)
		}
	}
}

// WorkerAnswers is the descriptor that a worker process of [Isolate] answers on.
const WorkerAnswers = 3

// Isolate has NVRTC work in processes of its own, so that a crash of the
// compiler is an error and a cancelled compile ends at once. command, with
// the library's path added, must call [Work] with its standard input and the
// descriptor [WorkerAnswers]. Workers live until stop is called. nvcc is such a process
// already and is returned as it is.
func Isolate(c Compiler, command ...string) (isolated Compiler, stop func()) {
	inner, ok := c.(*nvrtcCompiler)
	if !ok {
		return c, func() {}
	}
	pool := &workers{command: append(command, inner.path)}
	return &nvrtcCompiler{path: inner.path, version: inner.version, compile: pool.compile}, pool.stop
}

// workers is the processes that have nothing to do.
type workers struct {
	command []string
	mu      sync.Mutex
	idle    []*worker
}

func (w *workers) compile(ctx context.Context, p nvrtc.Program) (string, nvrtc.Result, error) {
	one, err := w.take()
	if err != nil {
		return "", nvrtc.Result{}, err
	}
	a, err := one.ask(ctx, p)
	if err != nil {
		return "", nvrtc.Result{}, err
	}
	w.mu.Lock()
	w.idle = append(w.idle, one)
	w.mu.Unlock()
	switch {
	case a.Rejected != nil:
		return a.Version, nvrtc.Result{}, a.Rejected
	case a.Failure != "":
		return a.Version, nvrtc.Result{}, errors.New(a.Failure)
	}
	return a.Version, a.Result, nil
}

func (w *workers) take() (*worker, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.idle); n > 0 {
		one := w.idle[n-1]
		w.idle = w.idle[:n-1]
		return one, nil
	}
	return startWorker(w.command)
}

func (w *workers) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.idle {
		_ = one.end() // how an idle worker ends is of no interest
	}
	w.idle = nil
}

// worker is one process.
type worker struct {
	cmd      *exec.Cmd
	in       io.WriteCloser
	out      *os.File
	programs *gob.Encoder
	answers  *gob.Decoder
	said     *bytes.Buffer // on its standard output and error
}

func startWorker(command []string) (*worker, error) {
	fail := func(err error) (*worker, error) { return nil, fmt.Errorf("build: start a compiler process: %w", err) }
	answers, childAnswers, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer childAnswers.Close()
	w := &worker{cmd: exec.Command(command[0], command[1:]...), out: answers, said: new(bytes.Buffer)}
	// NVRTC has a cache of its own where there is a driver, and no messages for what it
	// takes from there; kgen's cache keeps both.
	w.cmd.Env = append(os.Environ(), "CUDA_CACHE_DISABLE=1")
	w.cmd.Stdout, w.cmd.Stderr = w.said, w.said
	w.cmd.ExtraFiles = []*os.File{childAnswers} // the first is WorkerAnswers
	subprocess.OwnGroup(w.cmd)
	w.cmd.WaitDelay = time.Second
	if w.in, err = w.cmd.StdinPipe(); err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		answers.Close()
		return fail(err)
	}
	w.programs, w.answers = gob.NewEncoder(w.in), gob.NewDecoder(answers)
	return w, nil
}

// ask has the worker compile a program. After an error the worker has ended.
func (w *worker) ask(ctx context.Context, p nvrtc.Program) (answer, error) {
	stopWatching := context.AfterFunc(ctx, func() { _ = w.cmd.Process.Kill() }) // it may have ended by itself
	defer stopWatching()
	var a answer
	err := w.programs.Encode(p)
	if err == nil {
		err = w.answers.Decode(&a)
	}
	if err == nil && stopWatching() {
		return a, nil
	}
	ended := w.end()
	if ctx.Err() != nil {
		return answer{}, ctx.Err()
	}
	if ended == nil {
		ended = err
	}
	said, _, _ := strings.Cut(w.said.String(), "\nPC=") // what follows is Go's account of the process
	return answer{}, fmt.Errorf("build: %s for %s: the compiler crashed: %w\n%s", p.Name, p.Target, ended, strings.TrimSpace(said))
}

func (w *worker) end() error {
	w.in.Close()
	defer w.out.Close()
	return w.cmd.Wait()
}
