package toy

import (
	"os"
	"testing"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/templates"
)

// KeysAhead is kernels for sm_90a of one of the specs with raw keys, of which prefill and extend have
// theirs rotated ahead on a device of that name, whatever a sequence's lengths. For tests two folders deep.
func KeysAhead(tb testing.TB, name, device string) kernel.Bundle {
	tb.Helper()
	path := "../../specs/" + name + ".yaml"
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := spec.Parse(path, text)
	if err != nil {
		tb.Fatal(err)
	}
	s = spec.WithEncoding(s, spec.Raw)
	layout := plan.Layout{Family: plan.SM90, Tile: spec.Tile{Rows: 128, Keys: 128, Stages: 2, Warps: 12}, Blocks: 1, KeysAhead: true}
	tuned := []plan.Tuned{{GPU: device, Target: "sm_90a", Rules: []plan.Rule{{Kind: spec.Prefill, Layout: layout}, {Kind: spec.Extend, Layout: layout}}}}
	plans, err := plan.All(s)
	if err != nil {
		tb.Fatal(err)
	}
	if plans, err = plan.WithTuned(s, plans, tuned); err != nil {
		tb.Fatal(err)
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		tb.Fatal(err)
	}
	if err := out.Tune(tuned); err != nil {
		tb.Fatal(err)
	}
	return out.Bundle(s)
}
