package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/vendoring"
)

type vendorCommand struct {
	Spec     string         `arg:"" help:"A YAML file; - is standard input." predictor:"spec"`
	To       string         `required:"" placeholder:"DIR" help:"The folder to make." predictor:"folder"`
	Lang     vendoring.Lang `required:"" enum:"go,c" placeholder:"go|c" help:"go or c, the language of the loader."`
	Target   []string       `placeholder:"SM" help:"Targets in place of the spec's, such as sm_80,sm_90a." predictor:"target"`
	Compiler build.Choice   `enum:"auto,nvrtc,nvcc" default:"auto" help:"auto (NVRTC if there is one, else nvcc), nvrtc or nvcc."`
}

func (vendorCommand) Help() string {
	return `The folder has the kernels' sources and machine code, a small loader on the CUDA driver API, which chooses among them by ` +
		`the device and the lengths of sequences, and an example that checks itself. For C it builds with a C11 compiler and no header of CUDA; for Go it is a module on the standard library and purego. ` +
		`The folder is replaced as a whole, once everything has compiled; one that kgen vendor did not make is refused.`
}

func (c *vendorCommand) Run(ctx context.Context, a *app) error {
	specs, tables, err := a.readTuned(ctx, []string{c.Spec}, c.Target)
	if err != nil {
		return err
	}
	if msg := vendoring.CheckName(specs[0].Name, c.Lang); msg != "" {
		return specs[0].ErrorAt("name", msg)
	}
	all, err := plannable(specs)
	if err != nil {
		return err
	}
	to, err := filepath.Abs(c.To) // it may be the working folder
	if err != nil {
		return err
	}
	if err := replaceable(to, vendoredMark); err != nil {
		return err
	}
	if err := a.compileTuned(ctx, c.Compiler, all, tables); err != nil {
		return err
	}
	g := all[0]
	a.warn(g)
	in := vendoring.Input{Spec: g.spec, Output: g.output, Cubins: map[string][]byte{}, Language: c.Lang}
	for _, cubin := range g.cubins {
		in.Cubins[emit.CubinFile(cubin.Source.Name, string(cubin.Source.Target))] = cubin.Cubin
	}
	files, err := vendoring.Files(in)
	if err != nil {
		return err
	}
	if err := publish(ctx, filepath.Dir(to), []folder{{path: to, files: files, mark: vendoredMark}}); err != nil {
		return err
	}
	size := int64(0)
	for _, data := range files {
		size += int64(len(data))
	}
	fmt.Fprintf(a.stdout, "%s in %s: %d files, %s\n", g.spec.Name, c.To, len(files), sizeText(size))
	into := c.To
	if strings.HasPrefix(into, "-") { // cd would take it for a flag, or - for the folder before
		into = "./" + into
	}
	fmt.Fprintf(a.stdout, "try it on a GPU: cd %s && %s\n", shellWord(into), vendoring.Try(g.spec, c.Lang))
	return nil
}

// shellWord writes a word as a shell reads it.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:=@%", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
