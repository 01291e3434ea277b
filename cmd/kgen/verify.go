package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/templates"
)

type verifyCommand struct {
	Spec     string   `arg:"" help:"A YAML file; - is standard input." predictor:"spec"`
	Backend  string   `enum:"auto,cpu,emulator,gpu" default:"auto" help:"gpu, emulator (the same kernels on the CPU, needs g++ or clang++), cpu (kgen's CPU backend), or auto: gpu if there is one, else emulator."`
	Kernel   []string `placeholder:"KIND" help:"Only these kernel kinds." predictor:"kernel"`
	Target   []string `placeholder:"SM" help:"Targets in place of the spec's: which plans are verified." predictor:"target"`
	Encoding []string `placeholder:"E" help:"Encodings in place of the spec's: segment, raw, baked." predictor:"encoding"`
	Cases    int      `default:"100" placeholder:"N" help:"Cases of each kind and encoding (default: 100)."`
	Seed     *uint64  `placeholder:"S" help:"Of the cases; the report prints it (default: a new one each time)."`
	Case     *int     `placeholder:"K" help:"Only case K, such as one that failed."`
	JSON     bool     `name:"json" help:"Print the report as JSON."`
}

func (verifyCommand) Help() string {
	return `Each case has random lengths, chunks, offsets and pages. Outputs are compared with attention in float64; the errors of segment ` +
		`and raw are held to those of baked on the same data, and each case is run twice for the same bits. The emulator runs every plan that the spec's targets have; a GPU runs those made for it, ` +
		`compiled by NVRTC.`
}

func (c *verifyCommand) Run(ctx context.Context, a *app) error {
	s, err := a.readSpec(ctx, c.Spec)
	if err != nil {
		return err
	}
	entries, err := a.tables(ctx, s)
	if err != nil {
		return err
	}
	o := verify.Options{Cases: c.Cases, Seed: rand.Uint64()}
	if c.Seed != nil {
		o.Seed = *c.Seed
	}
	if c.Cases < 1 {
		return usagef("--cases is %d, want 1 or more", c.Cases)
	}
	if c.Case != nil {
		if o.Case = *c.Case; o.Case < 1 {
			return usagef("--case is %d: there are only cases from 1 on", o.Case)
		}
		if slices.Contains(a.given, "cases") {
			return usagef("--case runs one case alone; leave out --cases")
		}
	}
	o.Cases = max(o.Cases, o.Case)
	if o.Encodings, err = parseWords("encoding", c.Encoding, spec.AllEncodings); err != nil {
		return err
	}
	if c.Backend == "cpu" && len(c.Target) > 0 {
		return usagef("--target says which plans are verified, and the CPU backend has none; leave it out, or give --backend emulator")
	}
	specs := []spec.Spec{s}
	if err := retarget(specs, c.Target); err != nil {
		return err
	}
	s = specs[0]
	chosen := s
	if err := onlyKinds(&chosen, c.Kernel); err != nil {
		return err
	}
	dev, provide, err := a.backend(ctx, c.Backend, s, o.Seed)
	if err != nil {
		return err
	}
	rounds := []round{{spec: s, kinds: chosen.Kinds}}
	switch {
	case c.Backend == "cpu":
		o.Work = cpuWork
	case dev.Info().EmulatesSource:
		rounds, err = roundsOf(chosen, s)
	}
	if err == nil && c.Backend != "cpu" {
		var more []round
		more, err = tunedRounds(chosen, s, entries, dev.Info())
		rounds = append(rounds, more...)
	}
	reports := []verify.Report{}
	for _, r := range rounds {
		if err != nil {
			break
		}
		var report verify.Report
		if r.plan == nil {
			report, err = a.verify(ctx, dev, provide, r, o)
		} else if report, err = a.verifyPlan(ctx, dev, r, o); err == nil {
			report.Plan = r.plan.Layout().String()
		}
		report.Target = r.target
		reports = append(reports, report)
	}
	if err = errors.Join(err, dev.Close()); err != nil {
		return err
	}
	return c.report(a, reports)
}

func (c *verifyCommand) report(a *app, reports []verify.Report) error {
	if c.JSON {
		if err := a.json(reports); err != nil {
			return err
		}
	}
	wrong := false
	for _, r := range reports {
		wrong = wrong || !r.OK()
		if !c.JSON {
			switch {
			case r.Plan != "":
				fmt.Fprintf(a.stdout, "plan %s of %s, for some lengths: ", r.Plan, r.Target)
			case len(reports) > 1 && r.Target != "":
				fmt.Fprintf(a.stdout, "plans of %s: ", r.Target)
			case len(reports) > 1:
				fmt.Fprint(a.stdout, "default plans: ")
			}
			fmt.Fprint(a.stdout, r)
		}
	}
	if wrong {
		return fmt.Errorf("%s: wrong results on %s; the report says which and how to run them again", reports[0].Spec, reports[0].Device)
	}
	return nil
}

// round is a part of a verification.
type round struct {
	spec   spec.Spec
	target spec.Target
	kinds  []spec.Kind
	plan   *plan.Plan // that is run in the place of its kind's default, or nil
}

