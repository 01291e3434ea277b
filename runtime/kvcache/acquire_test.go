package kvcache_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kgen-project/kgen/runtime/kvcache"
)

// result is what one of several callers got.
type result struct {
	chunk *kvcache.Chunk
	err   error
}

// acquireAll calls Acquire for one document from several goroutines, which all
// wait when it returns.
func acquireAll(c *kvcache.Cache, contexts []context.Context, encode kvcache.Encode) []chan result {
	results := make([]chan result, len(contexts))
	for i, ctx := range contexts {
		results[i] = make(chan result, 1)
		go func() {
			chunk, err := c.Acquire(ctx, document(1, 6), encode)
			results[i] <- result{chunk, err}
		}()
		synctest.Wait()
	}
	return results
}

func background(n int) []context.Context {
	return slices.Repeat([]context.Context{context.Background()}, n)
}

func TestEncodeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, 4)
		calls := 0
		goOn := make(chan struct{})
		results := acquireAll(c, background(5), func(_ context.Context, pages []int32) error {
			calls++
			<-goOn
			return nil
		})
		if err := c.Drop(c.Key(document(1, 6)).ID()); !errors.Is(err, kvcache.ErrInUse) {
			t.Errorf("drop of a chunk that is encoded: %v", err)
		}
		close(goOn)
		for _, got := range results {
			r := <-got
			if r.err != nil {
				t.Fatal(r.err)
			}
			r.chunk.Release()
		}
		if s := c.Stats(); calls != 1 || s.Misses != 1 || s.Joins != 4 || s.Encodes != 1 || s.PagesUsed != 2 || s.PagesEvictable != 2 {
			t.Errorf("%d calls, %+v", calls, s)
		}
	})
}

func TestEncodeFails(t *testing.T) {
	for name, encode := range map[string]func(goOn chan struct{}) error{
		"an error": func(goOn chan struct{}) error { <-goOn; return errEncode },
		"no return": func(goOn chan struct{}) error {
			<-goOn
			runtime.Goexit()
			return nil
		},
		"a panic": func(goOn chan struct{}) error { <-goOn; panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _ := open(t, 4)
				goOn := make(chan struct{})
				results := acquireAll(c, background(3), func(context.Context, []int32) error { return encode(goOn) })
				close(goOn)
				for _, got := range results {
					if r := <-got; r.err == nil || name == "an error" && !errors.Is(r.err, errEncode) {
						t.Errorf("error %v", r.err)
					} else if text := r.err.Error(); name == "a panic" && (!strings.Contains(text, "encode panicked: broken") || !strings.Contains(text, "acquire_test.go")) {
						t.Errorf("error %v, want the panic's value and where it was", r.err)
					}
				}
				if s := c.Stats(); s.EncodeFailures != 1 || s.PagesUsed != 0 || s.Chunks != 0 {
					t.Errorf("left: %+v", s)
				}
				acquire(t, c, document(1, 6)).Release()
			})
		})
	}
}

func TestNoEncode(t *testing.T) {
	c, _ := open(t, 4)
	if _, err := c.Acquire(t.Context(), document(1, 6), nil); err == nil || !strings.Contains(err.Error(), "encode is nil, want a function") {
		t.Errorf("error %v", err)
	}
	if s := c.Stats(); s.Misses != 0 || s.PagesUsed != 0 || s.Chunks != 0 {
		t.Errorf("left: %+v", s)
	}
}

// The caller that began the encode gives up: the others get the chunk.
func TestFirstGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, 4)
		type key struct{}
		first, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "of the first"))
		goOn := make(chan struct{})
		results := acquireAll(c, append([]context.Context{first}, background(2)...), func(ctx context.Context, _ []int32) error {
			<-goOn
			if ctx.Value(key{}) != "of the first" {
				t.Error("the context's values are gone")
			}
			return ctx.Err()
		})
		cancel()
		if r := <-results[0]; !errors.Is(r.err, context.Canceled) {
			t.Errorf("the first: %v", r.err)
		}
		close(goOn)
		for _, got := range results[1:] {
			r := <-got
			if r.err != nil {
				t.Fatal(r.err)
			}
			r.chunk.Release()
		}
		if s := c.Stats(); s.PagesEvictable != 2 || s.Chunks != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// When all have given up, the encode is cancelled. Who comes while it still
