package verify

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/tests/testutil"
)

// rotaryOf is the usual rule for so many dimensions.
func rotaryOf(dims int) rope.Variant {
	variant, err := rope.Rule{Type: rope.Default, Theta: 10000, RotaryDim: dims, MaxPosition: 1 << 20}.Resolve()
	if err != nil {
		panic(err)
	}
	return variant
}

// emulated is a spec that is fast on the emulator.
func emulated(t testing.TB, change func(*spec.Spec)) spec.Spec {
	variant := rotaryOf(64)
	s := spec.Spec{
		Name:  "emulated",
		Model: spec.Model{QueryHeads: 6, KVHeads: 2, HeadDim: 64, VHeadDim: 64, DType: spec.BF16},
		Rope:  variant,
		Cache: spec.Cache{PageSize: 16, Layout: spec.NHD, Encoding: spec.Segment},
		Masks: spec.Masks{Causal: true},
		Scale: 0.125,
		Kinds: spec.AllKinds, Targets: []spec.Target{"sm_80"},
	}
	if change != nil {
		change(&s)
	}
	return s
}

func emulator(t testing.TB, seed uint64) *emulate.Device {
	t.Helper()
	return openEmulator(t, emulate.Options{Seed: seed})
}

// unoptimized is an emulator for a few cases of many kernels, which take longer to compile
// than to run.
func unoptimized(t testing.TB, seed uint64) *emulate.Device {
	t.Helper()
	return openEmulator(t, emulate.Options{Seed: seed, Unoptimized: true})
}

func openEmulator(t testing.TB, o emulate.Options) *emulate.Device {
	t.Helper()
	o.CacheDir = testutil.Emulator()
	d, err := emulate.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// verified runs the cases on the kernels that are generated of a spec, and reports those that fail.
func verified(t *testing.T, dev *emulate.Device, s spec.Spec, o Options) Report {
	t.Helper()
	if len(o.Kinds) > 0 { // the cases are drawn for a spec of these; and without materialise, raw keys are rotated in the kernels
		s.Kinds = slices.DeleteFunc(slices.Clone(s.Kinds), func(k spec.Kind) bool {
			return !slices.Contains(o.Kinds, k) && k != spec.Append && k != spec.Merge
		})
	}
	r, err := Run(t.Context(), dev, s, Generated(dev, kernel.Options{}), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Error(r)
	}
	return r
}

// The generator's kernels on the emulator. (Go kernels, for what verify itself
// finds and does not find, are in verify_test.go.)
func TestGeneratedKernels(t *testing.T) {
	t.Parallel()
	dev := emulator(t, 1)
	r := verified(t, dev, emulated(t, nil), Options{
		Encodings: []spec.Encoding{spec.Segment, spec.Raw, spec.Baked}, Cases: 3, Seed: 1,
	})
	for _, row := range r.Rows {
		if slices.Contains(spec.TiledKinds, row.Kind) && row.Encoding == spec.Raw && row.SameBits != row.Cases {
			t.Errorf("%s: the bits of %d of %d raw cases were compared with baked's", row.Kind, row.SameBits, row.Cases)
		}
	}
}

// Raw keys of tiles that reach past the end of the angle table, where the last run ends.
func TestGeneratedKernelsRawKeysAtLastPosition(t *testing.T) {
	t.Parallel()
	for _, target := range []spec.Target{"sm_80", "sm_90a"} {
		t.Run(string(target), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 11)
			s := emulated(t, func(s *spec.Spec) {
				s.Rope.MaxPosition = 96 // three rows of the high level
				s.Targets = []spec.Target{target}
			})
			verified(t, dev, s, Options{
				Kinds: spec.TiledKinds, Encodings: []spec.Encoding{spec.Raw}, Cases: 4, Seed: 1,
			})
		})
	}
}

// The widest heads, which have tiles of their own.
func TestGeneratedKernelsHeadDim256(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		target   spec.Target
		encoding spec.Encoding
	}{
		{"sm_80", spec.Raw}, {"sm_90a", spec.Segment}, {"sm_90a", spec.Raw},
	} {
		t.Run(fmt.Sprintf("%s %s", c.target, c.encoding), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 3)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.HeadDim, s.Model.VHeadDim, s.Model.QueryHeads = 256, 256, 4
				s.Scale = 1. / 16
				rule := rope.Rule{Type: rope.Default, Theta: 10000, RotaryDim: 256, MaxPosition: 1 << 20}
				var err error
				if s.Rope, err = rule.Resolve(); err != nil {
					t.Fatal(err)
				}
				s.Targets = []spec.Target{c.target}
			})
			verified(t, dev, s, Options{
				Kinds: spec.TiledKinds, Encodings: []spec.Encoding{c.encoding}, Cases: 2, Seed: 1,
			})
		})
	}
}

// Tiles by hand that baked keys, which verify holds others to, cannot have, or not with the
// warps that are theirs by default.
func TestGeneratedKernelsTilesOfSiblings(t *testing.T) {
	t.Parallel()
	dev := unoptimized(t, 9)
	s := emulated(t, func(s *spec.Spec) {
		s.Model.HeadDim, s.Model.VHeadDim, s.Rope = 128, 128, rotaryOf(128)
		s.Tiles = map[spec.Kind]spec.Tile{spec.Prefill: {Rows: 256, Keys: 32, Stages: 1, Warps: 8}}
	})
	verified(t, dev, s, Options{Kinds: []spec.Kind{spec.Prefill}, Cases: 2, Seed: 1})
}

// Warps of family sm80 with more rows than lanes, each of which finds where two rows' results go.
func TestGeneratedKernelsTallWarps(t *testing.T) {
	t.Parallel()
	dev := unoptimized(t, 9)
	s := emulated(t, func(s *spec.Spec) {
		s.Model.HeadDim, s.Model.VHeadDim, s.Rope = 64, 64, rotaryOf(64)
		s.Tiles = map[spec.Kind]spec.Tile{spec.Prefill: {Rows: 128, Keys: 32, Stages: 2, Warps: 2}, spec.Extend: {Rows: 96, Keys: 32, Stages: 2, Warps: 2}}
	})
	verified(t, dev, s, Options{Kinds: []spec.Kind{spec.Prefill, spec.Extend}, Cases: 4, Seed: 2})
}

// A cap that is far above all scores leaves them nearly as they are.
func TestGeneratedKernelsHighSoftCap(t *testing.T) {
	t.Parallel()
	for _, target := range []spec.Target{"sm_80", "sm_90a"} {
		t.Run(string(target), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 10)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.DType, s.Masks.SoftCap = spec.FP16, 1e6
				s.Targets = []spec.Target{target}
			})
			verified(t, dev, s, Options{
				Kinds: []spec.Kind{spec.Extend, spec.Decode}, Encodings: []spec.Encoding{spec.Baked}, Cases: 3, Seed: 1,
			})
		})
	}
}
