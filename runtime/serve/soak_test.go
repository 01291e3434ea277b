package serve_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

var soak = flag.Duration("soak", time.Second, "how long TestSoak goes on; from a minute on it holds the memory to be flat")

// One engine under random operations of several goroutines, with calls of the
// device failing at random, its documents persisted, damaged and loaded by other
// engines meanwhile: for as long as -soak says (make soak: an hour). Every output is
// the oracle's, and memory does not grow.
func TestSoak(t *testing.T) {
	const players, operations = 3, 400 // a round
	s := &soaking{t: t, rng: rand.New(rand.NewPCG(1, 6)), file: filepath.Join(t.TempDir(), "chunks")}
	before := runtime.NumGoroutine()
	dev := cpu.Open(cpu.Options{Workers: 1})
	m := toy.Tiny()
	m.Sharing = "bitwise" // documents are short: fastest would share none
	f := newFaulty(dev, cpuKernels(t, dev, m), s.fails)
	e, err := serve.New(faultyCopier{f}, f, m, serve.Options{Pages: 150, HostBytes: 40 * 160})
	if err != nil {
		t.Fatal(err)
	}
	b := toy.New(dev, e, m)
	graph, err := b.Record(t.Context(), serve.GraphSize{Tokens: toy.GraphTokens, Segments: toy.GraphSegments})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(e.Collector())
	var group [players]*toy.Player
	for i := range group {
		var g *toy.Recording
		if i == 0 {
			g = graph
		}
		group[i] = toy.NewPlayer(t.Context(), b, uint64(i), g, false)
	}

	start, next := time.Now(), time.Duration(0)
	interval := min(time.Minute, *soak/10)
	var samples []sample
	t.Log(sampleHeader)
	for !t.Failed() {
		if now := time.Since(start); now >= next {
			x := s.sample(f, e)
			samples = append(samples, x)
			t.Logf("%8s %s", now.Round(interval/10), x)
			if now >= *soak {
				break
			}
			next += interval
		}
		s.armed = true
		var playing sync.WaitGroup
		for i, p := range group {
			playing.Go(func() {
				for n := range operations {
					if err := p.Operation(); err != nil && !errors.Is(err, errInjected) {
						t.Errorf("player %d, operation %d of a round: %v", i, n, err)
						return
					}
				}
			})
		}
		playing.Wait()
		err := s.restart(e)
		s.armed = false
		if err != nil {
			t.Error(err)
		}
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
		s.operations += players * operations
	}

	for _, p := range group {
		if err := p.CloseAll(0); err != nil {
			t.Error(err)
		}
	}
	if err := group[0].Finish(); err != nil {
		t.Error(err)
	}
	if st := e.Cache().Stats(); st.PagesUsed+st.HostPages+st.Sequences+st.Chunks > 0 {
		t.Errorf("left over: %+v", st)
	}
	if err := errors.Join(graph.Close(t.Context()), e.Close()); err != nil {
		t.Error(err)
	}
	if len(f.held) > 0 || f.locked > 0 {
		t.Errorf("%d device allocations and %d bytes of host memory are left", len(f.held), f.locked)
	}
	graph.Free()
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	for range 1000 { // the goroutines of the device are ending
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	if s.faults == 0 {
		t.Error("nothing failed")
	}
	if *soak >= time.Minute {
		if err := flat(samples); err != nil {
			t.Error(err)
		}
	}
}

type soaking struct {
	t    *testing.T
	rng  *rand.Rand // guarded by the faulty device's lock while players are at work
	file string

	armed                        bool
	operations, faults, restarts int
	loaded, damaged              int
}

// fails says that one call in 500 does, but none that frees: what such a one was
// to free is lost by what the fault is, not by a leak.
func (s *soaking) fails(_ int, name string) bool {
	if !s.armed || strings.HasPrefix(name, "Free") || strings.HasPrefix(name, "Destroy") || s.rng.IntN(500) > 0 {
		return false
	}
	s.faults++
	return true
}

// restart persists the chunks, as they are or damaged, and has another engine on
// another device load them and serve.
func (s *soaking) restart(from *serve.Engine) (err error) {
	ctx := s.t.Context()
	s.restarts++
	if err := from.Cache().PersistFile(ctx, s.file); errors.Is(err, errInjected) {
		return nil
	} else if err != nil {
		return err
	}
	wanted := from.Cache().Stats().Chunks
	damage := s.restarts%4 == 0
	if damage {
		if err := s.damage(); err != nil {
			return err
		}
	}
	dev := cpu.Open(cpu.Options{Workers: 1})
	m := toy.Tiny()
	e, err := serve.New(dev, cpuKernels(s.t, dev, m), m, serve.Options{Pages: 150, HostBytes: 40 * 160})
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	defer func() { err = errors.Join(err, e.Close(), dev.Close()) }()
	n, err := e.Cache().LoadFile(ctx, s.file)
	if damage {
		s.damaged++
		if n > 0 || !errors.Is(err, kvcache.ErrDamaged) && !errors.Is(err, kvcache.ErrVersion) || e.Cache().Stats().PagesUsed > 0 {
			return fmt.Errorf("a damaged file gives %d chunks, %d pages, %v", n, e.Cache().Stats().PagesUsed, err)
		}
	} else if err != nil || n != wanted {
		return fmt.Errorf("%d chunks of %d are loaded: %w", n, wanted, err)
	}
	s.loaded += n
	p := toy.NewPlayer(ctx, toy.New(dev, e, m), uint64(s.restarts), nil, true)
	for range 50 {
		if err := p.Operation(); err != nil {
			return err
		}
	}
	return p.Finish()
}

// damage changes a bit of the file, or cuts it.
func (s *soaking) damage() error {
	data, err := os.ReadFile(s.file)
	if err != nil {
		return err
	}
	at := s.rng.IntN(len(data))
	if data[at] ^= 1 << s.rng.IntN(8); s.rng.IntN(2) == 0 {
		data = data[:at]
	}
	return os.WriteFile(s.file, data, 0o600)
}

// sample is what a process holds while nobody is at work.
type sample struct {
	heap, resident, device, host int64 // bytes
	goroutines                   int
	operations, faults, restarts int
	stats                        kvcache.Stats
}

func (s *soaking) sample(f *faulty, e *serve.Engine) sample {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	x := sample{
		heap: int64(m.HeapInuse), resident: resident(), host: f.locked, goroutines: runtime.NumGoroutine(),
		operations: s.operations, faults: s.faults, restarts: s.restarts, stats: e.Cache().Stats(),
	}
	for _, n := range f.held {
		x.device += n
	}
	return x
}

var sampleHeader = fmt.Sprintf("%8s %9s %9s %10s %9s %10s %5s %10s %7s %8s %9s %8s %8s",
	"time", "heap KiB", "RSS KiB", "device KiB", "host KiB", "goroutines", "pages", "operations", "faults", "restarts", "evictions", "restores", "encodes")

func (x sample) String() string {
	return fmt.Sprintf("%9d %9d %10d %9d %10d %5d %10d %7d %8d %9d %8d %8d", x.heap>>10, x.resident>>10, x.device>>10, x.host>>10,
		x.goroutines, x.stats.PagesUsed, x.operations, x.faults, x.restarts, x.stats.Evictions, x.stats.Restores, x.stats.Encodes)
}

// resident is the process's memory; 0 where the system does not say.
func resident() int64 {
	var size, pages int64
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// flat compares the medians of two halves of what comes behind the first quarter,
// which is warming up.
func flat(samples []sample) error {
	samples = samples[(len(samples)+3)/4:]
	early, late := samples[:len(samples)/2], samples[len(samples)/2:]
	if len(early) == 0 {
		return errors.New("too few samples")
	}
	median := func(of []sample, value func(sample) int64) int64 {
		var values []int64
		for _, x := range of {
			values = append(values, value(x))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	var errs []error
	for _, c := range []struct {
		name  string
		slack int64 // beside 5 percent
		value func(sample) int64
	}{
		{"heap", 256 << 10, func(x sample) int64 { return x.heap }},
		{"resident memory", 2 << 20, func(x sample) int64 { return x.resident }},
		{"device memory", 64 << 10, func(x sample) int64 { return x.device }},
		{"page-locked memory", 64 << 10, func(x sample) int64 { return x.host }},
		{"goroutines", 0, func(x sample) int64 { return int64(x.goroutines) }},
	} {
		if was, is := median(early, c.value), median(late, c.value); is > was+was/20+c.slack {
			errs = append(errs, fmt.Errorf("%s grew from %d to %d", c.name, was, is))
		}
	}
	return errors.Join(errs...)
}

func TestFlat(t *testing.T) {
	for _, c := range []struct {
		name string
		at   func(i int) sample
		want string
	}{
		{"flat", func(i int) sample { return sample{heap: 4 << 20, goroutines: 9} }, ""},
		{"warming up", func(i int) sample { return sample{heap: int64(min(i, 9)) << 20} }, ""},
		{"up and down", func(i int) sample { return sample{heap: int64(4+i%3) << 20} }, ""},
		{"a leak", func(i int) sample { return sample{heap: int64(40+i) << 20} }, "heap grew"},
		{"a small leak", func(i int) sample { return sample{heap: 4<<20 + int64(i)<<16} }, "heap grew"},
		{"a goroutine", func(i int) sample { return sample{goroutines: 9 + i/30} }, "goroutines grew"},
		{"device memory", func(i int) sample { return sample{device: int64(i) << 13} }, "device memory grew"},
	} {
		var samples []sample
		for i := range 40 {
			samples = append(samples, c.at(i))
		}
		if err := flat(samples); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if flat(make([]sample, 2)) == nil {
		t.Error("nothing to compare, and no error")
	}
}
