package main

import (
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/tests/testutil"
)

// What was measured with something else is not used, or used with a sentence: never in
// silence. build knows the compiler; bench the GPU and the driver too.
func TestRules(t *testing.T) {
	s := testutil.Spec(t, "../../specs/llama3.yaml")
	sources, err := tune.Sources(s, "sm_90a")
	if err != nil {
		t.Fatal(err)
	}
	measured := tune.Identity{Spec: "llama3", Digest: spec.Digest(s), GPU: "NVIDIA H200", Target: "sm_90a",
		Driver: "CUDA 13.0, 580.95.05", Compiler: "nvrtc 13.0.88", Sources: sources}
	layout := plan.Layout{Family: plan.SM90, Tile: spec.Tile{Rows: 64, Keys: 64, Stages: 3, Warps: 8}, Blocks: 1}
	bench := tune.Identity{GPU: measured.GPU, Driver: measured.Driver, Compiler: measured.Compiler}
	for _, c := range []struct {
		name   string
		change func(then, now *tune.Identity)
		used   bool
		says   string // "": nothing
	}{
		{"the same", func(then, now *tune.Identity) {}, true, ""},
		{"in a build", func(then, now *tune.Identity) { *now = tune.Identity{Compiler: now.Compiler} }, true, ""},
		{"another GPU", func(then, now *tune.Identity) { now.GPU = "NVIDIA H100" }, false, ""},
		{"a target that the spec has not", func(then, now *tune.Identity) { then.Target = "sm_120a" }, false, ""},
		{"another driver", func(then, now *tune.Identity) { then.Driver = "CUDA 13.0" }, false,
			"llama3 is not used: the driver was CUDA 13.0 and is now CUDA 13.0, 580.95.05; run kgen tune again"},
		{"another compiler", func(then, now *tune.Identity) { then.Compiler = "nvrtc 12.9.1" }, false,
			"llama3 is not used: the compiler was nvrtc 12.9.1 and is now nvrtc 13.0.88; run kgen tune again"},
		{"other kernels", func(then, now *tune.Identity) { then.Sources = "x" }, true,
			"llama3 is used, but it was measured with other kernels than these; run kgen tune again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			then, now := measured, bench
			c.change(&then, &now)
			var stderr strings.Builder
			a := &app{stderr: &stderr}
			rules, err := a.rules(s, s, []tune.Entry{{Identity: then, Kinds: []tune.KindTable{{
				Kind: spec.Extend, Choices: []tune.Choice{{Setting: tune.Setting{Layout: layout}}},
			}}}}, now)
			if err != nil {
				t.Fatal(err)
			}
			if used := len(rules) == 1 && len(rules[0].Rules) == 1 && rules[0].Rules[0].Layout == layout; used != c.used || len(rules) > 1 {
				t.Errorf("rules %+v, want them: %v", rules, c.used)
			}
			if said := stderr.String(); !strings.Contains(said, c.says) || (c.says == "") != (said == "") {
				t.Errorf("it says %q, want %q", said, c.says)
			}
		})
	}
}