// roundsOf gives each target of the spec a round with the kinds whose plan no
// earlier target has, of the chosen kinds.
func roundsOf(chosen, s spec.Spec) ([]round, error) {
	plans, err := plan.All(chosen)
	if err != nil {
		return nil, err
	}
	var rounds []round
	for _, t := range s.Targets {
		r := round{spec: s, target: t}
		r.spec.Targets = []spec.Target{t}
		for _, p := range plans {
			if p.Targets[0] == t {
				r.kinds = append(r.kinds, p.Kind)
			}
		}
		if r.kinds != nil {
			rounds = append(rounds, r)
		}
	}
	return rounds, nil
}

// tunedRounds gives each plan that is no target's default a round: those of the device's
// own table, or else of the cost model; for the emulator those of all.
func tunedRounds(chosen, s spec.Spec, entries []tune.Entry, device cuda.Info) ([]round, error) {
	predicted := s.Targets
	entries = slices.Clone(entries)
	if !device.EmulatesSource {
		entries = slices.DeleteFunc(entries, func(e tune.Entry) bool { return e.GPU != device.Name })
		closest, err := closestTarget(s.Targets, device)
		if err != nil {
			return nil, err
		}
		if predicted = nil; len(entries) == 0 && closest != "" {
			predicted = []spec.Target{closest}
		}
	}
	for _, target := range predicted {
		e, err := tune.Predict(s, target)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	var rounds []round
	seen := map[string]bool{}
	for _, e := range entries {
		if !slices.Contains(s.Targets, e.Target) {
			continue
		}
		tuned, err := e.Tuned(s)
		if err != nil {
			return nil, err
		}
		for _, rule := range tuned.Rules {
			p, misfit := plan.Make(s, rule.Kind, e.Target, rule.Layout)
			usual, err := plan.Choose(s, rule.Kind, e.Target)
			name := fmt.Sprint(e.Target, rule.Kind, rule.Layout)
			if misfit != nil || err != nil || seen[name] || usual.Layout() == rule.Layout || !slices.Contains(chosen.Kinds, rule.Kind) {
				continue
			}
			seen[name] = true
			r := round{spec: s, target: e.Target, kinds: []spec.Kind{rule.Kind}, plan: &p}
			r.spec.Targets = []spec.Target{e.Target}
			rounds = append(rounds, r)
		}
	}
	return rounds, nil
}

// verifyPlan verifies one plan; siblings in other encodings that can have it have it too.
func (a *app) verifyPlan(ctx context.Context, dev cuda.Device, r round, o verify.Options) (verify.Report, error) {
	places, err := a.places()
	if err != nil {
		return verify.Report{}, err
	}
	provide := verify.Emitted(dev, func(s spec.Spec) (emit.Output, error) {
		plans, err := plan.All(s)
		if err != nil {
			return emit.Output{}, err
		}
		for i := range plans {
			if p, misfit := plan.Make(s, r.plan.Kind, r.target, r.plan.Layout()); plans[i].Kind == p.Kind && misfit == nil {
				plans[i] = p
			}
		}
		return emit.Emit(s, plans, templates.FS)
	}, compileWith(places))
	return a.verify(ctx, dev, provide, r, o)
}

func (a *app) verify(ctx context.Context, dev cuda.Device, provide verify.Provider, r round, o verify.Options) (verify.Report, error) {
	bar, kinds := a.progress(), 0
	defer bar.end()
	o.Kinds = r.kinds
	o.Progress = func(kind spec.Kind, done, cases int) {
		if done == 1 {
			kinds++
		}
		bar.set((kinds-1)*cases+done, len(r.kinds)*cases, string(kind))
	}
	return verify.Run(ctx, dev, r.spec, provide, o)
}

// cpuWork makes cases for the CPU backend smaller than a GPU's, larger than the
// emulator's.
const cpuWork = 10e6

// backend opens a device and says where its kernels come from.
func (a *app) backend(ctx context.Context, name string, s spec.Spec, seed uint64) (cuda.Device, verify.Provider, error) {
	if name == "cpu" {
		dev := cpu.Open(cpu.Options{})
		return dev, verify.CPU(dev), nil
	}
	if _, err := plannable([]spec.Spec{s}); err != nil { // a spec that can't be planned, before a device is opened
		return nil, nil, err
	}
	p, err := a.places()
	if err != nil {
		return nil, nil, err
	}
	dev, err := a.device(ctx, name, p, seed)
	if err != nil {
		return nil, nil, err
	}
	return dev, verify.Generated(dev, compileWith(p)), nil
}

// compileWith makes cubins by NVRTC with this generator's flags.
func compileWith(p places) kernel.Options {
	compile := kernel.NVRTC(p.cubins, p.toolchain)
	return kernel.Options{Compile: func(ctx context.Context, s kernel.Source) ([]byte, error) {
		s.Flags = build.Flags()
		return compile(ctx, s)
	}}
}

// device opens what a backend runs on.
func (a *app) device(ctx context.Context, backend string, p places, seed uint64) (cuda.Device, error) {
	if backend != "emulator" {
		dev, err := driver.Open(ctx, 0)
		if err == nil {
			return dev, nil
		}
		if backend == "gpu" || !errors.Is(err, cuda.ErrNoDevice) && !errors.Is(err, cuda.ErrNoLibrary) {
			return nil, err
		}
		fmt.Fprintf(a.stderr, "kgen: no GPU (%v); using the emulator\n", err)
	}
	dev, err := emulate.Open(ctx, emulate.Options{CacheDir: p.emulator, Seed: seed})
	if err != nil {
		return nil, err
	}
	return dev, nil
}
