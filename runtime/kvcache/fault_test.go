package kvcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
)

// TestEveryCallFails makes each single call of the device fail while a number
// of operations run, each of which is repeated until it is done. What is not
// hit by the fault must not notice, and nothing may leak.
func TestEveryCallFails(t *testing.T) {
	for _, async := range []bool{true, false} {
		calls := 0
		for nth := 0; nth == 0 || nth <= calls; nth++ {
			d := newDevice()
			var seam cuda.Device = d
			if async {
				seam = copier{d}
			}
			failed := ""
			d.fail = func(call string, n int) error {
				if n != nth {
					return nil
				}
				failed = call
				return &cuda.Error{Call: call, Code: 2}
			}
			if err := faulty(d, seam, &failed); err != nil {
				t.Fatalf("call %d, %s, of a device that is a copier: %v: %v", nth, failed, async, err)
			}
			if len(d.regions)+len(d.host) > 0 {
				t.Errorf("call %d, %s: %d allocations are left", nth, failed, len(d.regions)+len(d.host))
			}
			if nth == 0 {
				calls = d.calls
			} else if failed == "" {
				t.Errorf("call %d was not made", nth)
			}
		}
		t.Logf("%d calls", calls)
	}
}

// faulty runs operations of all kinds on a device of which one call may fail.
// failed is that call; it has failed once it is not empty.
func faulty(d *device, seam cuda.Device, failed *string) error {
	ctx := context.Background()
	config := kvcache.Config{Shape: shape, Pages: 8, HostBytes: 8 * shape.PageBytes()}
	var c *kvcache.Cache
	seen := false // the fault's error
	again := func(name string, f func() error) error {
		before := kvcache.Stats{}
		if c != nil {
			before = c.Stats()
		}
		err := f()
		if err == nil {
			return nil
		}
		outOf := cuda.ErrOutOfMemory
		if *failed == "AllocHost" {
			outOf = kvcache.ErrNoPages // of the device and the host tier together
		}
		if seen || *failed == "" || !errors.Is(err, outOf) || !strings.Contains(err.Error(), "kvcache: ") {
			return fmt.Errorf("%s: %w", name, err)
		}
		seen = true
		if c != nil {
			after := c.Stats()
			if after.Chunks < before.Chunks-int(after.HostDrops-before.HostDrops) || after.Sequences != before.Sequences ||
				after.PagesUsed-after.PagesEvictable != before.PagesUsed-before.PagesEvictable {
				return fmt.Errorf("%s failed: before %+v, after %+v", name, before, after)
			}
		}
		if err := f(); err != nil {
			return fmt.Errorf("%s, the second time: %w", name, err)
		}
		return nil
	}
	if err := again("new", func() (err error) {
		c, err = kvcache.New(seam, config)
		return err
	}); err != nil {
		return err
	}
	docs := []kvcache.Document{document(1, 10), document(2, 12), document(3, 9), document(4, 13)}
	use := func(doc kvcache.Document) error {
		h, err := c.Acquire(ctx, doc, encode(c, d, doc))
		if err != nil {
			return err
		}
		defer h.Release()
		pages, err := h.Pages(nil)
		return errors.Join(err, check(c, d, doc.Tokens, shape.Slots(nil, pages, 0, len(doc.Tokens))))
	}
	for _, i := range []int{0, 1, 2, 0, 3, 1} { // evicts, spills and restores
		if err := again("acquire", func() error { return use(docs[i]) }); err != nil {
			return err
		}
	}
	s, err := c.Open(nil, kvcache.Packed)
	if err != nil {
		return err
	}
	own := document(9, 8).Tokens
	if err := again("append", func() error { return appendTokens(c, d, s, own[:6]) }); err != nil {
		return err
	}
	f, err := s.Fork()
	if err != nil {
		return err
	}
	if err := again("append behind a fork", func() error { return appendTokens(c, d, f, own[6:]) }); err != nil {
		return err
	}
	slots, err := f.Slots(nil, 0)
	if err := errors.Join(err, check(c, d, own, slots)); err != nil {
		return err
	}
	s.Close()
	f.Close()
	var file bytes.Buffer
	if err := again("persist", func() error { file.Reset(); return c.Persist(ctx, &file) }); err != nil {
		return err
	}
	if err := c.Close(); err != nil && (seen || *failed == "" || !errors.Is(err, cuda.ErrOutOfMemory)) {
		return fmt.Errorf("close: %w", err)
	} else if err != nil {
		seen = true
	}
	if c, err = kvcache.New(seam, config); err != nil {
		if seen || *failed != "Alloc" {
			return err
		}
		seen = true
		if c, err = kvcache.New(seam, config); err != nil {
			return err
		}
	}
	if err := again("load", func() error { _, err := c.Load(ctx, bytes.NewReader(file.Bytes())); return err }); err != nil {
		return err
	}
	for _, doc := range docs {
		if err := again("acquire what was loaded", func() error { return use(doc) }); err != nil {
			return err
		}
	}
	if s := c.Stats(); s.PagesUsed != s.PagesEvictable {
		return fmt.Errorf("at the end %+v", s)
	}
	if err := c.Close(); err != nil && (seen || *failed == "" || !errors.Is(err, cuda.ErrOutOfMemory)) {
		return fmt.Errorf("close: %w", err)
	}
	if !seen && *failed != "" && *failed != "AllocHost" && *failed != "Free" && *failed != "FreeHost" && *failed != "Synchronize" {
		return fmt.Errorf("the failure of %s was not reported", *failed)
	}
	return nil
}

