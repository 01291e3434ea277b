package emulate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

// call numbers what the host process does; templates/emu/host.cpp has the same list.
type call uint64

const (
	callAllocate call = iota + 1 // bytes -> address
	callFree                     // address
	callUpload                   // address; in: data
	callDownload                 // address, bytes; out: data
	callFill                     // address, bytes, value
	callLoad                     // in: path -> library
	callUnload                   // library
	callKernel                   // library; in: entry -> kernel
	callLaunch                   // kernel, grid x y z, threads, shared bytes, seed, limit in ms, whether early; in: params; out: counters
)

type request struct {
	Call      call
	Arguments [9]uint64
	Bytes     uint64
}

type answer struct {
	Failed, Value, Bytes uint64
}

// host is the emulator's process.
type host struct {
	mu     sync.Mutex // one request at a time
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.Reader
	stderr *tail
	ctx    context.Context // bounds the process's life
	dead   error           // why it can't answer any more
}

func startHost(ctx context.Context, path string) (*host, error) {
	h := &host{cmd: exec.CommandContext(ctx, path), stderr: &tail{limit: 4096}, ctx: ctx}
	h.cmd.Stderr = h.stderr
	var err error
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if h.stdout, err = h.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return h, h.cmd.Start()
}

// call sends one request and waits for its answer. out is filled with the
// answer's data, which must have its length. A process that ended makes this
// and every later call fail.
func (h *host) call(c call, arguments []uint64, in, out []byte) (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead != nil {
		return 0, h.dead
	}
	value, failure, err := h.exchange(c, arguments, in, out)
	if err != nil {
		h.dead = h.end(err)
		return 0, h.dead
	}
	return value, failure
}

// exchange returns the host's own failure apart from that of the pipe.
func (h *host) exchange(c call, arguments []uint64, in, out []byte) (value uint64, failure, err error) {
	q := request{Call: c, Bytes: uint64(len(in))}
	copy(q.Arguments[:], arguments)
	var head bytes.Buffer
	if err := binary.Write(&head, binary.LittleEndian, q); err != nil {
		return 0, nil, err
	}
	if _, err := h.stdin.Write(head.Bytes()); err != nil {
		return 0, nil, err
	}
	if _, err := h.stdin.Write(in); err != nil {
		return 0, nil, err
	}
	var a answer
	if err := binary.Read(h.stdout, binary.LittleEndian, &a); err != nil {
		return 0, nil, err
	}
	if a.Failed != 0 {
		text := make([]byte, a.Bytes)
		_, err := io.ReadFull(h.stdout, text)
		return 0, errors.New(string(text)), err
	}
	if a.Bytes != uint64(len(out)) {
		return 0, nil, fmt.Errorf("the answer has %d bytes, not %d", a.Bytes, len(out))
	}
	_, err = io.ReadFull(h.stdout, out)
	return a.Value, nil, err
}

// end kills the process and says why it no longer answers; cause is the error
// that showed it.
func (h *host) end(cause error) error {
	h.cmd.Process.Kill() //nolint:errcheck // it has ended already
	wait := h.cmd.Wait()
	if err := context.Cause(h.ctx); err != nil {
		return fmt.Errorf("the emulator was stopped: %w", err)
	}
	if !errors.Is(cause, io.EOF) && !errors.Is(cause, syscall.EPIPE) {
		return fmt.Errorf("talk to the emulator's process: %w", cause)
	}
	return fmt.Errorf("the emulator's process ended (%v): %s", wait, h.stderr)
}

func (h *host) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead != nil {
		return nil
	}
	h.dead = errors.New("the device is closed")
	h.stdin.Close()
	if err := h.cmd.Wait(); err != nil && h.ctx.Err() == nil {
		return fmt.Errorf("emulate: Close: %w", err)
	}
	return nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu    sync.Mutex
	limit int
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if n := len(t.kept) - t.limit; n > 0 {
		t.kept = t.kept[n:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept))
}
