package generated

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/generated/llama2_7b"
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/tests/testutil"
)

// TestProductsOverlap looks for kernels in whose machine code every product of a warpgroup is waited
// for at once. ptxas makes such code where it can't tell which registers products under way have, does not
// always warn of it, and nothing but the kernel's time shows it: half as long again.
func TestProductsOverlap(t *testing.T) {
	tools := toolchain.Find(testutil.Toolchain())
	if tools.NVRTC == "" || tools.Nvdisasm == "" {
		t.Skip("NVRTC or nvdisasm is not found; run `kgen toolchain install`")
	}
	compiler, err := build.FindCompiler(t.Context(), build.NVRTC, tools, filepath.Join(testutil.CacheDir(), "versions"))
	if err != nil {
		t.Fatal(err)
	}
	cache := cubincache.Cache{Dir: filepath.Join(testutil.CacheDir(), "cubins")}
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
		cubins, err := build.Build(t.Context(), compiler, cache, sources, build.Options{})
		if err != nil {
			t.Fatal(err)
		}
		with := 0 // kernels with such products
		for _, c := range cubins {
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
		if with < 3 {
			t.Errorf("%s: %d kernels of family sm90 have products of warpgroups", name, with)
		}
	}
}
