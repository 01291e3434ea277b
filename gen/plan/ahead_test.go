package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// A plan whose raw keys are rotated ahead of it is that of baked keys.
func TestKeysAhead(t *testing.T) {
	raw := spec.WithEncoding(parse(t, "llama3", ""), spec.Raw)
	for _, kind := range []spec.Kind{spec.Prefill, spec.Extend} {
		candidates, err := plan.Candidates(raw, kind, "sm_90a")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, p := range candidates {
			if !p.KeysAhead {
				continue
			}
			n++
			like, misfit := plan.Make(spec.WithEncoding(raw, spec.Baked), kind, "sm_90a", plan.Layout{Family: p.Family, Tile: p.Layout().Tile, Blocks: 1})
			if misfit != nil {
				t.Errorf("%s: %v", p.Layout(), misfit)
			}
			if like.KeysAhead = true; like.Shared != p.Shared || like.Rotators != p.Rotators || like.Queries != p.Queries || like.Cluster != p.Cluster || like.Folds != p.Folds {
				t.Errorf("%s: %+v, of baked keys %+v", p.Layout(), p, like)
			}
		}
		if n == 0 {
			t.Errorf("%s: no candidate rotates keys ahead", kind)
		}
	}
}

func TestKeysAheadRefused(t *testing.T) {
	segment := parse(t, "llama3", "")
	raw := spec.WithEncoding(segment, spec.Raw)
	alone := raw
	alone.Kinds = slices.DeleteFunc(slices.Clone(raw.Kinds), func(k spec.Kind) bool { return k == spec.Materialise })
	layout := plan.Layout{Family: plan.SM90, Tile: spec.Tile{Rows: 128, Keys: 128, Stages: 2, Warps: 12}, Blocks: 1, KeysAhead: true}
	sm80 := plan.Layout{Family: plan.SM80, Tile: spec.Tile{Rows: 128, Keys: 64, Stages: 1, Warps: 4}, Blocks: 1, KeysAhead: true}
	for name, c := range map[string]struct {
		spec   spec.Spec
		kind   spec.Kind
		layout plan.Layout
	}{
		"segment":        {segment, spec.Extend, layout},
		"shared decode":  {raw, spec.SharedDecode, layout},
		"no materialise": {alone, spec.Extend, layout},
		"sm80":           {raw, spec.Extend, sm80},
	} {
		if _, misfit := plan.Make(c.spec, c.kind, "sm_90a", c.layout); misfit == nil || misfit.Field != "keys_ahead" || !strings.Contains(misfit.Msg, "are rotated ahead") {
			t.Errorf("%s: %v", name, misfit)
		}
	}
	if _, misfit := plan.Make(raw, spec.Extend, "sm_90a", layout); misfit != nil {
		t.Error(misfit)
	}
}
