// Package vendoring makes folders that need nothing of kgen: a spec's kernels as
// machine code and source, with a loader on the CUDA driver API in C or Go, which chooses
// among them as package kernel does, an example that checks itself, and the licence. It is
// pure: values in, a map of name to content out.
package vendoring

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"text/template"

	"github.com/kgen-project/kgen"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/spec"
)

// Lang is the language of a folder's loader.
type Lang string

const (
	C  Lang = "c"
	Go Lang = "go"
)

// Input is a compiled spec.
type Input struct {
	Spec     spec.Spec
	Output   emit.Output       // with the manifest of the build
	Cubins   map[string][]byte // each target of each kernel in the manifest, by emit.CubinFile
	Language Lang
}

// ListFile is the name of the list of a folder's files, by which kgen knows the
// folder as its own.
const ListFile = "vendor.json"

// list is what ListFile holds.
type list struct {
	Vendor   int      `json:"vendor"` // version of this file
	Spec     string   `json:"spec"`
	Language Lang     `json:"lang"`
	Files    []string `json:"files"`
	Built    []string `json:"built,omitempty"` // what building by the folder's instructions adds
}

// Files returns the folder's files by name.
func Files(in Input) (map[string][]byte, error) {
	if msg := CheckName(in.Spec.Name, in.Language); msg != "" {
		return nil, fmt.Errorf("vendor %s: %s", in.Spec.Name, msg)
	}
	d, err := newData(in)
	if err != nil {
		return nil, fmt.Errorf("vendor %s: %w", in.Spec.Name, err)
	}
	files := maps.Clone(in.Cubins)
	for _, k := range in.Output.Kernels {
		files[k.File] = k.Source
	}
	if files[emit.ManifestFile], err = in.Output.Manifest.Encode(); err != nil {
		return nil, fmt.Errorf("vendor %s: %w", in.Spec.Name, err)
	}
	add := addC
	if in.Language == Go {
		add = addGo
	}
	if err := add(files, in, d); err != nil {
		return nil, fmt.Errorf("vendor %s: %w", in.Spec.Name, err)
	}
	files["LICENSE"] = kgen.License
	files[ListFile] = nil
	list := list{Vendor: 1, Spec: in.Spec.Name, Language: in.Language, Files: slices.Sorted(maps.Keys(files))}
	if in.Language == C {
		list.Built = []string{"example"}
	}
	l, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("vendor %s: %w", in.Spec.Name, err)
	}
	files[ListFile] = append(l, '\n')
	return files, nil
}

// Names reads a folder's ListFile: the names of all that may be in the folder.
func Names(listFile []byte) ([]string, error) {
	var l list
	if err := json.Unmarshal(listFile, &l); err != nil {
		return nil, err
	}
	if l.Vendor == 0 || l.Spec == "" {
		return nil, fmt.Errorf("it names no spec")
	}
	return append(l.Files, l.Built...), nil
}

// Try is a shell command that runs the folder's example, in it.
func Try(s spec.Spec, lang Lang) string {
	if lang == Go {
		return "go test -v ."
	}
	return fmt.Sprintf("cc -std=c11 -O2 -o example example.c %s.c -ldl -lm && ./example", s.Name)
}

func addC(files map[string][]byte, in Input, d data) error {
	declarations, err := render("c/loader.h.tmpl", d)
	if err != nil {
		return err
	}
	files[d.Name+".h"] = emit.Header(in.Spec, in.Output.Kernels, string(declarations))
	if files[d.Name+".c"], err = render("c/loader.c.tmpl", d); err != nil {
		return err
	}
	files["example.c"], err = render("c/example.c.tmpl", d)
	return err
}

//go:embed c/*.tmpl go/*.tmpl
var templates embed.FS

func render(name string, d data) ([]byte, error) {
	t, err := template.New(path.Base(name)).Funcs(template.FuncMap{"literal": literal}).ParseFS(templates, name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, d); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
