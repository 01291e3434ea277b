package vendoring_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/vendoring"
	"github.com/kgen-project/kgen/templates"
)

// specs differ in what the templates ask for.
var specs = map[string]string{
	"tiny": `
rope: {type: default, theta: 10000, max_position: 4096}
cache: {page_size: 16, layout: nhd, encoding: segment}
kernels: [append, extend, decode, shared_decode, merge, schedule]
targets: [sm_80, sm_86, sm_90a]
`,
	"odd": `
rope: {type: default, theta: 10000, max_position: 150, rotary_dim: 32, pairing: interleaved}
cache: {page_size: 32, layout: hnd, encoding: baked}
masks: {window: 64, sink_tokens: 4, sink_logits: true, soft_cap: 30}
kernels: [append, decode, merge, materialise]
targets: [sm_90a]
`,
	"wide": `
rope: {type: default, theta: 10000, max_position: 4096}
cache: {page_size: 16, layout: nhd, encoding: segment}
kernels: [append, decode, merge]
targets: [sm_90a]
`,
	"plain": `
rope: {type: none}
cache: {page_size: 16, layout: hnd, encoding: raw}
kernels: [append, decode]
targets: [sm_80]
`,
	"brief": `
rope: {type: default, theta: 10000, max_position: 3}
cache: {page_size: 16, layout: nhd, encoding: segment}
kernels: [append, decode, merge]
targets: [sm_80]
`,
	"one": `
rope: {type: default, theta: 10000, max_position: 4096}
cache: {page_size: 16, layout: nhd, encoding: segment}
kernels: [prefill]
targets: [sm_80]
`,
}

