package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cubincache"
)

// places are the folders in the cache.
type places struct {
	root      string
	cubins    string
	emulator  string
	toolchain string
	versions  string // of the compilers
}

func (a *app) places() (places, error) {
	root, err := a.cacheDir()
	if err != nil {
		return places{}, err
	}
	return places{
		root:      root,
		cubins:    filepath.Join(root, "cubins"),
		emulator:  filepath.Join(root, "emulator"),
		toolchain: filepath.Join(root, "toolchain"),
		versions:  filepath.Join(root, "versions"),
	}, nil
}

// generated is a spec on its way to a folder.
type generated struct {
	spec   spec.Spec
	whole  spec.Spec     // with all the kernels of its file
	output emit.Output   // set by tune
	cubins []build.Cubin // each kernel's targets, in the order of the manifest; nil before compile
}

// plannable begins with specs that can be planned. Of those that can't be it reports all.
func plannable(specs []spec.Spec) ([]generated, error) {
	var all []generated
	var errs []error
	for _, s := range specs {
		if _, err := plan.All(s); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, generated{spec: s, whole: s})
	}
	return all, errors.Join(errs...)
}

// compilation compiles specs' kernels, until it is stopped.
type compilation struct {
	compiler build.Compiler
	cache    cubincache.Cache
	stop     func()
}

