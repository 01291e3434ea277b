package serve_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

func TestCollector(t *testing.T) {
	b := newBench(t, toy.Small(), serve.Options{Pages: 50})
	d := toy.Document(1, 10)
	c := b.Register(t, d)
	b.Register(t, d).Release()
	var batch []serve.Entry
	for range 3 {
		s, err := b.Engine.Open(kvcache.Pack(c, c), kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, serve.Entry{Sequence: s, Tokens: 2})
	}
	if _, err := b.Step(t.Context(), batch, toy.Document(2, 6)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Engine.Schedule(t.Context(), []serve.Entry{{Sequence: batch[0].Sequence, Tokens: 1000}}); err == nil {
		t.Fatal("1000 tokens were scheduled")
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(b.Engine.Collector()); err != nil {
		t.Fatal(err)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	for name, want := range map[string]float64{
		"kgen_chunk_hits_total": 1, "kgen_chunk_misses_total": 1, "kgen_encodes_total": 1,
		"kgen_chunk_reads_total": 6, "kgen_shared_reads_total": 5, "kgen_step_tokens_total": 16, // 10 of them by the encode
		"kgen_step_seconds": 2, "kgen_schedule_seconds": 1, "kgen_step_failures_total": 1, "kgen_steps_aborted_total": 0,
		"kgen_pages_used": 6, "kgen_pages_free": 44, "kgen_kv_bytes": 6 * 512, "kgen_kv_unshared_bytes": 21 * 512, "kgen_sequences": 3, "kgen_chunks": 1, "kgen_evictions_total": 0,
	} {
		if v, ok := got[name]; !ok || math.Abs(v-want) > 1e-9 {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
}

// The step of an encode counts as any: where it can't be scheduled too.
func TestFailedEncodeCounts(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	m, refuse := toy.Small(), false
	f := newFaulty(dev, cpuKernels(t, dev, m), func(_ int, name string) bool { return refuse && name == "Alloc" })
	e, err := serve.New(f, f, m, serve.Options{Pages: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	refuse = true
	if _, err := e.Register(t.Context(), []int32{1}, func(context.Context, *serve.Step) error { return nil }); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	want := "# HELP kgen_step_failures_total Steps that could not be scheduled, or that the device failed.\n" +
		"# TYPE kgen_step_failures_total counter\nkgen_step_failures_total 1\n"
	if err := testutil.CollectAndCompare(e.Collector(), strings.NewReader(want), "kgen_step_failures_total"); err != nil {
		t.Error(err)
	}
}
