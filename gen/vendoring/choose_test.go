package vendoring_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/vendoring"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// opened is a GPU for package kernel, on which nothing is launched.
type opened struct {
	cuda.Device
	info cuda.Info
}

func (d opened) Info() cuda.Info                      { return d.info }
func (d opened) Load(cuda.Image) (cuda.Module, error) { return notLaunched{}, nil }

// lengths are query tokens and tokens of KV around every bound of chosenRules.
var lengths = [][2]int{{1, 1}, {1, 4096}, {8, 5000}, {9, 5000}, {16, 4096}, {16, 4097}, {17, 4096}, {1000, 100000}}

// chosenRules are two tables, one of which leaves the defaults, and what the cost model
// could have chosen for two targets.
func chosenRules(t *testing.T, s spec.Spec) []plan.Tuned {
	other := func(kind spec.Kind, target spec.Target, differs func(usual, p plan.Plan) bool) plan.Layout {
		all, err := plan.Candidates(s, kind, target)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(p plan.Plan) bool { return differs(all[0], p) })
		if i < 0 {
			t.Fatalf("no such plan of %s for %s", kind, target)
		}
		return all[i].Layout()
	}
	rows := func(usual, p plan.Plan) bool { return p.Rows < usual.Rows && p.Family == usual.Family }
	keys := func(usual, p plan.Plan) bool { return p.Keys != usual.Keys && p.Family == usual.Family }
	two := func(_, p plan.Plan) bool { return p.MinBlocks == 2 }
	cluster := func(_, p plan.Plan) bool { return p.Cluster == 2 }
	return []plan.Tuned{
		{GPU: "GPU A", Target: "sm_90a", Rules: []plan.Rule{
			{Kind: spec.Extend, Query: 16, Keys: 4096, Layout: other(spec.Extend, "sm_90a", cluster), Cut: plan.Cut{Fill: 50, Tokens: 512}},
			{Kind: spec.Extend, Query: 16, Layout: other(spec.Extend, "sm_90a", rows)},
			{Kind: spec.Extend, Query: 17, Layout: other(spec.Extend, "sm_90a", cluster)},
			{Kind: spec.Decode, Layout: other(spec.Decode, "sm_90a", two), Cut: plan.Cut{Fill: 1}},
			{Kind: spec.SharedDecode, Layout: other(spec.SharedDecode, "sm_90a", keys)},
		}},
		{GPU: "GPU \"B\"", Target: "sm_90a"},
		{Target: "sm_80", Rules: []plan.Rule{{Kind: spec.Extend, Query: 8, Layout: other(spec.Extend, "sm_80", rows)}}},
		{Target: "sm_90a", Rules: []plan.Rule{
			{Kind: spec.Extend, Keys: 4096, Layout: other(spec.Extend, "sm_90a", rows)},
			{Kind: spec.Decode, Layout: other(spec.Decode, "sm_90a", keys), Cut: plan.Cut{Tokens: 1024}},
		}},
	}
}

