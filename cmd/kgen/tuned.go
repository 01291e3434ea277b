package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/templates"
)

// tunedFolder is beside a spec, and has a table for each GPU model.
const tunedFolder = "tuned"

func readTable(ctx context.Context, path string) (tune.Table, error) {
	data, err := readFile(ctx, path)
	if err != nil {
		return tune.Table{}, err
	}
	return tune.Parse(path, data)
}

// readTables reads all tables of a folder, which need not be there. The error is
// [spec.Errors] where it is of what a table says.
func readTables(ctx context.Context, folder string) ([]tune.Table, error) {
	files, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, usageError{err}
	}
	var tables []tune.Table
	var bad spec.Errors
	from := map[string]string{}
	for _, f := range files {
		path := filepath.Join(folder, f.Name())
		if f.IsDir() || filepath.Ext(path) != ".yaml" || f.Name()[0] == '.' {
			continue
		}
		table, err := readTable(ctx, path)
		if errs := (spec.Errors)(nil); errors.As(err, &errs) {
			bad = append(bad, errs...)
			continue
		} else if err != nil {
			return nil, usageError{err}
		}
		if first, taken := from[table.GPU]; taken {
			return nil, usagef("%s and %s are both tables of %s: remove one", first, path, table.GPU)
		}
		from[table.GPU] = path
		tables = append(tables, table)
	}
	if bad != nil {
		return nil, bad
	}
	return tables, nil
}

// readTuned reads specs and their tables; targets given on the command line then take the
// place of the specs', for tables are of specs as their files have them.
func (a *app) readTuned(ctx context.Context, paths, targets []string) ([]spec.Spec, [][]tune.Entry, error) {
	specs, err := a.readSpecs(ctx, paths)
	if err != nil {
		return nil, nil, err
	}
	tables, err := a.allTables(ctx, specs)
	if err != nil {
		return nil, nil, err
	}
	return specs, tables, retarget(specs, targets)
}

