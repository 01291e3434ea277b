package emit

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/templates"
	"github.com/kgen-project/kgen/tests/testutil"
)

// tiny is the spec of the golden folder and plans for it.
func tiny(t testing.TB) (spec.Spec, []plan.Plan) {
	t.Helper()
	s := testutil.Spec(t, "testdata/tiny/tiny.yaml")
	return s, []plan.Plan{
		{Kind: spec.Prefill, Family: plan.SM80, Targets: s.Targets, Rows: 64, Keys: 32, Stages: 2, Warps: 4, Shared: 24576, MinBlocks: 2},
		{Kind: spec.Merge, Family: plan.SM80, Targets: s.Targets, Warps: 8},
	}
}

func TestGolden(t *testing.T) {
	s, plans := tiny(t)
	out, err := Emit(s, plans, os.DirFS("testdata/tiny/templates"))
	if err != nil {
		t.Fatal(err)
	}
	m := out.Manifest
	m.Generator, m.Flags, m.Compiler = "test", []string{"--std=c++17"}, abi.Compiler{ID: "nvrtc", Version: "0.0"}
	if out.Files[ManifestFile], err = m.Encode(); err != nil {
		t.Fatal(err)
	}
	if out.Files[s.Name+".go"], err = Bindings(s, m, false); err != nil {
		t.Fatal(err)
	}
	const folder = "testdata/tiny/want"
	if *update {
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		for name, text := range out.Files {
			if err := os.WriteFile(filepath.Join(folder, name), text, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := out.Files[e.Name()]; !ok {
			t.Errorf("%s is no longer made", e.Name())
		}
	}
	for name, text := range out.Files {
		want, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Error(err)
		} else if diff := cmp.Diff(string(want), string(text)); diff != "" {
			t.Errorf("%s (-want +got); go test ./gen/emit -update, if it is right:\n%s", name, diff)
		}
	}
}

// TestTemplates flattens the real templates, for every kind under every flag.
func TestTemplates(t *testing.T) {
	base, _ := tiny(t)
	base.Kinds = spec.AllKinds
	variants := map[string]func(*spec.Spec){
		"segment": func(*spec.Spec) {},
		"raw hnd": func(s *spec.Spec) { s.Cache.Encoding, s.Cache.Layout = spec.Raw, spec.HND },
		"baked":   func(s *spec.Spec) { s.Cache.Encoding = spec.Baked },
		"every mask": func(s *spec.Spec) {
			s.Masks = spec.Masks{Causal: true, Window: 128, SinkTokens: 4, SinkLogits: true, SoftCap: 50}
		},
		"no rope":     func(s *spec.Spec) { s.Rope.RotaryDim, s.Rope.Frequencies = 0, nil },
		"interleaved": func(s *spec.Spec) { s.Rope.Pairing = "interleaved" },
	}
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			s := base
			change(&s)
			var plans []plan.Plan
			for _, k := range spec.AllKinds {
				plans = append(plans, plan.Plan{Kind: k, Family: plan.SM80, Targets: s.Targets, Rows: 64, Keys: 64, Stages: 2, Warps: 4})
			}
			if s.Cache.Encoding == spec.Raw {
				plans = append(plans, plan.Plan{Kind: spec.Prefill, Family: plan.SM90, Targets: []spec.Target{"sm_90a"}, Rows: 128, Keys: 128, Stages: 2, Warps: 12, KeysAhead: true})
			}
			out, err := Emit(s, plans, templates.FS)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range out.Kernels {
				for number, line := range strings.Split(string(k.Source), "\n") {
					if strings.HasPrefix(line, "#include") || strings.HasPrefix(line, "#if KGEN_") || strings.HasPrefix(line, "#if !KGEN_") {
						t.Errorf("%s:%d: %s", k.File, number+1, line)
					}
				}
				if !bytes.Contains(k.Source, []byte("ptx::wait_for_previous_kernel()")) {
					t.Errorf("%s is launched early and does not wait for the kernel ahead", k.File)
				}
				if bytes.Contains(k.Source, []byte("\n\n\n")) {
					t.Errorf("%s: two blank lines together", k.File)
				}
			}
		})
	}
}

func TestEmitIsPure(t *testing.T) {
	s, plans := tiny(t)
	first, err := Emit(s, plans, os.DirFS("testdata/tiny/templates"))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Emit(s, plans, os.DirFS("testdata/tiny/templates"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatalf("a second run differs:\n%s", diff)
		}
	}
}

func TestEmitErrors(t *testing.T) {
	s, plans := tiny(t)
	fake := os.DirFS("testdata/tiny/templates")
	tests := []struct {
		name      string
		plans     []plan.Plan
		templates fs.FS
		want      string
	}{
		{"twice", []plan.Plan{plans[0], plans[0]}, fake, "emit: two plans make prefill_sm80_r64k32s2w4b2.cu"},
		{"kind not asked for", []plan.Plan{{Kind: spec.Decode, Family: plan.SM80}}, fake, "a plan for decode, which the spec tiny does not ask for"},
		{"unknown kind", []plan.Plan{{Kind: "fold", Family: plan.SM80}}, fake, `no template for the kernel kind "fold"`},
		{"no template", plans[:1], files("ptx/sm80.cuh", ""), "emit: template kernel/attend.cuh: "},
		{"no family", []plan.Plan{{Kind: spec.Merge, Family: "sm70"}}, fake, "emit: template ptx/sm70.cuh: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Emit(s, test.plans, test.templates)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that contains %q", err, test.want)
			}
		})
	}
}

func TestCFloat(t *testing.T) {
	for x, want := range map[float64]string{0: "0.f", 50: "50.f", 0.1: "0.1f", 1e-9: "1e-09f", 30.5: "30.5f"} {
		if got := cFloat(x); got != want {
			t.Errorf("cFloat(%v) = %s, want %s", x, got, want)
		}
	}
}
