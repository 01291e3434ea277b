package serve_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// Whatever goes wrong has a name, leaves chunks, pages and sequences as they were,
// and the next request is served. (A process that is killed while it persists:
// kvcache's TestKilledWhilePersisting; a closed engine: TestClosed.)
func TestNamedFaults(t *testing.T) {
	const pages = 1000
	m := toy.Small()
	// Room for the pool and some small steps.
	dev := cpu.Open(cpu.Options{Workers: 1, MemoryBytes: pages*512 + 400<<10})
	defer dev.Close()
	refuse := ""
	f := newFaulty(dev, cpuKernels(t, dev, m), func(_ int, name string) bool { return name == refuse })
	var log bytes.Buffer
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	e, err := serve.New(f, f, m, serve.Options{Pages: pages, HostBytes: 1 << 20, Stream: stream, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if e.Stream() != stream {
		t.Errorf("the engine's stream is %d, its owner's %d", e.Stream(), stream)
	}
	b := toy.New(dev, e, m)
	doc := toy.Document(1, 300)
	chunk := b.Register(t, doc)
	request := &toy.Request{Segments: []toy.Placed{{Tokens: doc}}, Offset: 300}
	sequence, err := e.Open(kvcache.Pack(chunk), kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	chunk.Release()

	file := filepath.Join(t.TempDir(), "chunks")
	if err := e.Cache().PersistFile(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	load := func(data []byte) error {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return err
		}
		_, err := e.Cache().LoadFile(t.Context(), file)
		return err
	}
	schedule := func(ctx context.Context, tokens int) error {
		s, err := e.Schedule(ctx, []serve.Entry{{Sequence: sequence, Tokens: tokens}})
		if err != nil {
			return err
		}
		defer s.Abort()
		_, err = b.Forward(ctx, s, toy.Document(2, tokens))
		return err
	}
	register := func(ctx context.Context, tokens int) error {
		d := toy.Document(3, tokens)
		c, err := e.Register(ctx, d, b.Encode(d))
		if err == nil {
			c.Release()
		}
		return err
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name   string
		refuse string // calls of the device that fail
		fault  func() error
		want   error
	}{
		{"out of pages, a document", "", func() error { return register(t.Context(), 4000) }, serve.ErrNoPages},
		{"out of pages, own tokens", "", func() error { return schedule(t.Context(), 3790) }, serve.ErrNoPages},
		{"out of device memory, a step", "", func() error { return schedule(t.Context(), 3000) }, serve.ErrOutOfMemory},
		{"out of device memory, a graph", "", func() error {
			_, err := e.Capture(t.Context(), serve.GraphSize{Tokens: 4000}, nil)
			return err
		}, serve.ErrOutOfMemory},
		{"refused launch, a step", "Decode", func() error { return schedule(t.Context(), 1) }, serve.ErrLaunch},
		{"refused launch, a document", "Prefill", func() error { return register(t.Context(), 40) }, serve.ErrLaunch},
		{"a kernel failed", "", func() error {
			s, err := e.Schedule(t.Context(), []serve.Entry{{Sequence: sequence, Tokens: 1}})
			if err != nil {
				return err
			}
			defer s.Abort()
			return errors.Join(s.Attend(t.Context(), 0, serve.IO{Q: 16, K: 16, V: 16, Out: 16}), s.Wait(t.Context()))
		}, serve.ErrLaunch},
		{"damaged file", "", func() error {
			bad := bytes.Clone(good)
			bad[len(bad)/2] ^= 1
			return load(bad)
		}, kvcache.ErrDamaged},
		{"file cut short", "", func() error { return load(good[:len(good)-1]) }, kvcache.ErrDamaged},
		{"cancelled, a document", "", func() error { return register(gone, 40) }, context.Canceled},
		{"cancelled, a step", "", func() error { return schedule(gone, 1) }, context.Canceled},
	} {
		before := e.Cache().Stats()
		refuse = c.refuse
		err := c.fault()
		refuse = ""
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.want)
		}
		after := e.Cache().Stats()
		if after.PagesUsed != before.PagesUsed || after.Chunks != before.Chunks || after.Sequences != before.Sequences || after.Evictions != before.Evictions {
			t.Errorf("%s: %+v, before it %+v", c.name, after, before)
		}
		token := toy.Document(4, 1)
		outs, err := b.Step(t.Context(), []serve.Entry{{Sequence: sequence, Tokens: 1}}, token)
		if err != nil {
			t.Fatalf("after %s: %v", c.name, err)
		}
		request.Own = append(request.Own, token...)
		if err := b.Compare(request, 1, outs, 0); err != nil {
			t.Errorf("after %s: %v", c.name, err)
		}
	}
	if err := errors.Join(e.Close(), dev.Synchronize(t.Context(), stream), dev.DestroyStream(stream)); err != nil {
		t.Errorf("the owner's stream: %v", err)
	}
	for _, line := range []string{"engine open", "register failed", "schedule failed", "step failed", "engine closed"} {
		if !strings.Contains(log.String(), `msg="`+line+`"`) {
			t.Errorf("%q is not in the log", line)
		}
	}
	if t.Failed() {
		t.Log(log.String())
	}
}