// TestChoose holds both loaders' choices to package kernel's, on GPUs that a table names
// and on others.
func TestChoose(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	libraries := t.TempDir()
	command(t, ".", nil, cc, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-o", filepath.Join(libraries, "libcuda.so.1"), "testdata/libcuda.c")
	s := parse(t, "tiny")
	tuned := chosenRules(t, s)
	kinds := []spec.Kind{spec.Append, spec.Prefill, spec.Extend, spec.Decode, spec.SharedDecode, "none"}
	programs := map[vendoring.Lang][]string{}
	for lang, source := range map[vendoring.Lang]string{vendoring.C: chooseC(kinds), vendoring.Go: chooseGo(kinds)} {
		dir := folderOf(t, inputOf(t, s, tuned, lang))
		if lang == vendoring.C {
			write(t, dir, "choose.c", source)
			command(t, dir, nil, cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", "choose", "choose.c", "tiny.c", "-ldl", "-lm")
		} else {
			if err := os.Mkdir(filepath.Join(dir, "main"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, dir, "main/main.go", source)
			command(t, dir, stranger, "go", "build", "-o", "choose", "./main")
		}
		programs[lang] = []string{filepath.Join(dir, "choose"), dir}
	}

	in := inputOf(t, s, tuned, vendoring.C)
	seen := map[string]bool{}
	for _, info := range []cuda.Info{
		{Name: "GPU A", Major: 9, SharedPerBlock: 227 << 10},
		{Name: "GPU \"B\"", Major: 9, SharedPerBlock: 227 << 10},
		{Name: "GPU C", Major: 9, SharedPerBlock: 227 << 10},
		{Name: "GPU D", Major: 8, SharedPerBlock: 163 << 10},
		{Name: "GPU E", Major: 8, Minor: 9, SharedPerBlock: 99 << 10}, // closest to sm_86, for which nothing was chosen
	} {
		info.Multiprocessors = multiprocessors
		set, err := kernel.Open(t.Context(), opened{info: info}, in.Output.Bundle(s), kernel.Options{
			Compile: func(context.Context, kernel.Source) ([]byte, error) { return []byte("code"), nil }})
		if err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for _, kind := range kinds {
			for _, l := range lengths {
				c := set.Choose(abi.Kind(kind), l[0], l[1])
				fmt.Fprintf(&want, "%s %d/%d: %d %d %d %d\n", kind, l[0], l[1], c.Rows, c.Keys, c.Blocks, c.Tokens)
			}
		}
		if seen[want.String()] {
			t.Errorf("%s: the same as another GPU", info.Name)
		}
		seen[want.String()] = true
		for lang, program := range programs {
			g := serveAs(t, nil, info, in.Output)
			got := command(t, t.TempDir(), []string{"LD_LIBRARY_PATH=" + libraries, "KGEN_TEST_DEVICE=" + g.path, "KGEN_TEST_NAME=" + info.Name}, program[0], program[1])
			if got != want.String() {
				t.Errorf("%s on %s:\n%s, want\n%s", lang, info.Name, got, want.String())
			}
			if g.modules != 0 || len(g.loaded) < len(s.Kinds) {
				t.Errorf("%s on %s: loaded %q, %d stay", lang, info.Name, g.loaded, g.modules)
			}
		}
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// chooseC is a program that prints what each kind gets for the lengths.
func chooseC(kinds []spec.Kind) string {
	var b strings.Builder
	b.WriteString(`#include "tiny.h"
#include <stdio.h>
static void print(const kgen_tiny *k, const char *kind, int query, int keys) {
  kgen_tiny_choice c = kgen_tiny_choose(k, kind, query, keys);
  KgenAttendParams none = {.kv_heads = 1};
  const char *error = kgen_tiny_attend(k, c, NULL, &none);
  if (!error != (c.rows > 0)) fprintf(stderr, "%s: %s\n", kind, error ? error : "launched");
  printf("%s %d/%d: %d %d %d %d\n", kind, query, keys, c.rows, c.keys, c.blocks, c.tokens);
}
int main(int argc, char **argv) {
  kgen_tiny *k;
  const char *error = kgen_tiny_open(&k, 0, argv[argc - 1]);
  if (error) return fprintf(stderr, "%s\n", error), 1;
`)
	for _, kind := range kinds {
		for _, l := range lengths {
			fmt.Fprintf(&b, "  print(k, %q, %d, %d);\n", kind, l[0], l[1])
		}
	}
	b.WriteString("  return kgen_tiny_close(k) != NULL;\n}\n")
	return b.String()
}

// chooseGo is the same in Go.
func chooseGo(kinds []spec.Kind) string {
	var b strings.Builder
	b.WriteString(`package main
import ("fmt"; "os"; "tiny")
func show(k *tiny.Kernels, kind string, query, keys int) {
	c := k.Choose(kind, query, keys)
	if err := k.Attend(0, c, tiny.AttendParams{KVHeads: 1}); (err == nil) != (c.Rows > 0) { fmt.Fprintln(os.Stderr, kind, err) }
	fmt.Printf("%s %d/%d: %d %d %d %d\n", kind, query, keys, c.Rows, c.Keys, c.Blocks, c.Tokens)
}
func main() {
	k, err := tiny.Open(0)
	if err != nil { fmt.Fprintln(os.Stderr, err); os.Exit(1) }
`)
	for _, kind := range kinds {
		for _, l := range lengths {
			fmt.Fprintf(&b, "\tshow(k, %q, %d, %d)\n", kind, l[0], l[1])
		}
	}
	b.WriteString("\tif err := k.Close(); err != nil { os.Exit(1) }\n}\n")
	return b.String()
}
