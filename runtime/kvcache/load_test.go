package kvcache_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

func TestLoad(t *testing.T) {
	file := persisted(t)
	for _, test := range []struct{ pages, hostPages, onDevice int }{{9, 0, 9}, {20, 20, 9}, {6, 4, 6}, {3, 7, 3}, {4, 6, 3}, {4, 9, 3}} {
		c, d := tiered(t, test.pages, test.hostPages)
		n, err := c.Load(context.Background(), iotest.OneByteReader(bytes.NewReader(file)))
		if s := c.Stats(); err != nil || n != 3 || s.Chunks != 3 || s.PagesEvictable != test.onDevice || s.PagesUsed != test.onDevice || s.HostPages != 9-test.onDevice {
			t.Errorf("%+v: %d chunks, %v, %+v", test, n, err, s)
		}
		if n, err := c.Load(context.Background(), bytes.NewReader(file)); n != 0 || err != nil {
			t.Errorf("%+v: loaded again: %d, %v", test, n, err)
		}
		if test.pages+test.hostPages > 11 { // room to exchange two chunks
			expect(t, c, d, 3)
		}
	}
}

// The chunks most recently used are those that go to the device, and that are
// evicted last.
func TestLoadOrder(t *testing.T) {
	c, _ := tiered(t, 6, 7)
	if _, err := c.Load(context.Background(), bytes.NewReader(persisted(t))); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		doc      int32
		restores int64 // until then
	}{{0, 1}, {2, 1}, {1, 2}} { // the first puts 1 out
		h, err := c.Get(context.Background(), c.Key(document(step.doc, 9)).ID())
		if err != nil {
			t.Fatal(err)
		}
		h.Release()
		if got := c.Stats().Restores; got != step.restores {
			t.Errorf("document %d: %d chunks restored, want %d", step.doc, got, step.restores)
		}
	}
}