// runs starts another.
func TestAllGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, 4)
		ctx, cancel := context.WithCancel(context.Background())
		goOn := make(chan struct{})
		cancelled := false
		results := acquireAll(c, []context.Context{ctx, ctx}, func(ctx context.Context, _ []int32) error {
			<-ctx.Done()
			cancelled = true
			<-goOn
			return nil // in vain
		})
		cancel()
		for _, got := range results {
			if r := <-got; !errors.Is(r.err, context.Canceled) {
				t.Errorf("error %v", r.err)
			}
		}
		synctest.Wait()
		if !cancelled {
			t.Error("the encode was not cancelled")
		}
		h := acquire(t, c, document(1, 6))
		if s := c.Stats(); s.PagesUsed != 4 || s.Chunks != 1 || s.Misses != 2 {
			t.Errorf("while both exist: %+v", s)
		}
		close(goOn)
		synctest.Wait()
		h.Release()
		if s := c.Stats(); s.PagesUsed != 2 || s.PagesEvictable != 2 || s.Chunks != 1 {
			t.Errorf("at the end: %+v", s)
		}
	})
}

// A context that ends as the encode does loses nothing.
func TestGivesUpAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			c, _ := open(t, 4)
			ctx, cancel := context.WithCancel(context.Background())
			results := acquireAll(c, []context.Context{ctx}, func(context.Context, []int32) error {
				cancel()
				return nil
			})
			r := <-results[0]
			if r.err == nil {
				r.chunk.Release()
			}
			synctest.Wait()
			if s := c.Stats(); s.PagesUsed != s.PagesEvictable {
				t.Fatalf("%v, %+v", r.err, s)
			}
			cancel()
		}
	})
}

func TestCloseWhileEncoding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := open(t, 4)
		results := acquireAll(c, background(2), func(ctx context.Context, _ []int32) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for _, got := range results {
			if r := <-got; !errors.Is(r.err, kvcache.ErrClosed) {
				t.Errorf("error %v", r.err)
			}
		}
	})
}

func TestCancelledContext(t *testing.T) {
	c, _ := open(t, 4)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Acquire(ctx, document(1, 6), nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire: %v", err)
	}
	if _, err := c.Get(ctx, kvcache.ID{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: %v", err)
	}
	if s := c.Stats(); s.Misses != 0 || s.PagesUsed != 0 {
		t.Errorf("%+v", s)
	}
}

// Many goroutines use one cache; each finds in its chunks and its own tokens
// what belongs there.
func TestConcurrentUse(t *testing.T) {
	d := newDevice()
	c, err := kvcache.New(copier{d}, kvcache.Config{Shape: shape, Pages: 17, HostBytes: 20 * shape.PageBytes()})
	if err != nil {
		t.Fatal(err)
	}
	var done atomic.Int32
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 200 {
				switch err := request(c, d, i, j); {
				case err == nil:
					done.Add(1)
				case !errors.Is(err, kvcache.ErrNoPages):
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		group.Go(func() {
			for range 20 {
				if err := c.Persist(context.Background(), discard{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if s := c.Stats(); s.PagesUsed != s.PagesEvictable || s.Sequences != 0 || s.Restores == 0 || done.Load() == 0 {
		t.Errorf("%d done, %+v", done.Load(), s)
	}
	if err := c.Close(); err != nil || len(d.regions)+len(d.host) > 0 {
		t.Errorf("%v, %d allocations are left", err, len(d.regions)+len(d.host))
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// request is a sequence of two documents with 9 own tokens and a fork.
func request(c *kvcache.Cache, d *device, i, j int) error {
	a, b := document(int32((i+j)%7), 8), document(int32((i*j)%9), 8)
	var placements []kvcache.Placement
	for _, doc := range []kvcache.Document{a, b} {
		h, err := c.Acquire(context.Background(), doc, encode(c, d, doc))
		if err != nil {
			return err
		}
		defer h.Release()
		placements = append(placements, kvcache.Placement{Chunk: h, Offset: kvcache.Packed})
	}
	s, err := c.Open(placements, kvcache.Packed)
	if err != nil {
		return err
	}
	defer s.Close()
	own := document(int32(1000+100*i+j), 9).Tokens
	if err := appendTokens(c, d, s, own[:6]); err != nil {
		return err
	}
	f, err := s.Fork()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := errors.Join(appendTokens(c, d, f, own[:3]), appendTokens(c, d, s, own[6:])); err != nil {
		return err
	}
	var table kvcache.Table
	segments, err := table.Add(nil, s)
	if err != nil {
		return err
	}
	for k, tokens := range [][]int32{a.Tokens, b.Tokens, own} {
		if err := check(c, d, tokens, shape.Slots(nil, table.Pages[segments[k].Page:], 0, len(tokens))); err != nil {
			return fmt.Errorf("segment %d: %w", k, err)
		}
	}
	return nil
}

func appendTokens(c *kvcache.Cache, d *device, s *kvcache.Sequence, tokens []int32) error {
	before := s.Tokens()
	if err := s.Extend(len(tokens)); err != nil {
		return err
	}
	slots, err := s.Slots(nil, before)
	if err != nil {
		return err
	}
	write(c, d, tokens, slots)
	return nil
}
