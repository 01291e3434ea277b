package generated

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/generated/llama2_7b"
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/templates"
	"github.com/kgen-project/kgen/tests/testutil"
)

// TestProductsOverlap looks for kernels that spill, or of which the compiler warns, or in whose machine code every product of a warpgroup is waited
// for at once. ptxas makes the last where it can't tell which registers products under way have, does not
// always warn of it, and nothing but the kernel's time shows it: half as long again.
func TestProductsOverlap(t *testing.T) {
	for name, manifest := range map[string]func() (abi.Manifest, error){
		"llama2_7b": llama2_7b.Manifest, "llama3": llama3.Manifest, "smollm2_135m": smollm2_135m.Manifest,
	} {
		m, err := manifest()
		if err != nil {
			t.Fatal(err)
		}
		var sources []build.Source
		for _, k := range m.Kernels {
			if k.Family != "sm90" {
				continue
			}
			text, err := os.ReadFile(filepath.Join("../../generated", name, k.Source))
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, build.Source{Name: k.Source, Entry: k.Entry, Text: text, Target: spec.Target("sm_90a")})
		}
		if with := productsOverlap(t, name, sources); with < 3 {
			t.Errorf("%s: %d kernels of family sm90 have products of warpgroups", name, with)
		}
	}
}

// The same for tiles that nobody is given without asking, of head dim 64, whose kernels have a loop for whole tiles; and for what no
// shipped spec has: windows.
func TestProductsOverlapElsewhere(t *testing.T) {
	for _, c := range []struct {
		name, spec string
		window     int
		kinds      []spec.Kind
		tiles      []spec.Tile
	}{
		{
			"tiles by hand", "smollm2_135m", 0, []spec.Kind{spec.Prefill, spec.Extend, spec.SharedDecode},
			[]spec.Tile{{Rows: 64, Keys: 128, Stages: 3, Warps: 8}, {Rows: 128, Keys: 64, Stages: 3, Warps: 12}, {Rows: 192, Keys: 128, Stages: 3, Warps: 16}},
		},
		{"a window", "llama3", 4096, []spec.Kind{spec.Prefill, spec.Extend}, []spec.Tile{{}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testutil.Spec(t, "../../specs/"+c.spec+".yaml")
			s.Masks.Window = c.window
			s.Targets = []spec.Target{"sm_90a"}
			var plans []plan.Plan
			for _, tile := range c.tiles {
				for _, kind := range c.kinds {
					s.Tiles = map[spec.Kind]spec.Tile{kind: tile}
					p, err := plan.Choose(s, kind, "sm_90a")
					if err != nil {
						t.Fatal(err)
					}
					plans = append(plans, p)
				}
			}
			out, err := emit.Emit(s, plans, templates.FS)
			if err != nil {
				t.Fatal(err)
			}
			var sources []build.Source
			for _, k := range out.Kernels {
				sources = append(sources, build.Source{Name: k.File, Entry: k.Entry, Text: k.Source, Target: spec.Target("sm_90a")})
			}
			if with := productsOverlap(t, c.spec, sources); with != len(plans) {
				t.Errorf("%d of %d kernels have products of warpgroups", with, len(plans))
			}
		})
	}
}

// productsOverlap compiles kernels, and looks at each. It returns how many have products of warpgroups.
func productsOverlap(t *testing.T, name string, sources []build.Source) int {
	t.Helper()
	tools := toolchain.Find(testutil.Toolchain())
	if tools.NVRTC == "" || tools.Nvdisasm == "" {
		t.Skip("NVRTC or nvdisasm is not found; run `kgen toolchain install`")
	}
	compiler, err := build.FindCompiler(t.Context(), build.NVRTC, tools, filepath.Join(testutil.CacheDir(), "versions"))
	if err != nil {
		t.Fatal(err)
	}
	cubins, err := build.Build(t.Context(), compiler, cubincache.Cache{Dir: filepath.Join(testutil.CacheDir(), "cubins")}, sources, build.Options{})
	if err != nil {
		t.Fatal(err)
	}
	with := 0
	for _, c := range cubins {
		if f := c.Figures; c.Warnings != "" || f.SpillStores > 0 {
			t.Errorf("%s: %s spills %d bytes; %s", name, c.Source.Name, f.SpillStores, c.Warnings)
		}
		code, err := toolchain.Disassemble(t.Context(), tools.Nvdisasm, c.Cubin)
		if err != nil {
			t.Fatal(err)
		}
		products, waits := strings.Count(code, " HGMMA."), strings.Count(code, " WARPGROUP.DEPBAR.")
		if products > 0 {
			with++
		}
		// Warps that rotate wait for each of their small products, for more of which they have no registers.
		rotations := strings.Count(code, " HGMMA.64x16x16.")
		if products, waits := products-rotations, waits-rotations; 3*waits > products {
			t.Errorf("%s: %s waits %d times for %d products", name, c.Source.Name, waits, products)
		}
	}
	return with
}