// Load does not write to host memory that a copy on the stream will still
// write to.
func TestLoadBehindSpill(t *testing.T) {
	c, d := tiered(t, 6, 9)
	doc := document(7, 24)
	h, err := c.Acquire(context.Background(), doc, encode(c, d, doc))
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
	if err := errors.Join(c.Evict(h.ID()), c.Drop(h.ID())); err != nil {
		t.Fatal(err)
	}
	s, err := c.Open(nil, 0)
	if err == nil {
		err = s.Extend(24) // so that nothing is free on the device
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Load(context.Background(), bytes.NewReader(persisted(t))); n != 3 || err != nil {
		t.Fatalf("%d chunks, %v", n, err)
	}
	s.Close()
	expect(t, c, d, 3)
}

// unchanged checks that a failed Load has left nothing.
func unchanged(t *testing.T, c *kvcache.Cache, before kvcache.Stats) {
	t.Helper()
	if after := c.Stats(); after != before {
		t.Fatalf("before %+v\nafter  %+v", before, after)
	}
}

// A file that is cut off or has a wrong byte, anywhere, is refused whole.
func TestDamagedFiles(t *testing.T) {
	file := persisted(t)
	c, d := tiered(t, 6, 7)
	before := c.Stats()
	for i := range file {
		n, err := c.Load(context.Background(), bytes.NewReader(file[:i]))
		if n != 0 || !errors.Is(err, kvcache.ErrDamaged) {
			t.Fatalf("the first %d of %d bytes: %d chunks, %v", i, len(file), n, err)
		}
		unchanged(t, c, before)
		for _, change := range []byte{1, 0x80, 0xff} {
			wrong := bytes.Clone(file)
			wrong[i] ^= change
			n, err := c.Load(context.Background(), bytes.NewReader(wrong))
			if n != 0 || !errors.Is(err, kvcache.ErrDamaged) && !(errors.Is(err, kvcache.ErrVersion) && i >= 8 && i < 12) {
				t.Fatalf("byte %d of %d is wrong: %d chunks, %v", i, len(file), n, err)
			}
			unchanged(t, c, before)
		}
	}
	n, err := c.Load(context.Background(), bytes.NewReader(append(bytes.Clone(file), 0)))
	if n != 0 || !errors.Is(err, kvcache.ErrDamaged) {
		t.Errorf("a byte more: %d chunks, %v", n, err)
	}
	unchanged(t, c, before)
	if n, err := c.Load(context.Background(), bytes.NewReader(file)); n != 3 || err != nil {
		t.Errorf("%d chunks, %v", n, err)
	}
	expect(t, c, d, 3)
}

func TestLoadErrors(t *testing.T) {
	file := persisted(t)
	failed := errors.New("failed")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, test := range []struct {
		name   string
		ctx    context.Context
		change func(*kvcache.Config)
		r      io.Reader
		is     error
		text   string
	}{
		{"another model", context.Background(), func(c *kvcache.Config) { c.Model = "n" }, bytes.NewReader(file), kvcache.ErrMismatch, "model m, want n"},
		{"another spec", context.Background(), func(c *kvcache.Config) { c.Spec = "n" }, bytes.NewReader(file), kvcache.ErrMismatch, "spec s, want n"},
		{"another encoding", context.Background(), func(c *kvcache.Config) { c.Encoding = "baked" }, bytes.NewReader(file), kvcache.ErrMismatch, "encoding raw, want baked"},
		{"another shape", context.Background(), func(c *kvcache.Config) { c.Shape.PageSize = 8 }, bytes.NewReader(file), kvcache.ErrMismatch, "PageSize:4"},
		{"too few pages", context.Background(), func(c *kvcache.Config) { c.Pages = 4 }, bytes.NewReader(file), kvcache.ErrNoPages, "9 needed, 8 free and 0 evictable of 8"},
		{"cancelled", cancelled, func(*kvcache.Config) {}, bytes.NewReader(file), context.Canceled, "load"},
		{"the reader fails", context.Background(), func(*kvcache.Config) {}, io.MultiReader(bytes.NewReader(file[:len(file)-40]), iotest.ErrReader(failed)), failed, ""},
		{"not a file of chunks", context.Background(), func(*kvcache.Config) {}, strings.NewReader("a text of more than sixteen bytes"), kvcache.ErrDamaged, "not a file of chunks"},
	} {
		config := kvcache.Config{Model: "m", Spec: "s", Encoding: "raw", Shape: shape, Pages: 6, HostBytes: 4 * shape.PageBytes()}
		test.change(&config)
		c, err := kvcache.New(copier{newDevice()}, config)
		if err != nil {
			t.Fatal(err)
		}
		before := c.Stats()
		n, err := c.Load(test.ctx, test.r)
		if n != 0 || !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %d chunks, %v", test.name, n, err)
		}
		unchanged(t, c, before)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Load(context.Background(), bytes.NewReader(file)); test.is != kvcache.ErrMismatch && !errors.Is(err, kvcache.ErrClosed) {
			t.Errorf("%s: load into a closed cache: %v", test.name, err)
		}
	}
}

// Close does not wait for what a Load has not read yet.
func TestCloseWhileLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, _ := tiered(t, 6000, 0)
		for i := range int32(3) {
			acquire(t, from, document(10*i, 8000)).Release() // more than is read at once
		}
		var file bytes.Buffer
		if err := from.Persist(context.Background(), &file); err != nil {
			t.Fatal(err)
		}
		c, _ := tiered(t, 6000, 0)
		goOn, read := make(chan struct{}), 0
		loaded, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := c.Load(context.Background(), readerFunc(func(b []byte) (int, error) {
				if read > 0 {
					<-goOn
				}
				n, err := file.Read(b)
				read += n
				return n, err
			}))
			loaded <- err
		}()
		synctest.Wait()
		go func() { closed <- c.Close() }()
		synctest.Wait()
		close(goOn)
		if err := <-loaded; !errors.Is(err, kvcache.ErrClosed) || file.Len() == 0 {
			t.Errorf("load: %v, with %d bytes not read", err, file.Len())
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