func parse(t testing.TB, name string) spec.Spec {
	t.Helper()
	dtype, dims := "bf16", "head_dim: 64"
	switch name {
	case "odd":
		dtype, dims = "fp16", "head_dim: 128, v_head_dim: 64"
	case "wide":
		dims = "head_dim: 128"
	}
	s, err := spec.Parse(name+".yaml", []byte("name: "+name+"\nmodel: {query_heads: 4, kv_heads: 2, "+dims+", dtype: "+dtype+"}\n"+specs[name]))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// cubinText stands for machine code.
const cubinText = "machine code "

func input(t testing.TB, name string, lang vendoring.Lang) vendoring.Input {
	t.Helper()
	s := parse(t, name)
	return inputOf(t, s, nil, lang)
}

// inputOf is a spec with the plans that tables and the cost model choose.
func inputOf(t testing.TB, s spec.Spec, tuned []plan.Tuned, lang vendoring.Lang) vendoring.Input {
	t.Helper()
	plans, err := plan.All(s)
	if err != nil {
		t.Fatal(err)
	}
	if plans, err = plan.WithTuned(s, plans, tuned); err != nil {
		t.Fatal(err)
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Tune(tuned); err != nil {
		t.Fatal(err)
	}
	in := vendoring.Input{Spec: s, Output: out, Cubins: map[string][]byte{}, Language: lang}
	for _, k := range out.Manifest.Kernels {
		for _, target := range k.Targets {
			file := emit.CubinFile(k.Source, target.Target)
			in.Cubins[file] = []byte(cubinText + file + "\x00")
		}
	}
	return in
}

// folder writes what is vendored to an empty folder.
func folder(t testing.TB, name string, lang vendoring.Lang) string {
	t.Helper()
	return folderOf(t, input(t, name, lang))
}

func folderOf(t testing.TB, in vendoring.Input) string {
	t.Helper()
	files, err := vendoring.Files(in)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, data := range files {
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFileList(t *testing.T) {
	tests := map[vendoring.Lang][]string{
		vendoring.C:  {"example.c", "tiny.c", "tiny.h"},
		vendoring.Go: {"abi.go", "driver.go", "example_test.go", "go.mod", "go.sum", "load_linux.go", "load_other.go", "reference_test.go", "tiny.go"},
	}
	for lang, own := range tests {
		in := input(t, "tiny", lang)
		files, err := vendoring.Files(in)
		if err != nil {
			t.Fatal(err)
		}
		want := append(own, "LICENSE", "manifest.json", vendoring.ListFile)
		for name := range in.Cubins {
			want = append(want, name)
		}
		for _, k := range in.Output.Kernels {
			want = append(want, k.File)
		}
		slices.Sort(want)
		got := slices.Sorted(maps.Keys(files))
		if !slices.Equal(got, want) {
			t.Errorf("%s: files %q, want %q", lang, got, want)
		}
		if lang == vendoring.C {
			want = append(want, "example")
		}
		if names, err := vendoring.Names(files[vendoring.ListFile]); err != nil || !slices.Equal(names, want) {
			t.Errorf("%s: the list has %q, %v", lang, names, err)
		}
		again, err := vendoring.Files(input(t, "tiny", lang))
		if err != nil || !maps.EqualFunc(files, again, func(a, b []byte) bool { return string(a) == string(b) }) {
			t.Errorf("%s: other files the second time, or %v", lang, err)
		}
		for name, data := range files {
			if strings.Contains(string(data), "<no value>") || lang == vendoring.Go && strings.Contains(string(data), "kgen-project") {
				t.Errorf("%s: %s is not what it should be", lang, name)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	in := input(t, "tiny", vendoring.C)
	for name := range in.Cubins {
		delete(in.Cubins, name)
		if _, err := vendoring.Files(in); err == nil || !strings.Contains(err.Error(), "vendor tiny: no machine code "+name) {
			t.Errorf("error %v", err)
		}
		break
	}
	in = input(t, "tiny", vendoring.C)
	in.Spec.Name = "example"
	if _, err := vendoring.Files(in); err == nil || !strings.Contains(err.Error(), "vendor example: kgen vendor --lang c writes an example.c of its own") {
		t.Errorf("error %v", err)
	}
	in = input(t, "tiny", vendoring.C)
	in.Output.Manifest.SpecDigest = "other"
	if _, err := vendoring.Files(in); err == nil || !strings.Contains(err.Error(), "another spec") {
		t.Errorf("error %v", err)
	}
}

func TestCheckName(t *testing.T) {
	tests := []struct {
		name    string
		c, inGo bool // taken
	}{
		{"tiny", true, true}, {"example", false, true}, {"abi", true, false}, {"driver", true, false}, {"load_other", true, false},
		{"std", true, false}, {"toolchain", true, false}, {"example_2", true, true},
	}
	for _, name := range strings.Fields(command(t, ".", nil, "go", "list", "std")) {
		if !strings.Contains(name, "/") {
			tests = append(tests, struct {
				name    string
				c, inGo bool
			}{name, true, false})
		}
	}
	for _, test := range tests {
		for lang, taken := range map[vendoring.Lang]bool{vendoring.C: test.c, vendoring.Go: test.inGo} {
			if msg := vendoring.CheckName(test.name, lang); (msg == "") != taken {
				t.Errorf("%s, %s: %q", test.name, lang, msg)
			}
		}
	}
}

// TestC builds the folder as a stranger would.
func TestC(t *testing.T) {
	for name := range specs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buildC(t, name)
		})
	}
}

// buildC returns the folder with the example's program in it.
func buildC(t testing.TB, name string) string {
	t.Helper()
	return buildCOf(t, input(t, name, vendoring.C))
}

func buildCOf(t testing.TB, in vendoring.Input) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	dir := folderOf(t, in)
	command(t, dir, nil, cc, "-std=c11", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror", "-o", "example", "example.c", in.Spec.Name+".c", "-ldl", "-lm")
	return dir
}

// stranger has nothing but the module cache.
var stranger = []string{"GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0"}

func TestGo(t *testing.T) {
	for name := range specs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, name, vendoring.Go)
			before, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err != nil {
				t.Fatal(err)
			}
			command(t, dir, stranger, "go", "vet", ".")
			if name == "tiny" {
				command(t, dir, append(stranger, "GOOS=windows"), "go", "build", ".")
			}
			if after, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil || string(after) != string(before) {
				t.Errorf("the build changed go.mod to %s, %v", after, err)
			}
			if list := command(t, dir, nil, "gofmt", "-l", "."); list != "" {
				t.Errorf("not formatted: %s", list)
			}
		})
	}
}

func command(t testing.TB, dir string, env []string, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	return string(out)
}
