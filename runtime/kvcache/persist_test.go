package kvcache_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

// persisted is the file of a cache with three documents, of which the host
// tier has one.
func persisted(t *testing.T) []byte {
	t.Helper()
	c, d := tiered(t, 6, 4)
	for i := range int32(3) {
		doc := document(i, 9) // 3 pages
		h, err := c.Acquire(context.Background(), doc, encode(c, d, doc))
		if err != nil {
			t.Fatal(err)
		}
		h.Release()
	}
	var file bytes.Buffer
	if err := c.Persist(context.Background(), &file); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// tiered makes a cache of the pages on the device and in the host tier.
func tiered(t *testing.T, pages, hostPages int) (*kvcache.Cache, *device) {
	t.Helper()
	d := newDevice()
	c, err := kvcache.New(copier{d}, kvcache.Config{Model: "m", Spec: "s", Encoding: "raw", Shape: shape, Pages: pages,
		HostBytes: int64(hostPages) * shape.PageBytes()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, kvcache.ErrClosed) || len(d.regions)+len(d.host) > 0 {
			t.Errorf("close: %v, %d allocations are left", err, len(d.regions)+len(d.host))
		}
	})
	return c, d
}

// expect checks that the documents are there and right.
func expect(t *testing.T, c *kvcache.Cache, d *device, documents int32) {
	t.Helper()
	for i := range documents {
		doc := document(i, 9)
		h, err := c.Get(context.Background(), c.Key(doc).ID())
		if err != nil {
			t.Fatal(err)
		}
		pages, err := h.Pages(nil)
		if err := errors.Join(err, check(c, d, doc.Tokens, shape.Slots(nil, pages, 0, len(doc.Tokens)))); err != nil {
			t.Errorf("document %d: %v", i, err)
		}
		h.Release()
	}
}

// What is persisted stays in place until it is written, whoever wants it gone.
func TestPersistMeanwhile(t *testing.T) {
	const tokens = 8000 // more than is written at once
	pages := shape.Pages(tokens)
	use := func(c *kvcache.Cache, d *device, number int32) error {
		doc := document(10*number, tokens)
		h, err := c.Acquire(context.Background(), doc, encode(c, d, doc))
		if err != nil {
			return err
		}
		defer h.Release()
		held, err := h.Pages(nil)
		return errors.Join(err, check(c, d, doc.Tokens, shape.Slots(nil, held, 0, tokens)))
	}
	c, d := tiered(t, 2*pages, pages+pages/2)
	for i := range int32(3) { // the first to the host tier
		if err := use(c, d, i); err != nil {
			t.Fatal(err)
		}
	}
	var file bytes.Buffer
	inUse, dropped := 0, 0
	err := c.Persist(context.Background(), writerFunc(func(b []byte) (int, error) {
		for i := range int32(3) {
			switch err := c.Drop(c.Key(document(10*i, tokens)).ID()); {
			case errors.Is(err, kvcache.ErrInUse):
				inUse++
			case err == nil:
				dropped++
			case !errors.Is(err, kvcache.ErrUnknown):
				t.Error(err)
			}
		}
		for i := range int32(2) { // what takes whatever pages there are
			if err := use(c, d, 3+i); err != nil && !errors.Is(err, kvcache.ErrNoPages) {
				t.Error(err)
			}
		}
		return file.Write(b)
	}))
	if err != nil || inUse == 0 || dropped == 0 {
		t.Fatalf("%v; %d times in use, %d dropped", err, inUse, dropped)
	}
	c, d = tiered(t, 3*pages, 0)
	n, err := c.Load(context.Background(), &file)
	if n == 0 || n == 3 || err != nil {
		t.Fatalf("%d chunks, %v", n, err)
	}
	for i := range int32(3) {
		if err := use(c, d, i); err != nil {
			t.Errorf("document %d: %v", i, err)
		}
	}
	if s := c.Stats(); s.Hits != int64(n) {
		t.Errorf("%d chunks loaded, %+v", n, s)
	}
}

