package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/gen/tune"
)

type inspectCommand struct {
	Spec     string       `arg:"" help:"A YAML file; - is standard input." predictor:"spec"`
	Kernel   []string     `placeholder:"KIND" xor:"kernel" help:"Only these kernel kinds, such as prefill,decode." predictor:"kernel"`
	Target   []string     `placeholder:"SM" help:"Targets in place of the spec's." predictor:"target"`
	Compiler build.Choice `enum:"auto,nvrtc,nvcc" default:"auto" help:"auto, nvrtc or nvcc."`
	CUDA     bool         `name:"cuda" xor:"form" help:"Print the CUDA source."`
	PTX      bool         `name:"ptx" xor:"form" help:"Print the PTX."`
	SASS     bool         `name:"sass" xor:"form" help:"Print the machine code's instructions."`
	Shape    string       `placeholder:"CASE" xor:"form,kernel" help:"Show which plan a shape gets and why, such as extend:1x64/8192; needs no compiler."`
	JSON     bool         `name:"json" xor:"form" help:"Print the table as JSON."`
}

func (inspectCommand) Help() string {
	return `The table has registers a thread, shared memory a block, bytes spilled and of stack a thread, and how many blocks ` +
		`and warps one multiprocessor holds at a time. It compiles what the cache does not have; nothing else is written.`
}

func (c *inspectCommand) Run(ctx context.Context, a *app) error {
	specs, tables, err := a.readTuned(ctx, []string{c.Spec}, c.Target)
	if err != nil {
		return err
	}
	whole := specs[0]
	if err := onlyKinds(&specs[0], c.Kernel); err != nil {
		return err
	}
	compiler := ""
	if c.Shape != "" || c.CUDA {
		p, _ := a.places() // without a cache there may be a compiler all the same
		compiler = p.usualCompiler(ctx, c.Compiler)
	}
	if c.Shape != "" {
		return a.shape(specs[0], tables[0], tune.Identity{Compiler: compiler}, c.Shape)
	}
	all, err := plannable(specs)
	if err != nil {
		return err
	}
	all[0].whole = whole
	if c.CUDA {
		if err := a.tune(all, tables, compiler); err != nil {
			return err
		}
		for _, k := range all[0].output.Kernels {
			if _, err := a.stdout.Write(k.Source); err != nil {
				return err
			}
		}
		return nil
	}
	compilation, err := a.compilation(ctx, c.Compiler)
	if err != nil {
		return err
	}
	defer compilation.stop()
	if err := a.tune(all, tables, compilerName(compilation.compiler)); err != nil {
		return err
	}
	if c.PTX {
		return a.ptx(ctx, compilation.compiler, all[0].output.Kernels)
	}
	if err := a.compile(ctx, compilation, all); err != nil {
		return err
	}
	a.warn(all[0])
	switch {
	case c.SASS:
		return a.sass(ctx, all[0])
	case c.JSON:
		return a.json(all[0].usages())
	}
	var rows [][]string
	for _, u := range all[0].usages() {
		rows = append(rows, append(u.columns(), strconv.Itoa(u.BlocksPerSM), strconv.Itoa(u.WarpsPerSM)))
	}
	if err := a.table(append(usageHeading(), "blocks/SM", "warps/SM"), rows); err != nil {
		return err
	}
	for _, k := range all[0].output.Kernels {
		if k.Plan.Fallback != "" {
			fmt.Fprintf(a.stdout, "%s: %s\n", k.File, k.Plan.Fallback)
		}
	}
	return nil
}

// heading starts each of several listings; // is a comment in both languages.
func (a *app) heading(file string, t spec.Target) {
	fmt.Fprintf(a.stdout, "// %s for %s\n", file, t)
}

func (a *app) ptx(ctx context.Context, c build.Compiler, kernels []emit.Kernel) error {
	for _, k := range kernels {
		for _, t := range k.Plan.Targets {
			ptx, err := c.PTX(ctx, source(k, t))
			if err != nil {
				return err
			}
			a.heading(k.File, t)
			fmt.Fprintf(a.stdout, "%s\n", strings.TrimRight(string(ptx), "\n"))
		}
	}
	return nil
}

func (a *app) sass(ctx context.Context, g generated) error {
	p, err := a.places()
	if err != nil {
		return err
	}
	nvdisasm := toolchain.Find(p.toolchain).Nvdisasm
	if nvdisasm == "" {
		return errors.New("--sass needs nvdisasm, which is not found: run `kgen toolchain install`, or set CUDA_HOME to a CUDA toolkit")
	}
	for _, c := range g.cubins {
		text, err := toolchain.Disassemble(ctx, nvdisasm, c.Cubin)
		if err != nil {
			return err
		}
		a.heading(c.Source.Name, c.Source.Target)
		fmt.Fprintf(a.stdout, "%s\n", strings.TrimRight(text, "\n"))
	}
	return nil
}
