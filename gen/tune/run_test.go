package tune

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/tests/testutil"
)

// saboteur is the emulator, with a mistake in one kernel.
type saboteur struct {
	*emulate.Device
	t    *testing.T
	name string // of the kernel
}

func (d saboteur) Load(image cuda.Image) (cuda.Module, error) {
	if image.Name == d.name {
		old := []byte("ptx::mma_m16n8k16<Element>(scores.block[m][2 * n], a[m], b[0], b[1]);")
		if n := bytes.Count(image.Source, old); n != 1 {
			d.t.Errorf("%d occurrences of %s in %s", n, old, image.Name)
		}
		image.Source = bytes.Replace(image.Source, old, []byte("ptx::mma_m16n8k16<Element>(scores.block[m][2 * n], a[m], b[1], b[0]);"), 1)
	}
	return d.Device.Load(image)
}

// tiny is a spec of few heads, with the rest of its lines, and a device without a GPU.
func tiny(t *testing.T, rest string) (spec.Spec, *emulate.Device) {
	t.Helper()
	s, err := spec.Parse("tiny.yaml", []byte("name: tiny\nmodel: {query_heads: 4, kv_heads: 2, head_dim: 64}\n"+
		"rope: {type: default, theta: 10000}\ntargets: [sm_80]\n"+rest))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := emulate.Open(t.Context(), emulate.Options{CacheDir: testutil.Emulator(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, dev
}

// A whole run without a GPU: a wrong candidate is reported and not ranked, and a run
// that was interrupted goes on to the same table.
func TestRun(t *testing.T) {
	s, dev := tiny(t, "kernels: [append, decode, merge]\ntiles: {decode: {keys: 16}}\n")
	decode := func(batch, keys int, heldOut bool) Case {
		return Case{bench.Case{Kind: spec.Decode, Batch: batch, Query: 1, Context: keys}, heldOut}
	}
	o := Options{
		Target: "sm_80", Candidates: 3, CheckCases: 1, Seed: 1, CheckWork: 1e6,
		Cases: []Case{decode(2, 96, false), decode(1, 200, false), decode(1, 150, true)},
	}
	r := &run{spec: s, o: o}
	r.o.defaults(s)
	found, err := r.candidates(spec.Decode)
	if err != nil || len(found) != 3 {
		t.Fatalf("%d candidates, %v", len(found), err)
	}
	bad := found[2].plan.Layout()
	m := Machine{Device: saboteur{dev, t, "decode_" + bad.String()}}
	path := filepath.Join(t.TempDir(), "journal")
	id := Identity{Spec: s.Name, Digest: spec.Digest(s)}

	// Interrupted at its second time, and again at its fourth.
	var e Entry
	launches := 0
	for _, limit := range []int{2, 4, 1 << 30} {
		ctx, stop := context.WithCancel(t.Context())
		m.Count = func() time.Duration {
			if launches++; launches/2 == limit { // once before each time, once after it
				stop()
			}
			return Counted(dev.TakeCounters())
		}
		j, err := OpenJournal(path, id, o.Seed)
		if err != nil {
			t.Fatal(err)
		}
		e, err = Run(ctx, m, s, j, o)
		stop()
		if closeErr := j.Close(); closeErr != nil {
			t.Fatal(closeErr)
		}
		if limit < 1<<30 && !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted: %v", err)
		}
		if limit == 1<<30 && err != nil {
			t.Fatal(err)
		}
	}
	k := e.Kinds[0]
	if len(k.Rejected) != 1 || k.Rejected[0].Layout != bad || !k.Rejected[0].Wrong {
		t.Errorf("rejected %+v, want %s", k.Rejected, bad)
	}
	for _, c := range k.Cases {
		if len(c.Times) != 2 {
			t.Errorf("%s: times of %d settings, want those of the two right ones", c.Case, len(c.Times))
		}
		for s := range c.Times {
			if s.Layout == bad {
				t.Errorf("%s: the wrong plan is ranked", c.Case)
			}
		}
	}

	// All at once it is the same; what the journal had was not measured again.
	j, err := OpenJournal(filepath.Join(t.TempDir(), "journal"), id, o.Seed)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	before := launches
	m.Count = func() time.Duration { launches++; return Counted(dev.TakeCounters()) }
	whole, err := Run(t.Context(), m, s, j, o)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(whole, e, values); d != "" {
		t.Errorf("(-at once +with interruptions)\n%s", d)
	}
	if again := launches - before; before > again+4 { // an interrupted time is made again
		t.Errorf("%d counts with two interruptions, %d at once", before, again)
	}

	// Checks by one case are not checks by two, and times of few repeats not those of many.
	for name, change := range map[string]func(*Options){
		"checks": func(o *Options) { o.CheckCases++ },
		"times":  func(o *Options) { o.Repeats = 6 },
	} {
		checks, times := j.Known()
		other := o
		change(&other)
		if _, err := Run(t.Context(), m, s, j, other); err != nil {
			t.Fatal(err)
		}
		if c, n := j.Known(); (c > checks) != (name == "checks") || (n > times) != (name == "times") {
			t.Errorf("more %s: %d and %d are now %d and %d", name, checks, times, c, n)
		}
	}
}

// A budget that is spent at once still gives a table: the default's.
func TestRunWithoutBudget(t *testing.T) {
	s, err := spec.Parse("tiny.yaml", []byte("name: tiny\nmodel: {query_heads: 4, kv_heads: 2, head_dim: 64}\n"+
		"rope: {type: default, theta: 10000}\ntargets: [sm_80]\nkernels: [decode, merge]\n"))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := emulate.Open(t.Context(), emulate.Options{CacheDir: testutil.Emulator(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	j, err := OpenJournal(filepath.Join(t.TempDir(), "journal"), Identity{Spec: s.Name}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	e, err := Run(t.Context(), Machine{Device: dev, Count: func() time.Duration { return Counted(dev.TakeCounters()) }}, s, j, Options{
		Target: "sm_80", CheckCases: 1, Seed: 1, CheckWork: 1e6, Budget: time.Nanosecond,
		Cases: []Case{{Case: bench.Case{Kind: spec.Decode, Batch: 1, Query: 1, Context: 64}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := e.Kinds[0]
	for _, c := range k.Choices {
		if c.Setting != k.Usual() {
			t.Errorf("bucket %+v: %s", c.Bucket, c.Setting)
		}
	}
	if len(k.Rejected) == 0 || !strings.Contains(k.Rejected[0].Why, "within the budget") || k.Rejected[0].Wrong {
		t.Errorf("rejected %+v", k.Rejected)
	}
}

// All that a candidate is checked and timed by is compiled with it.
func TestCompilesWhatCandidatesNeed(t *testing.T) {
	for _, s := range []spec.Spec{llama3(t), spec.WithEncoding(llama3(t), spec.Raw)} {
		var all []*candidate
		kinds := KindsOf(s)
		for _, kind := range kinds {
			plans, err := plan.Candidates(s, kind, "sm_90a")
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range plans {
				all = append(all, &candidate{plan: p})
			}
		}
		compile := func(context.Context, build.Source) (build.Cubin, error) { return build.Cubin{}, nil }
		r := &run{m: Machine{Compile: compile}, spec: s, o: Options{Target: "sm_90a", Kinds: kinds, Progress: func(string, int, int) {}}, cubins: compiled{}}
		if err := r.compile(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			out, err := emitFor(s, c.plan, "sm_90a", checkedWith(c.plan)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range out.Kernels {
				if _, ok := r.cubins[sha256.Sum256(k.Source)]; !ok {
					t.Errorf("%s, %s %s: %s was not compiled", s.Cache.Encoding, c.plan.Kind, c.plan.Layout(), k.File)
				}
			}
		}
	}
}

// clocked is the emulator as a device that records graphs. It counts streams, which
// are those of timers: the emulator itself needs none.
type clocked struct {
	*emulate.Device
	made, destroyed *int
}

type replay func() error

func (r replay) Launch(cuda.Stream) error { return r() }
func (r replay) Destroy() error           { return nil }

func (d clocked) Capture(_ cuda.Stream, f func() error) (cuda.Graph, error) { return replay(f), nil }

func (d clocked) NewStream() (cuda.Stream, error) {
	*d.made++
	return d.Device.NewStream()
}

func (d clocked) DestroyStream(s cuda.Stream) error {
	*d.destroyed++
	return d.Device.DestroyStream(s)
}

// A kind's times come from one timer, which is closed when they are there, or when the
// run is interrupted.
func TestOneTimerAKind(t *testing.T) {
	s, dev := tiny(t, "kernels: [decode]\n")
	path := filepath.Join(t.TempDir(), "journal")
	for _, interrupted := range []bool{true, false} {
		j, err := OpenJournal(path, Identity{Spec: s.Name}, 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		made, destroyed := 0, 0
		_, err = Run(ctx, Machine{Device: clocked{dev, &made, &destroyed}}, s, j, Options{
			Target: "sm_80", Candidates: 2, CheckCases: 1, Repeats: 3, Seed: 1, CheckWork: 1e6,
			Cases: []Case{{Case: bench.Case{Kind: spec.Decode, Batch: 1, Query: 1, Context: 64}}},
			Progress: func(stage string, _, _ int) {
				if interrupted && strings.Contains(stage, "round 2") {
					stop()
				}
			},
		})
		stop()
		if closeErr := j.Close(); closeErr != nil {
			t.Fatal(closeErr)
		}
		if interrupted != errors.Is(err, context.Canceled) || !interrupted && err != nil {
			t.Fatalf("interrupted %t: %v", interrupted, err)
		}
		if made != 1 || destroyed != 1 {
			t.Errorf("interrupted %t: %d streams made, %d destroyed, want 1", interrupted, made, destroyed)
		}
	}
}
