package demo_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/demo"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/tests/testutil"
)

// small takes a fraction of a second.
func small() demo.Options {
	return demo.Options{
		Seed: 3, Documents: 12, Zipf: 1.07, Requests: 6, PerRequest: 3,
		Shortest: 10, Longest: 40, Question: 5, Decode: 3, Check: 6,
	}
}

func smolLM2(t testing.TB) spec.Spec {
	t.Helper()
	s, err := demo.SmolLM2()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t *testing.T, s spec.Spec, o demo.Options) demo.Report {
	t.Helper()
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	r, err := demo.Run(t.Context(), dev, s, verify.CPU(dev), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestShapeIsTheShippedOne(t *testing.T) {
	shipped := testutil.Spec(t, "../../specs/smollm2_135m.yaml")
	if got, want := spec.Digest(smolLM2(t)), spec.Digest(shipped); got != want {
		t.Errorf("digest %s, the shipped spec has %s", got, want)
	}
}

func TestReport(t *testing.T) {
	r := run(t, smolLM2(t), small())
	if r.Uses != 18 || r.Used < 3 || r.Used > 12 || r.Hits != r.Uses-r.Used {
		t.Errorf("%d uses of %d documents, %d hits", r.Uses, r.Used, r.Hits)
	}
	if len(r.Methods) != 3 {
		t.Fatalf("%d methods", len(r.Methods))
	}
	lazy, copies, full := r.Methods[0], r.Methods[1], r.Methods[2]
	for _, m := range r.Methods {
		if !(m.LargestError > 1e-4 && m.LargestError < 0.02) { // of bf16
			t.Errorf("%s: error %g", m.Name, m.LargestError)
		}
		if m.First <= 0 || m.Step <= 0 || m.Attend <= 0 || m.First < m.Encode+m.Copy {
			t.Errorf("times %+v", m)
		}
	}
	if lazy.Copy != 0 || copies.Copy == 0 || lazy.Encode == 0 || full.Encode != 0 {
		t.Errorf("parts of the times: %+v", r.Methods)
	}
	if !(lazy.KVBytes < full.KVBytes && full.KVBytes < copies.KVBytes) {
		t.Errorf("KV of %d, %d and %d bytes", lazy.KVBytes, copies.KVBytes, full.KVBytes)
	}
	text := r.String()
	for _, want := range []string{"smollm2_135m, one layer, on CPU", "lazy reuse", "copy per request", "full recomputation", "MiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// What several requests hold is read once by the method that has one copy of it.
func TestSpared(t *testing.T) {
	s := smolLM2(t)
	s.Sharing = spec.Bitwise // the workload is small: fastest might share nothing
	r := run(t, s, small())
	lazy, copies, full := r.Methods[0], r.Methods[1], r.Methods[2]
	// Each use of a document beyond its first; and no more than all copies have.
	if lazy.Spared <= 0 || lazy.Spared >= copies.KVBytes || copies.Spared != 0 || full.Spared != 0 {
		t.Errorf("%d, %d and %d bytes are spared", lazy.Spared, copies.Spared, full.Spared)
	}
	if text := r.String(); !strings.Contains(text, "(shared decode)") {
		t.Errorf("no shared decode in\n%s", text)
	}
}

// What the seed decides is the same each time, and other seeds give others.
func TestSeed(t *testing.T) {
	o := small()
	first, again := run(t, smolLM2(t), o), run(t, smolLM2(t), o)
	o.Seed++
	other := run(t, smolLM2(t), o)
	for i := range first.Methods {
		a, b, c := first.Methods[i], again.Methods[i], other.Methods[i]
		if a.LargestError != b.LargestError || a.KVBytes != b.KVBytes || first.Hits != again.Hits {
			t.Errorf("%+v\n%+v", a, b)
		}
		if a.LargestError == c.LargestError {
			t.Errorf("seeds %d and %d: the same error %g", first.Seed, other.Seed, a.LargestError)
		}
	}
}

// Outputs are right whatever the spec says.
func TestOddSpecs(t *testing.T) {
	for name, change := range map[string]func(*spec.Spec){
		"fp16, hnd, interleaved": func(s *spec.Spec) {
			s.Model.DType, s.Cache.Layout, s.Rope.Pairing = spec.FP16, spec.HND, rope.Interleaved
		},
		"window, sinks": func(s *spec.Spec) { s.Masks.Window, s.Masks.SinkTokens, s.Masks.SinkLogits = 40, 4, true },
		"not causal":    func(s *spec.Spec) { s.Masks.Causal = false },
		"soft cap":      func(s *spec.Spec) { s.Masks.SoftCap = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			s := smolLM2(t)
			change(&s)
			o := small()
			o.Requests, o.Check = 3, 3
			run(t, s, o)
		})
	}
}

// silent are kernels that don't tell what they were made for.
type silent struct{ verify.Launcher }

func (k silent) Tile(kind abi.Kind) (rows, keys int) { return k.Launcher.(*cpu.Kernels).Tile(kind) }

// Kernels that ignore where a segment stands are found.
func TestWrongKernelsAreFound(t *testing.T) {
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	wrong := func(ctx context.Context, s spec.Spec, kinds []spec.Kind) (verify.Kernels, error) {
		k, err := verify.CPU(dev)(ctx, spec.WithEncoding(s, spec.Baked), kinds)
		k.Launcher = silent{k.Launcher}
		return k, err
	}
	_, err := demo.Run(t.Context(), dev, smolLM2(t), wrong, small())
	if err == nil || !strings.Contains(err.Error(), "demo: lazy reuse: request 0: own token 0: an output is") {
		t.Error(err)
	}
}

func TestUniformAndEveryDocument(t *testing.T) {
	o := small()
	o.Zipf, o.PerRequest, o.Decode, o.Check = 0, o.Documents, 0, 0
	if r := run(t, smolLM2(t), o); r.Used != o.Documents || r.Methods[0].LargestError != 0 {
		t.Errorf("%+v", r)
	}
}

func TestRunRefuses(t *testing.T) {
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	for want, change := range map[string]func(*spec.Spec, *demo.Options){
		"demo: 0 documents: want 1 to":                      func(_ *spec.Spec, o *demo.Options) { o.Documents = 0 },
		"0 requests":                                        func(_ *spec.Spec, o *demo.Options) { o.Requests = 0 },
		"-1 decode steps":                                   func(_ *spec.Spec, o *demo.Options) { o.Decode = -1 },
		"documents of 10 to 9 tokens":                       func(_ *spec.Spec, o *demo.Options) { o.Longest = 9 },
		"13 different documents a request, of 12":           func(_ *spec.Spec, o *demo.Options) { o.PerRequest = 13 },
		"a Zipf exponent of -1":                             func(_ *spec.Spec, o *demo.Options) { o.Zipf = -1 },
		"may have 128 tokens, and the spec's positions end": func(s *spec.Spec, _ *demo.Options) { s.Rope.MaxPosition = 100 },
		"the spec has no kind merge":                        func(s *spec.Spec, _ *demo.Options) { s.Kinds = []spec.Kind{spec.Append} },
	} {
		s, o := smolLM2(t), small()
		change(&s, &o)
		if _, err := demo.Run(t.Context(), dev, s, verify.CPU(dev), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
