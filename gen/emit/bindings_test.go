package emit

import (
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/templates"
)

func TestBindingsEmbedMachineCode(t *testing.T) {
	s, plans := tiny(t)
	out, err := Emit(s, plans, os.DirFS("testdata/tiny/templates"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := Bindings(s, out.Manifest, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"//go:embed merge_sm80.sm_80.cubin\n",
		"//go:embed prefill_sm80_r64k32s2w4b2.sm_90a.cubin\n",
		`"sm_90a": read("prefill_sm80_r64k32s2w4b2.sm_90a.cubin"),`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in:\n%s", want, text)
		}
	}
}

// TestBindings holds that they are formatted Go in which every exported name
// is documented, and that there is a method for each kind of the spec.
func TestBindings(t *testing.T) {
	s, _ := tiny(t)
	for _, kinds := range [][]spec.Kind{spec.AllKinds, {spec.Append}, {spec.Extend, spec.Merge}} {
		s.Kinds = kinds
		s.Rope.RotaryDim, s.Rope.Frequencies = 0, nil
		var plans []plan.Plan
		for _, k := range kinds {
			for _, rows := range []int{64, 128} { // two kernels of a kind, where that is possible
				if tiled(k) || rows == 64 {
					plans = append(plans, plan.Plan{Kind: k, Family: plan.SM80, Targets: s.Targets, Rows: rows, Keys: 64, Stages: 2, Warps: 4})
				}
			}
		}
		out, err := Emit(s, plans, templates.FS)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Bindings(s, out.Manifest, false)
		if err != nil {
			t.Fatal(err)
		}
		if formatted, err := format.Source(text); err != nil || string(formatted) != string(text) {
			t.Errorf("not as gofmt leaves it: %v", err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), "tiny.go", text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		var methods, want []string
		for _, k := range kinds {
			want = append(want, Title(string(k)))
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if f.Doc == nil {
				t.Errorf("%s has no comment", f.Name)
			}
			if name := f.Name.Name; f.Recv != nil && !slices.Contains([]string{"Close", "Spec", "SpecDigest", "Artifact", "MapCache", "Tile", "Blocks", "Choose", "Choices", "Attend", "MapChoice", "MapKeys"}, name) {
				methods = append(methods, name)
			}
		}
		if !slices.Equal(methods, want) {
			t.Errorf("methods %v, want %v", methods, want)
		}
	}
}

func TestBindingsOfAnotherManifest(t *testing.T) {
	s, plans := tiny(t)
	out, err := Emit(s, plans, os.DirFS("testdata/tiny/templates"))
	if err != nil {
		t.Fatal(err)
	}
	s.Cache.PageSize = 32
	if _, err := Bindings(s, out.Manifest, false); err == nil || !strings.Contains(err.Error(), "emit: bindings of tiny: the manifest is of spec tiny, digest ") {
		t.Errorf("error %v", err)
	}
}
