package plan_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/rope"
)

func parse(t testing.TB, name string, more string) spec.Spec {
	t.Helper()
	path := "../../specs/" + name + ".yaml"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spec.Parse(path, append(data, more...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCandidates(t *testing.T) {
	for _, name := range []string{"llama3", "llama2_7b", "smollm2_135m"} {
		s := parse(t, name, "")
		for _, kind := range spec.TiledKinds {
			for _, target := range []spec.Target{"sm_80", "sm_90a", "sm_120a"} {
				all, err := plan.Candidates(s, kind, target)
				if err != nil {
					t.Fatal(err)
				}
				usual, err := plan.Choose(s, kind, target)
				if err != nil {
					t.Fatal(err)
				}
				if all[0].Layout() != usual.Layout() || len(all) < 10 {
					t.Errorf("%s %s %s: %d candidates, the first %s; the default is %s", name, kind, target, len(all), all[0].Layout(), usual.Layout())
				}
				seen := map[plan.Layout]bool{}
				for _, p := range all {
					made, misfit := plan.Make(s, kind, target, p.Layout())
					if misfit != nil || made.Shared != p.Shared {
						t.Errorf("%s %s %s %s: made again it is %+v, %v", name, kind, target, p.Layout(), made, misfit)
					}
					if seen[p.Layout()] {
						t.Errorf("%s %s %s %s: twice", name, kind, target, p.Layout())
					}
					seen[p.Layout()] = true
					if p.Family == plan.SM90 && target != "sm_90a" {
						t.Errorf("%s %s %s: %s", name, kind, target, p.Layout())
					}
				}
			}
		}
	}
}

// Fields that the spec gives by hand are nobody's to choose.
func TestCandidatesKeepGivenFields(t *testing.T) {
	s := parse(t, "llama3", "\ntiles: {extend: {keys: 64}}\n")
	all, err := plan.Candidates(s, spec.Extend, "sm_90a")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Keys != 64 {
			t.Errorf("%s", p.Layout())
		}
	}
}

// A default is its own alternative whatever it is: by hand, a tile may be one that spills where scores are capped.
func TestAlternativesBeginWithTheDefault(t *testing.T) {
	const dim64, dim128 = "model: {query_heads: 32, kv_heads: 8, head_dim: 64}\n", "model: {query_heads: 32, kv_heads: 8, head_dim: 128}\n"
	for _, more := range []string{
		dim128,
		dim128 + "masks: {soft_cap: 50}\n",
		dim128 + "masks: {soft_cap: 50}\ntiles: {prefill: {rows: 256, keys: 64, warps: 16}, extend: {rows: 128, keys: 128, warps: 16}}\n",
		dim64 + "masks: {soft_cap: 50}\ntiles: {prefill: {rows: 192, keys: 128}, extend: {rows: 256, keys: 128, warps: 16}}\n",
	} {
		s := wide(t, more)
		for _, kind := range spec.TiledKinds {
			usual, err := plan.Choose(s, kind, "sm_90a")
			if err != nil {
				t.Fatal(err)
			}
			all, err := plan.Alternatives(s, kind, "sm_90a")
			if err != nil {
				t.Fatal(err)
			}
			if len(all) == 0 || all[0].Layout() != usual.Layout() {
				t.Errorf("%s %s: %d alternatives to %s, and it is not the first", more, kind, len(all), usual.Layout())
			}
		}
	}
}

func TestMakeRefuses(t *testing.T) {
	s := parse(t, "llama3", "")
	raw, baked, fp16 := spec.WithEncoding(s, spec.Raw), spec.WithEncoding(s, spec.Baked), s
	fp16.Model.DType = spec.FP16
	rawFP16 := spec.WithEncoding(fp16, spec.Raw)
	values := wide(t, "model: {query_heads: 8, kv_heads: 4, head_dim: 128, v_head_dim: 64}\n")
	windowed := wide(t, "model: {query_heads: 32, kv_heads: 8, head_dim: 128}\nmasks: {window: 100}\ncache: {page_size: 8}\n")
	longPages := s
	longPages.Cache.PageSize = 64
	unrotated := s
	unrotated.Rope = rope.Variant{AttentionFactor: 1, MaxPosition: 1 << 20}
	tile := func(rows, keys, stages, warps int) spec.Tile {
		return spec.Tile{Rows: rows, Keys: keys, Stages: stages, Warps: warps}
	}
	sixteen := plan.Layout{Family: plan.SM90, Tile: tile(128, 64, 2, 16), Blocks: 1}
	for _, c := range []struct {
		s      spec.Spec
		kind   spec.Kind
		target spec.Target
		layout plan.Layout
		field  string
		want   string
	}{
		{s, spec.Extend, "sm_90a", plan.Layout{Family: "sm70", Tile: tile(128, 64, 1, 4), Blocks: 1}, "family", "not sm80 or sm90"},
		{s, spec.Extend, "sm_80", plan.Layout{Family: plan.SM90, Tile: tile(128, 128, 2, 12), Blocks: 1}, "family", "runs on sm_90a"},
		{raw, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(128, 128, 3, 12), Blocks: 1}, "stages", "bytes of shared memory"},
		{raw, spec.Decode, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(16, 16, 4, 12), Blocks: 1}, "keys", "raw keys 32 at a time"},
		{raw, spec.Decode, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(16, 64, 4, 8), Blocks: 1}, "warps", "8 warps that copy, rotate and merge and one to 8 more"},
		{longPages, spec.Decode, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(16, 96, 3, 7), Blocks: 1}, "keys", "96 keys are not a whole number of pages of 64"},
		{longPages, spec.Decode, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(16, 48, 3, 7), Blocks: 1}, "keys", "a page of 64 is not a whole number of tiles of 48 keys"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(128, 128, 3, 12), Blocks: 1}, "stages", "bytes of shared memory"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(128, 96, 2, 12), Blocks: 1}, "keys", "64 or 128 keys"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(320, 64, 2, 12), Blocks: 1}, "rows", "64, 128 or 192 rows, or of 256 for two blocks, not 320"},
		{s, spec.SharedDecode, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(256, 64, 2, 12), Blocks: 1}, "rows", "64, 128 or 192 rows, not 256"},
		{raw, spec.Prefill, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(256, 64, 2, 12), Blocks: 1}, "warps", "exchange raw keys have 16 warps each"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(256, 64, 2, 20), Blocks: 1}, "warps", "12 for 128 rows, or 16 to align queries and rotate them by a warpgroup, not 20"},
		{s, spec.Prefill, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(192, 64, 2, 16), Blocks: 1}, "rows", "192 rows for 128 keys that need no rotation, of at most 64 dimensions; these are 64 of 128"},
		{raw, spec.Prefill, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(192, 128, 2, 16), Blocks: 1}, "rows", "keys that need no rotation"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(64, 64, 2, 8), Blocks: 2}, "blocks", "as one block"},
		// Aligned queries are of bf16 alone, for the runs of extend, where results have room for them.
		{fp16, spec.Extend, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{values, spec.Extend, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{unrotated, spec.Extend, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{baked, spec.Extend, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{rawFP16, spec.Extend, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{raw, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(128, 64, 2, 14), Blocks: 1}, "warps", "12 for 128 rows, or 16 to rotate keys by a warpgroup, not 14"},
		// Prefill's queries by a warpgroup: where it has registers, and there is something to rotate.
		{windowed, spec.Prefill, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{unrotated, spec.Prefill, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{s, spec.Prefill, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(128, 64, 2, 14), Blocks: 1}, "warps", "12 for 128 rows, or 16 to rotate queries by a warpgroup, not 14"},
		{s, spec.SharedDecode, "sm_90a", sixteen, "warps", "12 for 128 rows, not 16"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(64, 64, 2, 12), Blocks: 1}, "warps", "8 for 64 rows, not 12"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(128, 64, 2, 14), Blocks: 1}, "warps", "12 for 128 rows, or 16 to align queries and rotate them by a warpgroup, not 14"},
		{s, spec.Extend, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(128, 128, 3, 16), Blocks: 1}, "stages", "bytes of shared memory"},
		{s, spec.Decode, "sm_90a", plan.Layout{Family: plan.SM90, Tile: tile(16, 64, 4, 8), Blocks: 2}, "blocks", "holds 1 such blocks"},
		{s, spec.Extend, "sm_80", plan.Layout{Family: plan.SM80, Tile: tile(128, 128, 1, 4), Blocks: 1}, "rows", "registers a thread"},
		{s, spec.Extend, "sm_80", plan.Layout{Family: plan.SM80, Tile: tile(128, 64, 1, 4), Blocks: 2}, "blocks", "only family sm90"},
	} {
		p, misfit := plan.Make(c.s, c.kind, c.target, c.layout)
		switch {
		case misfit == nil:
			t.Errorf("%s %s on %s: made %+v", c.kind, c.layout, c.target, p)
		case misfit.Field != c.field || !strings.Contains(misfit.Msg, c.want):
			t.Errorf("%s %s on %s: %v, want %s: ... %s", c.kind, c.layout, c.target, misfit, c.field, c.want)
		}
	}
}

