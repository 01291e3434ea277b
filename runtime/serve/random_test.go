package serve_test

import (
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// Random operations from a seed give what the oracle gives, whatever runs out or
// fails and however chunks are shared, and leave nothing. KGEN_SERVE_OPERATIONS says how many.
func TestRandomOperations(t *testing.T) {
	operations := 10000
	if s := os.Getenv("KGEN_SERVE_OPERATIONS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		operations = n
	}
	for _, sharing := range []string{"fastest", "bitwise"} {
		for _, lists := range []serve.Lists{serve.ListsByHost, serve.ListsByDevice} {
			t.Run(sharing+"/"+string(lists), func(t *testing.T) { testRandomOperations(t, sharing, lists, operations/4) })
		}
	}
}

func testRandomOperations(t *testing.T, sharing string, lists serve.Lists, operations int) {
	t.Parallel()
	const seed = 1
	m := toy.Tiny()
	m.Sharing = sharing
	b := newBench(t, m, serve.Options{Pages: 120, HostBytes: 20 * 160})
	graph, err := b.Record(t.Context(), serve.GraphSize{Tokens: toy.GraphTokens, Segments: toy.GraphSegments, Context: 120 * m.PageSize, Lists: lists})
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Free()
	p := toy.NewPlayer(t.Context(), b, seed, graph, true)
	for i := range operations {
		if err := p.Operation(); err != nil {
			t.Fatalf("seed %d, operation %d: %v", seed, i, err)
		}
	}
	if err := p.Finish(); err != nil {
		t.Fatal(err)
	}
	s := b.Engine.Cache().Stats()
	if s.PagesUsed != 0 || s.Sequences != 0 || s.Chunks != 0 {
		t.Errorf("left over: %+v", s)
	}
	t.Logf("%v, %+v", p.Counts, s)
	for _, name := range []string{"step", "graph step", "abort", "fork", "truncate", "place", "place taken back", "out of pages", "failed encode", "cancel"} {
		if p.Counts[name] == 0 {
			t.Errorf("no %s in %d operations", name, operations)
		}
	}
}

// Many goroutines on one engine, each with sequences of its own and documents
// that all share.
func TestGoroutines(t *testing.T) {
	const goroutines, operations = 8, 150
	b := newBench(t, toy.Tiny(), serve.Options{Pages: 400, HostBytes: 100 * 160})
	var group sync.WaitGroup
	for i := range goroutines {
		group.Go(func() {
			p := toy.NewPlayer(t.Context(), b, uint64(i), nil, false)
			for n := range operations {
				if err := p.Operation(); err != nil {
					t.Errorf("goroutine %d, operation %d: %v", i, n, err)
					break
				}
			}
			if err := p.CloseAll(0); err != nil {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	group.Go(func() { // what a server's other goroutines do
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			if g, err := b.Record(t.Context(), serve.GraphSize{Tokens: 2}); err != nil {
				t.Error(err)
			} else {
				if err := g.Close(t.Context()); err != nil {
					t.Error(err)
				}
				g.Free()
			}
		}
	})
	time.AfterFunc(500*time.Millisecond, func() { close(done) })
	group.Wait()
	if s := b.Engine.Cache().Stats(); s.Sequences != 0 || s.PagesUsed != s.PagesEvictable {
		t.Errorf("left over: %+v", s)
	}
}