func (a *app) compilation(ctx context.Context, choice build.Choice) (compilation, error) {
	p, err := a.places()
	if err != nil {
		return compilation{}, err
	}
	c, err := build.FindCompiler(ctx, choice, toolchain.Find(p.toolchain), p.versions)
	if err != nil {
		return compilation{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return compilation{}, fmt.Errorf("find kgen's own file, which compiles in processes of its own: %w", err)
	}
	isolated, stop := build.Isolate(c, self, workerName)
	return compilation{compiler: isolated, cache: cubincache.Cache{Dir: p.cubins}, stop: stop}, nil
}

// compile compiles every kernel for every target of its plan, under a bar of
// progress, and completes the manifests.
func (a *app) compile(ctx context.Context, c compilation, all []generated) error {
	var sources []build.Source
	for _, g := range all {
		for _, k := range g.output.Kernels {
			for _, t := range k.Plan.Targets {
				sources = append(sources, source(k, t))
			}
		}
	}
	bar := a.progress()
	cubins, err := build.Build(ctx, c.compiler, c.cache, sources, build.Options{OnProgress: bar.set})
	bar.end()
	if err != nil {
		return err
	}
	for i := range all {
		g := &all[i]
		m := &g.output.Manifest
		m.Generator = generator
		m.Compiler = abi.Compiler{ID: c.compiler.ID(), Version: c.compiler.Version()}
		m.Flags = build.Flags()
		for j := range m.Kernels {
			targets := m.Kernels[j].Targets
			for t := range targets {
				tuned := targets[t].Tuned
				targets[t] = cubins[t].Figures
				targets[t].Tuned = tuned
			}
			g.cubins = append(g.cubins, cubins[:len(targets)]...)
			cubins = cubins[len(targets):]
		}
	}
	return nil
}

// compileTuned emits specs again with the plans of their tables, and compiles them.
func (a *app) compileTuned(ctx context.Context, choice build.Choice, all []generated, tables [][]tune.Entry) error {
	c, err := a.compilation(ctx, choice)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := a.tune(all, tables, compilerName(c.compiler)); err != nil {
		return err
	}
	return a.compile(ctx, c, all)
}

func source(k emit.Kernel, t spec.Target) build.Source {
	return build.Source{Name: k.File, Entry: k.Entry, Text: k.Source, Target: t}
}

// folder is everything that a build writes for a compiled spec.
func (g generated) folder(out string, embed bool) (folder, error) {
	f := folder{path: filepath.Join(out, g.spec.Name), files: map[string][]byte{}, mark: builtMark}
	for name, data := range g.output.Files {
		f.files[name] = data
	}
	var err error
	if f.files[g.spec.Name+".go"], err = emit.Bindings(g.spec, g.output.Manifest, embed); err != nil {
		return folder{}, err
	}
	if f.files[emit.ManifestFile], err = g.output.Manifest.Encode(); err != nil {
		return folder{}, err
	}
	if embed {
		for _, c := range g.cubins {
			f.files[emit.CubinFile(c.Source.Name, string(c.Source.Target))] = c.Cubin
		}
	}
	return f, nil
}

// retarget replaces the specs' targets by those given on the command line.
func retarget(specs []spec.Spec, words []string) error {
	if len(words) == 0 {
		return nil
	}
	given, err := parseWords("target", words, spec.AllTargets)
	if err != nil {
		return err
	}
	var targets []spec.Target
	for _, t := range spec.AllTargets {
		if slices.Contains(given, t) {
			targets = append(targets, t)
		}
	}
	for i := range specs {
		specs[i].Targets = targets
	}
	return nil
}

// onlyKinds leaves the given kinds of a spec's kernels.
func onlyKinds(s *spec.Spec, words []string) error {
	if len(words) == 0 {
		return nil
	}
	given, err := parseWords("kernel", words, spec.AllKinds)
	if err != nil {
		return err
	}
	var kinds []spec.Kind
	for _, k := range s.Kinds {
		if slices.Contains(given, k) {
			kinds = append(kinds, k)
		}
	}
	for _, k := range given {
		if !slices.Contains(kinds, k) {
			return usagef("spec %s has no kernel %s: add it to the spec's kernels", s.Name, k)
		}
	}
	s.Kinds = kinds
	return nil
}

// usage is what one kernel uses on one target, for people and programs.
type usage struct {
	Kind           spec.Kind   `json:"kind"`
	File           string      `json:"file"`
	Target         spec.Target `json:"target"`
	Threads        int         `json:"threads"` // a block
	Registers      int         `json:"registers"`
	SharedBytes    int         `json:"shared_bytes"` // static and dynamic, a block
	SpillBytes     int         `json:"spill_bytes"`  // stores and loads
	StackBytes     int         `json:"stack_bytes"`
	BlocksPerSM    int         `json:"blocks_per_sm"`
	WarpsPerSM     int         `json:"warps_per_sm"`
	Cached         bool        `json:"cached"`
	CompileSeconds float64     `json:"compile_seconds"`    // 0 if cached
	Fallback       string      `json:"fallback,omitempty"` // why no kernel of a later family could be had
}

func (g generated) usages() []usage {
	var all []usage
	cubins := g.cubins
	for _, k := range g.output.Kernels {
		for range k.Plan.Targets {
			c := cubins[0]
			cubins = cubins[1:]
			blocks := plan.BlocksPerSM(k.Plan, c.Source.Target, c.Figures.Registers)
			all = append(all, usage{
				Kind: k.Plan.Kind, File: k.File, Target: c.Source.Target, Threads: k.Plan.Threads(),
				Registers: c.Figures.Registers, SharedBytes: k.Plan.Shared + c.Figures.StaticBytes,
				SpillBytes: c.Figures.SpillStores + c.Figures.SpillLoads, StackBytes: c.Figures.StackBytes,
				BlocksPerSM: blocks, WarpsPerSM: blocks * k.Plan.Warps,
				Cached: c.FromCache, CompileSeconds: c.Elapsed.Seconds(), Fallback: k.Plan.Fallback,
			})
		}
	}
	return all
}

// warn tells of what no kernel should do, and of what the compiler warned of.
func (a *app) warn(g generated) {
	for _, u := range g.usages() {
		if u.SpillBytes > 0 || u.StackBytes > 0 {
			fmt.Fprintf(a.stderr, "kgen: warning: %s for %s spills %d bytes and has %d bytes of stack: a smaller tile would be faster\n",
				u.File, u.Target, u.SpillBytes, u.StackBytes)
		}
	}
	for _, c := range g.cubins {
		if c.Warnings != "" {
			fmt.Fprintf(a.stderr, "kgen: warning: %s for %s: %s\n", c.Source.Name, c.Source.Target, c.Warnings)
		}
	}
}