// A host that gives no more memory makes the tier smaller, and nothing else.
func TestHostOutOfMemory(t *testing.T) {
	d := newDevice()
	allocations := 0
	d.fail = func(call string, _ int) error {
		if call == "AllocHost" {
			if allocations++; allocations > 1 {
				return cuda.ErrOutOfMemory
			}
		}
		return nil
	}
	big := kvcache.Shape{Layers: 1, KVHeads: 1, HeadDim: 1 << 10, VHeadDim: 1 << 10, ElementBytes: 1, PageSize: 1 << 14} // two pages a slab
	c, err := kvcache.New(copier{d}, kvcache.Config{Shape: big, Pages: 2, HostBytes: 6 * big.PageBytes()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(6) {
		acquire(t, c, document(i, 1)).Release()
	}
	s := c.Stats()
	if s.HostPagesLimit != 6 || s.HostPages != 2 || s.Chunks != 4 || s.HostDrops != 2 || s.Spills != 4 {
		t.Errorf("%+v", s)
	}
	if err := c.Close(); err != nil || len(d.host) > 0 {
		t.Errorf("%v, %d host allocations are left", err, len(d.host))
	}
}

// For a chunk that is larger than the tier the host gives no memory.
func TestTooLargeForHost(t *testing.T) {
	c, d := tiered(t, 5, 4)
	h := acquire(t, c, document(1, 20))
	h.Release()
	if err := c.Evict(h.ID()); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Chunks != 0 || s.Spills != 0 || len(d.host) > 0 {
		t.Errorf("%+v, %d host allocations", s, len(d.host))
	}
}

func TestConfigErrors(t *testing.T) {
	good := kvcache.Config{Shape: shape, Pages: 4}
	for _, test := range []struct {
		change func(*kvcache.Config)
		text   string
	}{
		{func(c *kvcache.Config) { c.Shape.Layers = 0 }, "the shape's Layers is 0, want 1 to"},
		{func(c *kvcache.Config) { c.Shape.PageSize = -1 }, "the shape's PageSize is -1"},
		{func(c *kvcache.Config) { c.Pages = 0 }, "0 pages of 4 tokens, want 1 to 2147483647 tokens in all"},
		{func(c *kvcache.Config) { c.Pages = 1 << 29 }, "536870912 pages of 4 tokens"},
		{func(c *kvcache.Config) { c.Pages = 1 << 62 }, "want 1 to 2147483647 tokens"},
		{func(c *kvcache.Config) { c.MaxPosition = -1 }, "MaxPosition is -1"},
		{func(c *kvcache.Config) { c.HostBytes = -1 }, "HostBytes is -1"},
		{func(c *kvcache.Config) {
			c.Shape = kvcache.Shape{Layers: 1 << 10, KVHeads: 1 << 12, HeadDim: 1 << 14, VHeadDim: 1 << 14, ElementBytes: 16, PageSize: 1 << 20}
		}, "larger than any device"},
	} {
		config := good
		test.change(&config)
		if _, err := kvcache.New(newDevice(), config); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("error %v, want %q in it", err, test.text)
		}
	}
	d := newDevice()
	d.fail = func(string, int) error { return cuda.ErrOutOfMemory }
	if _, err := kvcache.New(d, good); !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), "4 pages of 48 bytes") {
		t.Errorf("error %v", err)
	}
}