// Where what is read leaves too little room in the host tier, nothing is dropped from it in vain.
func TestSpillBesideReader(t *testing.T) {
	const tokens = 8000 // more than is written at once
	pages := shape.Pages(tokens)
	c, _ := tiered(t, 4*pages, 2*pages)
	idle, large, read := document(0, tokens), document(10, 2*tokens), document(30, tokens)
	for _, doc := range []kvcache.Document{idle, large, read} { // the last is written first
		acquire(t, c, doc).Release()
	}
	id := func(doc kvcache.Document) kvcache.ID { return c.Key(doc).ID() }
	if err := errors.Join(c.Evict(id(idle)), c.Evict(id(read))); err != nil {
		t.Fatal(err)
	}
	err := c.Persist(t.Context(), writerFunc(func(b []byte) (int, error) {
		if err := c.Drop(id(read)); c.Stats().Chunks == 3 && !errors.Is(err, kvcache.ErrInUse) {
			t.Errorf("drop of what is read: %v", err)
		}
		if err := c.Evict(id(large)); err != nil && !errors.Is(err, kvcache.ErrUnknown) {
			t.Error(err)
		}
		return len(b), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Drop(id(idle)); err != nil {
		t.Errorf("what was in the host tier: %v", err)
	}
	if s := c.Stats(); s.HostDrops != 0 || s.Spills != 2 {
		t.Errorf("%+v", s)
	}
}

// Persist is no use of a chunk: what is evicted next, and dropped next from the host
// tier, is what would have been without it.
func TestOrderAfterPersist(t *testing.T) {
	const documents, more = 7, 2
	var left [2][]int32
	for i := range left {
		c, _ := tiered(t, 4*3, 3*3) // room for 4 and 3 documents
		for n := range int32(documents + more) {
			if i > 0 && n == documents {
				if err := c.Persist(context.Background(), io.Discard); err != nil {
					t.Fatal(err)
				}
			}
			acquire(t, c, document(n, 9)).Release()
		}
		for n := range int32(documents + more) {
			if err := c.Drop(c.Key(document(n, 9)).ID()); err == nil {
				left[i] = append(left[i], n)
			} else if !errors.Is(err, kvcache.ErrUnknown) {
				t.Error(err)
			}
		}
	}
	if !slices.Equal(left[0], []int32{2, 3, 4, 5, 6, 7, 8}) || !slices.Equal(left[0], left[1]) {
		t.Errorf("without Persist, %v are left, and with it %v", left[0], left[1])
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestPersistErrors(t *testing.T) {
	c, _ := tiered(t, 6, 4)
	acquire(t, c, document(1, 9)).Release()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	before := c.Stats()
	failed := errors.New("failed")
	if err := c.Persist(cancelled, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := c.Persist(context.Background(), failingWriter{failed}); !errors.Is(err, failed) {
		t.Errorf("the writer fails: %v", err)
	}
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "absent", "kv"), dir} {
		if err := c.PersistFile(context.Background(), path); err == nil || !strings.Contains(err.Error(), "persist to "+path) {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := c.LoadFile(context.Background(), path); err == nil || !strings.HasPrefix(err.Error(), "kvcache: load "+path+": ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	unchanged(t, c, before)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Persist(context.Background(), io.Discard); !errors.Is(err, kvcache.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// Close lets who reads the pages end before it frees them.
func TestCloseWhilePersisting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, d := tiered(t, 6000, 0)
		for i := range int32(3) {
			acquire(t, c, document(10*i, 8000)).Release()
		}
		goOn := make(chan struct{})
		persisted, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			persisted <- c.Persist(context.Background(), writerFunc(func(b []byte) (int, error) {
				<-goOn
				return len(b), nil
			}))
		}()
		synctest.Wait()
		go func() { closed <- c.Close() }()
		synctest.Wait()
		if len(closed) > 0 || len(d.regions) != 1 {
			t.Error("closed before the reader had ended")
		}
		close(goOn)
		if err := <-persisted; !errors.Is(err, kvcache.ErrClosed) {
			t.Errorf("persist: %v", err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// A process is killed over and over while it persists to one file: after each
// time the file is whole.
func TestKilledWhilePersisting(t *testing.T) {
	path := os.Getenv("KVCACHE_TEST_PERSIST")
	c, d := tiered(t, 6, 7)
	if path != "" {
		for i := range int32(3) {
			doc := document(i, 9)
			h, err := c.Acquire(context.Background(), doc, encode(c, d, doc))
			if err != nil {
				t.Fatal(err)
			}
			h.Release()
		}
		for start := time.Now(); time.Since(start) < 20*time.Second; {
			if err := c.PersistFile(context.Background(), path); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	path = filepath.Join(t.TempDir(), "kv")
	for i := range 10 {
		child := exec.Command(os.Args[0], "-test.run=^TestKilledWhilePersisting$")
		child.Env = append(os.Environ(), "KVCACHE_TEST_PERSIST="+path)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for range 1000 { // until a file is there, of this child or one before
			if _, err := os.Stat(path); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Duration(i*7) * time.Millisecond)
		if err := child.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := child.Wait(); child.ProcessState.Exited() {
			t.Fatalf("the child ended by itself: %v", err)
		}
		c, d := tiered(t, 6, 7)
		n, err := c.LoadFile(context.Background(), path)
		if n != 3 || err != nil {
			t.Fatalf("kill %d: %d chunks, %v", i, n, err)
		}
		expect(t, c, d, 3)
	}
	// What the killed ones left is in nobody's way.
	if err := c.PersistFile(context.Background(), path); err != nil {
		t.Error(err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
	if n, err := c.LoadFile(context.Background(), path); n != 0 || err != nil {
		t.Errorf("a file of no chunks: %d, %v", n, err)
	}
}