func TestWithTuned(t *testing.T) {
	s := parse(t, "llama3", "")
	plans, err := plan.All(s)
	if err != nil {
		t.Fatal(err)
	}
	layout := func(family plan.Family, rows, keys, stages, warps int) plan.Layout {
		return plan.Layout{Family: family, Tile: spec.Tile{Rows: rows, Keys: keys, Stages: stages, Warps: warps}, Blocks: 1}
	}
	rules := []plan.Rule{
		{Kind: spec.Extend, Query: 128, Layout: layout(plan.SM90, 64, 64, 3, 8)},        // a new kernel
		{Kind: spec.Extend, Query: 256, Layout: layout(plan.SM80, 128, 64, 1, 4)},       // the default of another target
		{Kind: spec.Extend, Layout: layout(plan.SM90, 128, 128, 2, 12)},                 // the default
		{Kind: spec.Extend, Keys: 5, Query: 1, Layout: layout(plan.SM90, 64, 64, 3, 8)}, // again
	}
	got, err := plan.WithTuned(s, plans, []plan.Tuned{{GPU: "NVIDIA H200", Target: "sm_90a", Rules: rules}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(plans)+1 {
		t.Errorf("%d plans of %d", len(got), len(plans))
	}
	tuned := map[string]string{}
	for _, p := range got {
		if p.Kind == spec.Extend {
			tuned[p.Layout().String()] = join(p.Targets) + " / " + join(p.Tuned)
		}
	}
	for layout, want := range map[string]string{
		"sm80_r128k64s1w4": "sm_80,sm_90a / sm_90a", "sm90_r128k128s2w12": "sm_90a / ", "sm90_r64k64s3w8": "sm_90a / sm_90a",
	} {
		if tuned[layout] != want {
			t.Errorf("%s: targets / tuned %q, want %q", layout, tuned[layout], want)
		}
	}
	for i, p := range plans { // what was given is as it was
		if p.Tuned != nil {
			t.Errorf("plan %d was changed", i)
		}
	}
}

func join(targets []spec.Target) string {
	var words []string
	for _, t := range targets {
		words = append(words, string(t))
	}
	return strings.Join(words, ",")
}

// The defaults' times on an H200, of the README's table of 2026-11-21. The model is
// for choosing among plans; that it is not far from the clock shows no term is absurd.
func TestPredict(t *testing.T) {
	s := parse(t, "llama3", "")
	c := plan.Ceilings{Multiprocessors: 132, Read: 4.3e12, Product: 795e12}
	for _, x := range []struct {
		shape plan.Shape
		us    float64
	}{
		{plan.Shape{Kind: spec.Prefill, Batch: 4, Query: 4096, Keys: 4096}, 1050},
		{plan.Shape{Kind: spec.Prefill, Batch: 1, Query: 16384, Keys: 16384}, 3600},
		{plan.Shape{Kind: spec.Extend, Batch: 1, Query: 64, Keys: 8192}, 39},
		{plan.Shape{Kind: spec.Extend, Batch: 1, Query: 64, Keys: 131072}, 290},
		{plan.Shape{Kind: spec.Extend, Batch: 8, Query: 64, Keys: 8192}, 204},
		{plan.Shape{Kind: spec.Extend, Batch: 4, Query: 512, Keys: 8192}, 531},
		{plan.Shape{Kind: spec.Decode, Batch: 1, Query: 1, Keys: 8192}, 23},
		{plan.Shape{Kind: spec.Decode, Batch: 1, Query: 1, Keys: 32768}, 51},
		{plan.Shape{Kind: spec.Decode, Batch: 8, Query: 1, Keys: 8192}, 84},
		{plan.Shape{Kind: spec.Decode, Batch: 32, Query: 1, Keys: 8192}, 270},
		{plan.Shape{Kind: spec.Decode, Batch: 128, Query: 1, Keys: 4096}, 566},
	} {
		p, err := plan.Choose(s, x.shape.Kind, "sm_90a")
		if err != nil {
			t.Fatal(err)
		}
		e := plan.Predict(s, p, plan.Cut{}, x.shape, c)
		got := float64(e.Time.Nanoseconds()) / 1e3
		if got < x.us/1.5 || got > x.us*1.5 {
			t.Errorf("%+v: predicted %.0f us (%+v), measured %.0f", x.shape, got, e, x.us)
		}
	}
}

// What a window hides is not read.
func TestPredictWindow(t *testing.T) {
	s := parse(t, "llama3", "")
	p, err := plan.Choose(s, spec.Decode, "sm_90a")
	if err != nil {
		t.Fatal(err)
	}
	c := plan.NominalCeilings("sm_90a")
	memory := func(window, keys int) time.Duration {
		s.Masks.Window = window
		return plan.Predict(s, p, plan.Cut{Fill: 1, Tokens: keys}, plan.Shape{Kind: spec.Decode, Batch: 8, Query: 1, Keys: keys}, c).Memory
	}
	if got, want := memory(4095, 32<<10), memory(0, 4<<10); got != want {
		t.Errorf("of 32k keys by a window of 4k: %v, of 4k keys %v", got, want)
	}
	if got, want := memory(4095, 1<<10), memory(0, 1<<10); got != want {
		t.Errorf("of 1k keys by a window of 4k: %v, of 1k keys %v", got, want)
	}
	parts := func(keys int) int {
		s.Masks.Window = 4096
		return plan.Predict(s, p, plan.Cut{}, plan.Shape{Kind: spec.Decode, Batch: 1, Query: 1, Keys: keys}, c).Parts
	}
	if short, long := parts(8<<10), parts(128<<10); short != long || short < 2 {
		t.Errorf("a window of 4k leaves %d parts of 8k keys, %d of 128k: want as many, and several", short, long)
	}
}

// Short prompts are attended to as fast as their queries are rotated, so by as many warps as rotate.
func TestPredictShortPrefill(t *testing.T) {
	s := parse(t, "llama3", "")
	c := plan.Ceilings{Multiprocessors: 132, Read: 3.1e12, Product: 910e12}
	estimate := func(warps, tokens int) plan.Estimate {
		p, misfit := plan.Make(s, spec.Prefill, "sm_90a", plan.Layout{Family: plan.SM90, Tile: spec.Tile{Rows: 128, Keys: 128, Stages: 2, Warps: warps}, Blocks: 1})
		if misfit != nil {
			t.Fatal(misfit)
		}
		return plan.Predict(s, p, plan.Cut{}, plan.Shape{Kind: spec.Prefill, Batch: 8192 / tokens, Query: tokens, Keys: tokens}, c)
	}
	if two, four := estimate(12, 128), estimate(16, 128); two.Time < four.Time*5/4 {
		t.Errorf("two warps that rotate take %v, four %v: want a quarter more at least", two.Time, four.Time)
	}
	if two, four := estimate(12, 8192), estimate(16, 8192); two.Time != four.Time {
		t.Errorf("of a long prompt two warps that rotate take %v, four %v: want the same", two.Time, four.Time)
	}
}

// Raw keys cost their rotation: little where warps of their own do it, more where those of
// the products do.
func TestPredictRaw(t *testing.T) {
	s := parse(t, "llama3", "")
	raw := spec.WithEncoding(s, spec.Raw)
	c := plan.Ceilings{Multiprocessors: 132, Read: 4.3e12, Product: 795e12}
	for _, shape := range []plan.Shape{
		{Kind: spec.Prefill, Batch: 1, Query: 16384, Keys: 16384},
		{Kind: spec.Extend, Batch: 4, Query: 512, Keys: 8192},
		{Kind: spec.Decode, Batch: 32, Query: 1, Keys: 8192},
	} {
		estimate := func(s spec.Spec, target spec.Target) plan.Estimate {
			p, err := plan.Choose(s, shape.Kind, target)
			if err != nil {
				t.Fatal(err)
			}
			return plan.Predict(s, p, plan.Cut{}, shape, c)
		}
		segment, sm90, sm80 := estimate(s, "sm_90a"), estimate(raw, "sm_90a"), estimate(raw, "sm_80")
		if (segment.Rotation == 0) != (shape.Kind != spec.Prefill) || sm90.Rotation <= segment.Rotation || sm80.Rotation <= segment.Rotation {
			t.Errorf("%+v: rotations of %v, %v and %v", shape, segment.Rotation, sm90.Rotation, sm80.Rotation)
		}
		// Decode's plans differ, by more than raw keys cost it.
		if sm90.Time < segment.Time*99/100 || sm90.Time > segment.Time*180/100 || sm80.Time < sm90.Time {
			t.Errorf("%+v: segment %v, raw %v, raw of family sm80 %v", shape, segment.Time, sm90.Time, sm80.Time)
		}
	}
}
