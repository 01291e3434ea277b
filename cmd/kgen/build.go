package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/runtime/abi"
)

type buildCommand struct {
	Specs    []string     `arg:"" name:"spec" help:"YAML files; - is standard input." predictor:"spec"`
	Out      string       `default:"generated" placeholder:"DIR" help:"Folder that gets a folder for each spec (default: generated)." predictor:"folder"`
	Target   []string     `placeholder:"SM" help:"Targets in place of the spec's, such as sm_80,sm_90a." predictor:"target"`
	Compiler build.Choice `enum:"auto,nvrtc,nvcc" default:"auto" help:"auto (NVRTC if there is one, else nvcc), nvrtc or nvcc."`
	Embed    bool         `help:"Put the cubins beside the bindings and embed them."`
	JSON     bool         `name:"json" help:"Print the report as JSON."`
}

func (buildCommand) Help() string {
	return `Each spec becomes a folder of its name in --out: one self-contained .cu a kernel, Go bindings, a C header and manifest.json. ` +
		`The folder is replaced as a whole, once everything has compiled; one that kgen did not make is refused. ` +
		`Cubins are kept in the cache ($KGEN_CACHE_DIR, else kgen in the user's cache folder), where the bindings find them.`
}

// buildReport is one spec's part of the report.
type buildReport struct {
	Spec     string       `json:"spec"`
	Digest   string       `json:"spec_digest"`
	Folder   string       `json:"folder"`
	Compiler abi.Compiler `json:"compiler"`
	Kernels  []usage      `json:"kernels"`
	Plans    []chosenPlan `json:"plans"` // which are not for all GPUs and lengths
}

// chosenPlan says who chose the kernels of a GPU model, or of the other GPUs of a target.
type chosenPlan struct {
	GPU      string         `json:"gpu,omitempty"`
	Target   string         `json:"target,omitempty"`
	Table    string         `json:"table,omitempty"` // "": the cost model
	Date     string         `json:"date,omitempty"`  // of the measurement, and what it was made with
	Driver   string         `json:"driver,omitempty"`
	Compiler string         `json:"compiler,omitempty"`
	Rules    []chosenKernel `json:"rules"` // of a kind, the first that holds a sequence; one that none holds has the default
}

// chosenKernel is a kernel for sequences of up to so many query tokens and tokens of KV; 0: any.
type chosenKernel struct {
	Kernel string `json:"kernel"`
	Query  int    `json:"query,omitempty"`
	Keys   int    `json:"keys,omitempty"`
}

func (k chosenKernel) bucket() tune.Bucket { return tune.Bucket{Query: k.Query, Keys: k.Keys} }

func chosenPlans(m abi.Manifest, entries []tune.Entry) []chosenPlan {
	files := map[string]string{}
	for _, k := range m.Kernels {
		files[k.Entry] = k.Source
	}
	all := []chosenPlan{}
	for _, t := range m.Tuned {
		c := chosenPlan{GPU: t.GPU, Target: t.Target, Rules: []chosenKernel{}}
		for _, r := range t.Rules {
			k := chosenKernel{files[r.Entry], r.Query, r.Keys}
			if last := len(c.Rules) - 1; last >= 0 && c.Rules[last].Kernel == k.Kernel && k.bucket().Around(c.Rules[last].bucket()) {
				c.Rules = c.Rules[:last] // they differ in the cuts of a sequence alone
			}
			c.Rules = append(c.Rules, k)
		}
		for _, e := range entries {
			if e.GPU == t.GPU {
				c.Table, c.Date, c.Driver, c.Compiler = e.File(), e.Date, e.Driver, e.Compiler
			}
		}
		all = append(all, c)
	}
	return all
}

// of names the GPUs.
func (c chosenPlan) of() string {
	if c.Table == "" {
		return "other " + c.Target
	}
	return c.GPU
}

// by is who chose.
func (c chosenPlan) by() string {
	if c.Table == "" {
		return "the cost model"
	}
	return fmt.Sprintf("%s, measured on %s with driver %s and %s", c.Table, c.Date, c.Driver, c.Compiler)
}

func (c *buildCommand) Run(ctx context.Context, a *app) error {
	specs, tables, err := a.readTuned(ctx, c.Specs, c.Target)
	if err != nil {
		return err
	}
	all, err := plannable(specs)
	if err != nil {
		return err
	}
	for _, s := range specs { // found out before the compiler runs, for it may take long
		if err := replaceable(filepath.Join(c.Out, s.Name), builtMark); err != nil {
			return err
		}
	}
	if err := a.compileTuned(ctx, c.Compiler, all, tables); err != nil {
		return err
	}
	var folders []folder
	for _, g := range all {
		f, err := g.folder(c.Out, c.Embed)
		if err != nil {
			return err
		}
		folders = append(folders, f)
		a.warn(g)
	}
	if err := publish(ctx, c.Out, folders); err != nil {
		return err
	}
	return c.report(a, all, folders, tables)
}

func (c *buildCommand) report(a *app, all []generated, folders []folder, tables [][]tune.Entry) error {
	reports := []buildReport{}
	for i, g := range all {
		m := g.output.Manifest
		reports = append(reports, buildReport{
			Spec: m.Spec, Digest: m.SpecDigest, Folder: folders[i].path, Compiler: m.Compiler, Kernels: g.usages(), Plans: chosenPlans(m, tables[i]),
		})
	}
	if c.JSON {
		return a.json(reports)
	}
	for _, r := range reports {
		fmt.Fprintf(a.stdout, "%s in %s, %s %s\n", r.Spec, r.Folder, r.Compiler.ID, r.Compiler.Version)
		var rows [][]string
		for _, u := range r.Kernels {
			time := "cached"
			if !u.Cached {
				time = fmt.Sprintf("%.2f s", u.CompileSeconds)
			}
			rows = append(rows, append(u.columns(), time))
		}
		if err := a.table(append(usageHeading(), "compile"), rows); err != nil {
			return err
		}
		if err := a.chosen(r.Plans); err != nil {
			return err
		}
	}
	return nil
}

// chosen prints which kernels are not for all GPUs and lengths.
func (a *app) chosen(plans []chosenPlan) error {
	var rows [][]string
	for _, p := range plans {
		for _, r := range p.Rules {
			rows = append(rows, []string{p.of(), limitText(r.Query), limitText(r.Keys), r.Kernel})
		}
	}
	if len(rows) > 0 {
		if err := a.table([]string{"GPU", "query tokens", "keys", "kernel, where not the default"}, rows); err != nil {
			return err
		}
	}
	for _, p := range plans {
		fmt.Fprintf(a.stdout, "%s: by %s\n", p.of(), p.by())
	}
	return nil
}

// limitText is a limit of a bucket of lengths.
func limitText(n int) string {
	if n == 0 {
		return "any"
	}
	return fmt.Sprintf("to %d", n)
}

func usageHeading() []string {
	return []string{"kernel", "target", "registers", "shared", "spills", "stack"}
}

func (u usage) columns() []string {
	return []string{u.File, string(u.Target), strconv.Itoa(u.Registers), strconv.Itoa(u.SharedBytes),
		strconv.Itoa(u.SpillBytes), strconv.Itoa(u.StackBytes)}
}