// tables are what was tuned of a spec: see allTables.
func (a *app) tables(ctx context.Context, s spec.Spec) ([]tune.Entry, error) {
	all, err := a.allTables(ctx, []spec.Spec{s})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// allTables are what was tuned of each spec: the entries of its name in all tables of the
// folder tuned beside its file. An entry of another digest is left out, with a
// sentence, but where it was another sharing or batching that was measured, whose plans serve
// too; one with a plan that can't be a kernel is an error of its file.
func (a *app) allTables(ctx context.Context, specs []spec.Spec) ([][]tune.Entry, error) {
	all := make([][]tune.Entry, len(specs))
	var bad spec.Errors
	read := map[string][]tune.Table{} // by folder
	for i, s := range specs {
		file := s.Positions[""].File
		if file == "" || file == stdinName {
			continue
		}
		folder := filepath.Join(filepath.Dir(file), tunedFolder)
		tables, known := read[folder]
		if !known {
			var err error
			tables, err = readTables(ctx, folder)
			if errs := (spec.Errors)(nil); errors.As(err, &errs) {
				bad = append(bad, errs...)
			} else if err != nil {
				return nil, err
			}
			read[folder] = tables
		}
		for _, table := range tables {
			e, ok := table.Entry(s.Name)
			measured := e.MeasuredOf(s)
			if !ok || !a.current(e, tune.Identity{Digest: spec.Digest(measured)}) {
				continue
			}
			for _, mode := range []struct {
				field     string
				then, now spec.Mode
			}{{"sharing", measured.Sharing, s.Sharing}, {"batching", measured.Batching, s.Batching}} {
				if mode.then != mode.now {
					fmt.Fprintf(a.stderr, "kgen: %s: %s is used, but it was measured with %s: %s; run kgen tune again\n", e.File(), e.Spec, mode.field, mode.then)
				}
			}
			if errs := (spec.Errors)(nil); errors.As(e.Check(s), &errs) {
				bad = append(bad, errs...)
			}
			all[i] = append(all[i], e)
		}
	}
	if bad != nil {
		return nil, bad
	}
	return all, nil
}

// compilerName is a compiler as tables have it.
func compilerName(c build.Compiler) string { return c.ID() + " " + c.Version() }

// usualCompiler is the name of what a build would compile with; "" where there is nothing.
func (p places) usualCompiler(ctx context.Context, choice build.Choice) string {
	c, err := build.FindCompiler(ctx, choice, toolchain.Find(p.toolchain), p.versions)
	if err != nil {
		return ""
	}
	return compilerName(c)
}

// tune emits specs, with the plans of their tables; not of those that were measured with
// another compiler than this, unless it is "".
func (a *app) tune(all []generated, tables [][]tune.Entry, compiler string) (err error) {
	for i := range all {
		tuned, err := a.rules(all[i].spec, all[i].whole, tables[i], tune.Identity{Compiler: compiler})
		if err != nil {
			return err
		}
		if all[i].output, err = emitTuned(all[i].spec, tuned); err != nil {
			return err
		}
	}
	return nil
}

// current tells whether what was measured still is of now, and says so where not.
func (a *app) current(e tune.Entry, now tune.Identity) bool {
	why := e.Differs(now)
	if why != "" {
		fmt.Fprintf(a.stderr, "kgen: %s: %s is not used: %s; run kgen tune again\n", e.File(), e.Spec, why)
	}
	return why == ""
}

// rules are those of the entries for the targets of a spec, as far as they were
// measured with what is known of now. Entries of other kernels are used, with a
// sentence: a plan that was the best before a kernel changed is still a better guess than
// the default. whole is s with all the kernels of its file, which tables are of.
func (a *app) rules(s, whole spec.Spec, entries []tune.Entry, now tune.Identity) ([]plan.Tuned, error) {
	var out []plan.Tuned
	sources := sourcesOf(whole)
	for _, e := range entries {
		if now.GPU != "" && now.GPU != e.GPU || !slices.Contains(s.Targets, e.Target) || !a.current(e, now) {
			continue
		}
		kernels, err := sources(e.Target)
		if err != nil {
			return nil, err
		}
		if e.Sources != kernels {
			fmt.Fprintf(a.stderr, "kgen: %s: %s is used, but %s; run kgen tune again\n", e.File(), e.Spec, otherKernels)
		}
		t, err := e.Tuned(s)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// sourcesOf is [tune.Sources] of a spec, which emits its kernels, once for each target: several
// tables are of one.
func sourcesOf(s spec.Spec) func(spec.Target) (string, error) {
	known := map[spec.Target]string{}
	return func(target spec.Target) (_ string, err error) {
		if known[target] == "" {
			known[target], err = tune.Sources(s, target)
		}
		return known[target], err
	}
}

const otherKernels = "it was measured with other kernels than these"

// emitTuned emits a spec with the plans of GPU models, and with those that the cost
// model chooses for the other GPUs of each target.
func emitTuned(s spec.Spec, tuned []plan.Tuned) (emit.Output, error) {
	plans, err := plan.All(s)
	if err != nil {
		return emit.Output{}, err
	}
	for _, target := range s.Targets {
		e, err := tune.Predict(s, target)
		if err != nil {
			return emit.Output{}, err
		}
		t, err := e.Tuned(s)
		if err != nil {
			return emit.Output{}, err
		}
		if len(t.Rules) > 0 {
			tuned = append(slices.Clip(tuned), t)
		}
	}
	if plans, err = plan.WithTuned(s, plans, tuned); err != nil {
		return emit.Output{}, err
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		return emit.Output{}, err
	}
	return out, out.Tune(tuned)
}

// tunedOnly emits specs of one encoding with the plans of GPU models, and others with
// their defaults: what is tuned for one encoding says nothing of another.
func tunedOnly(encoding spec.Encoding, tuned []plan.Tuned) func(spec.Spec) (emit.Output, error) {
	return func(s spec.Spec) (emit.Output, error) {
		if s.Cache.Encoding != encoding {
			return emitTuned(s, nil)
		}
		return emitTuned(s, tuned)
	}
}
