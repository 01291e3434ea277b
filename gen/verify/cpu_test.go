package verify_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/tests/testutil"
)

// onCPU verifies the CPU backend in every encoding.
func onCPU(t *testing.T, s spec.Spec, cases, work int) {
	dev := cpu.Open(cpu.Options{})
	r, err := verify.Run(t.Context(), dev, s, verify.CPU(dev), verify.Options{
		Encodings: spec.AllEncodings, Cases: cases, Seed: 5, Work: work,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Error(r)
	}
	for _, row := range r.Rows {
		if row.Encoding == spec.Raw && slices.Contains(spec.TiledKinds, row.Kind) && row.SameBits != cases {
			t.Errorf("%s: the bits of %d of %d cases were compared with baked's", row.Kind, row.SameBits, cases)
		}
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

func TestCPUOnShippedSpecs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../specs/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d specs, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s := testutil.Spec(t, file)
			onCPU(t, s, 3, 5e5)
		})
	}
}

// Specs that the generator may refuse are good here.
func TestCPUOnOddSpecs(t *testing.T) {
	t.Parallel()
	partial := func(s *spec.Spec) {
		s.Rope.RotaryDim, s.Rope.Frequencies, s.Rope.AttentionFactor = 8, s.Rope.Frequencies[:4], 1.3
	}
	for name, change := range map[string]func(*spec.Spec){
		"fp16":        func(s *spec.Spec) { s.Model.DType = spec.FP16 },
		"hnd":         func(s *spec.Spec) { s.Cache.Layout = spec.HND },
		"interleaved": func(s *spec.Spec) { s.Rope.Pairing = rope.Interleaved },
		"partial":     partial,
		"fp16, hnd, interleaved, partial, pages of 4": func(s *spec.Spec) {
			partial(s)
			s.Model.DType, s.Cache.Layout, s.Rope.Pairing, s.Cache.PageSize = spec.FP16, spec.HND, rope.Interleaved, 4
		},
		"window":        func(s *spec.Spec) { s.Masks.Window = 20 },
		"window, sinks": func(s *spec.Spec) { s.Masks.Window, s.Masks.SinkTokens = 20, 4 },
		"sink logits":   func(s *spec.Spec) { s.Masks.SinkLogits = true },
		"soft cap":      func(s *spec.Spec) { s.Masks.SoftCap = 3 },
		"high soft cap": func(s *spec.Spec) { s.Masks.SoftCap = 1e6 },
		"all masks": func(s *spec.Spec) {
			s.Masks = spec.Masks{Causal: true, Window: 20, SinkTokens: 4, SinkLogits: true, SoftCap: 3}
		},
		"not causal":  func(s *spec.Spec) { s.Masks.Causal = false },
		"no rotation": func(s *spec.Spec) { s.Rope = rope.Variant{AttentionFactor: 1, MaxPosition: 1 << 20} },
		"head dims of 17 and 9": func(s *spec.Spec) {
			s.Model.HeadDim, s.Model.VHeadDim = 17, 9
		},
		"groups of 70": func(s *spec.Spec) { s.Model.QueryHeads = 210 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onCPU(t, small(change), 6, 5e4)
		})
	}
}
