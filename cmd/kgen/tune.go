package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
	"github.com/kgen-project/kgen/runtime/kernel"
)

type tuneCommand struct {
	Spec       string        `arg:"" help:"A YAML file; - is standard input." predictor:"spec"`
	Backend    string        `enum:"gpu,emulator" default:"gpu" help:"gpu, or emulator: the same run with counted work in place of times; slow, so give it small cases by --case."`
	Budget     time.Duration `default:"5m" placeholder:"TIME" help:"Of the whole run (default: 5m); 0: no limit. The default plans are timed whatever it is."`
	Output     string        `short:"o" placeholder:"FILE" help:"The table (default: tuned/<gpu model>.yaml beside the spec)."`
	Journal    string        `placeholder:"FILE" help:"Keeps what is measured, for a run after an interrupted one (default: beside the table; removed at the end)."`
	Kernel     []string      `placeholder:"KIND" help:"Only these kernel kinds." predictor:"kernel"`
	Target     string        `placeholder:"SM" help:"The target whose plans are tuned (default: the spec's closest to the device)." predictor:"target"`
	Case       []string      `placeholder:"CASE" help:"Cases in place of the usual ones, as for kgen bench."`
	Candidates int           `default:"32" placeholder:"N" help:"Plans of a kind that are tried (default: 32)."`
	Repeats    int           `default:"31" placeholder:"N" help:"Times of a setting in the last round (default: 31)."`
	CheckCases int           `default:"4" placeholder:"N" help:"Random cases that each plan is checked by (default: 4)."`
	Compiler   build.Choice  `enum:"auto,nvrtc,nvcc" default:"auto" help:"auto, nvrtc or nvcc."`
	Seed       uint64        `default:"1" placeholder:"S" help:"Of all data (default: 1)."`
	Score      string        `placeholder:"FILE" help:"Measure nothing: score the cost model against this table."`
	JSON       bool          `name:"json" help:"Print the report as JSON."`
}

func (tuneCommand) Help() string {
	return `It compiles the plans that the cost model thinks most of, checks each against float64 attention, times them with a cold L2 cache, and writes ` +
		`which one is the fastest for which lengths of sequences. kgen build reads the table. A run that was interrupted goes on where it was when it is started again.`
}

func (c *tuneCommand) Run(ctx context.Context, a *app) error {
	s, err := a.readSpec(ctx, c.Spec)
	if err != nil {
		return err
	}
	if c.Score != "" {
		if others := a.besides("score", "json"); others != nil {
			return usagef("--score measures nothing; leave out %s", strings.Join(others, ", "))
		}
		return c.score(ctx, a, s)
	}
	o := tune.Options{Candidates: c.Candidates, Repeats: c.Repeats, CheckCases: c.CheckCases, Budget: c.Budget, Seed: c.Seed}
	if c.Candidates < 1 || c.Repeats < 1 || c.CheckCases < 1 || c.Budget < 0 {
		return usagef("--candidates, --repeats, --check-cases and --budget are positive numbers")
	}
	if c.Output == "" && c.Spec == "-" {
		return usagef("a spec from standard input has no folder for its table: give --output")
	}
	if o.Kinds, err = parseWords("kernel", c.Kernel, tune.Kinds); err != nil {
		return err
	}
	if o.Cases, o.Kinds, err = c.cases(o.Kinds); err != nil {
		return err
	}
	for _, k := range o.Kinds {
		if !slices.Contains(s.Kinds, k) {
			return usagef("spec %s has no kernel %s: add it to the spec's kernels", s.Name, k)
		}
	}
	for _, one := range o.Cases {
		if err := one.Check(s); err != nil && slices.Contains(o.Kinds, tune.KindOf(one.Case)) {
			return usageError{err}
		}
	}
	if o.Kinds == nil {
		o.Kinds = tune.KindsOf(s)
	}
	if len(o.Kinds) == 0 {
		return usagef("spec %s has no kernel to tune: add one of %v to its kernels", s.Name, tune.Kinds)
	}
	targets := s.Targets
	if c.Target != "" {
		if targets, err = parseWords("target", []string{c.Target}, spec.AllTargets); err != nil {
			return err
		}
	}
	if _, err := plannable([]spec.Spec{s}); err != nil {
		return err
	}
	dev, m, id, err := c.machine(ctx, a, s, targets)
	if err != nil {
		return err
	}
	defer m.stop()
	o.Target = id.Target
	o.Ceilings = plan.NominalCeilings(id.Target)
	o.Ceilings.Multiprocessors = dev.Info().Multiprocessors
	entry, path, err := c.tune(ctx, a, s, m.Machine, id, o)
	if err = errors.Join(err, dev.Close()); err != nil {
		return err
	}
	return c.report(a, s, entry, path)
}

// cases are those of --case, and the kinds that they have, of the chosen ones.
func (c *tuneCommand) cases(kinds []spec.Kind) ([]tune.Case, []spec.Kind, error) {
	var cases []tune.Case
	var have []spec.Kind
	for _, text := range c.Case {
		one, err := bench.ParseCase(text)
		if err != nil {
			return nil, nil, usagef("%v", err)
		}
		cases = append(cases, tune.Case{Case: one})
	}
	if cases == nil {
		return nil, kinds, nil
	}
	for _, k := range tune.Kinds {
		for _, one := range cases {
			if tune.KindOf(one.Case) == k && (kinds == nil || slices.Contains(kinds, k)) && !slices.Contains(have, k) {
				have = append(have, k)
			}
		}
	}
	if have == nil {
		return nil, nil, usagef("no --case is of a --kernel: give cases of %v, or leave out --kernel", kinds)
	}
	return cases, have, nil
}

// tuneMachine is a machine with what must be stopped in the end.
type tuneMachine struct {
	tune.Machine
	stop func()
}

// machine opens the device and says what measurements are of: plans for one of the targets.
func (c *tuneCommand) machine(ctx context.Context, a *app, s spec.Spec, targets []spec.Target) (dev cuda.Device, m tuneMachine, id tune.Identity, err error) {
	p, err := a.places()
	if err != nil {
		return nil, m, id, err
	}
	m.stop = func() {}
	if c.Backend == "emulator" {
		emulator, err := emulate.Open(ctx, emulate.Options{CacheDir: p.emulator, Seed: c.Seed})
		if err != nil {
			return nil, m, id, err
		}
		m.Count = func() time.Duration { return tune.Counted(emulator.TakeCounters()) }
		dev = emulator
	} else {
		if dev, err = driver.Open(ctx, 0); err != nil {
			return nil, m, id, err
		}
	}
	defer func(opened cuda.Device) { // dev is nil by then
		if err != nil {
			m.stop()
			err = errors.Join(err, opened.Close())
		}
	}(dev)
	info := dev.Info()
	m.Device = dev
	id = tune.Identity{Spec: s.Name, Digest: spec.Digest(s), GPU: info.Name, Driver: info.Driver}
	if id.Target, err = tunedTarget(targets, info); err != nil {
		return nil, m, id, err
	}
	if id.Sources, err = tune.Sources(s, id.Target); err != nil {
		return nil, m, id, err
	}
	if c.Backend == "emulator" {
		id.Compiler, id.Driver = info.Driver, "none"
		return dev, m, id, nil
	}
	compilation, err := a.compilation(ctx, c.Compiler)
	if err != nil {
		return nil, m, id, err
	}
	m.stop = compilation.stop
	m.Compile = func(ctx context.Context, s build.Source) (build.Cubin, error) {
		cubins, err := build.Build(ctx, compilation.compiler, compilation.cache, []build.Source{s}, build.Options{})
		if err != nil {
			return build.Cubin{}, err
		}
		return cubins[0], nil
	}
	id.Compiler = compilerName(compilation.compiler)
	return dev, m, id, nil
}

// tunedTarget is the one whose plans are tuned.
func tunedTarget(targets []spec.Target, info cuda.Info) (spec.Target, error) {
	if info.EmulatesSource {
		return targets[len(targets)-1], nil
	}
	closest, err := closestTarget(targets, info)
	if err == nil && closest == "" {
		err = usagef("none of the targets %v runs on %s, compute capability %d.%d: add one that does to the spec", targets, info.Name, info.Major, info.Minor)
	}
	return closest, err
}

// closestTarget is the target that was made closest to a device, of those that run on it,
// or "".
func closestTarget(targets []spec.Target, device cuda.Info) (spec.Target, error) {
	var words []string
	for _, t := range targets {
		words = append(words, string(t))
	}
	closest, err := kernel.Closest(words, device)
	return spec.Target(closest), err
}

// tune runs, writes the table, and returns its new entry.
func (c *tuneCommand) tune(ctx context.Context, a *app, s spec.Spec, m tune.Machine, id tune.Identity, o tune.Options) (tune.Entry, string, error) {
	path := c.Output
	if path == "" {
		path = filepath.Join(filepath.Dir(c.Spec), tunedFolder, tune.FileName(id.GPU))
	}
	table, err := tableOf(ctx, path, id.GPU)
	if err != nil {
		return tune.Entry{}, path, err
	}
	if e, ok := table.Entry(s.Name); ok {
		if why := e.Differs(id); why != "" {
			fmt.Fprintf(a.stderr, "kgen: %s: %s is measured again: %s\n", path, s.Name, why)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return tune.Entry{}, path, err
	}
	if err := checkFile(path); err != nil { // found out before the measuring, for it takes long
		return tune.Entry{}, path, err
	}
	journalPath := c.Journal
	if journalPath == "" {
		journalPath = strings.TrimSuffix(path, ".yaml") + "." + s.Name + ".journal"
	}
	journal, err := tune.OpenJournal(journalPath, id, c.Seed)
	if err != nil {
		return tune.Entry{}, path, err
	}
	if checks, times := journal.Known(); checks+times > 0 {
		fmt.Fprintf(a.stderr, "kgen: %s has %d checks and %d times of a run before; they are not made again\n", journalPath, checks, times)
	}
	bar := a.progress()
	o.Progress = func(stage string, done, total int) { bar.set(done, total, stage) }
	entry, err := tune.Run(ctx, m, s, journal, o)
	bar.end()
	keep := c.Journal != ""
	if err != nil {
		if checks, times := journal.Known(); checks+times > 0 {
			fmt.Fprintf(a.stderr, "kgen: %s has %d checks and %d times; the same command goes on from there\n", journalPath, checks, times)
			keep = true
		}
	} else {
		entry.Identity, entry.Date = id, time.Now().UTC().Format(time.DateOnly)
		err = changeFile(path, func() ([]byte, error) {
			table, err := tableOf(ctx, path, id.GPU) // again: another run may have written to it
			return table.With(entry).Marshal(), err
		})
		keep = keep || err != nil
	}
	if keep {
		return entry, path, errors.Join(err, journal.Close())
	}
	return entry, path, errors.Join(err, journal.Remove())
}

// tableOf reads the table at path, which must be of a GPU model; where there is none it is
// an empty one.
func tableOf(ctx context.Context, path, gpu string) (tune.Table, error) {
	table, err := readTable(ctx, path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return tune.Table{GPU: gpu}, nil
	case err == nil && table.GPU != gpu:
		err = usagef("%s is a table of %s, and this is %s: give another --output", path, table.GPU, gpu)
	}
	return table, err
}

// tuneReport is what a run found, for programs.
type tuneReport struct {
	Spec     string       `json:"spec"`
	GPU      string       `json:"gpu"`
	Table    string       `json:"table"`
	Choices  []tuneChoice `json:"choices"`
	Gain     float64      `json:"gain"` // geometric mean over all cases that choices were made by
	Worst    float64      `json:"worst"`
	HeldOut  float64      `json:"held_out_gain"`
	Rejected []string     `json:"rejected"`
	// Unfinished are the kinds for some of whose times the budget was too short: their choices
	// are the default where no other plan has all of its times.
	Unfinished []spec.Kind `json:"unfinished,omitempty"`
	Seconds    float64     `json:"seconds"`
	Stages     []tuneStage `json:"stages"` // of Seconds
}

type tuneChoice struct {
	Kind    spec.Kind `json:"kind"`
	Query   int       `json:"query,omitempty"` // at most; 0: any
	Keys    int       `json:"keys,omitempty"`
	Setting string    `json:"setting"`
	Default bool      `json:"default"`
	Gain    float64   `json:"gain"`
	// Measured is false where no case is of these lengths.
	Measured bool `json:"measured"`
}

type tuneStage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

func (c *tuneCommand) report(a *app, s spec.Spec, e tune.Entry, path string) error {
	r := tuneReport{Spec: e.Spec, GPU: e.GPU, Table: path, Choices: []tuneChoice{}, Rejected: []string{}}
	var rows [][]string
	wrong := false
	for _, k := range e.Kinds {
		for _, choice := range k.Choices {
			usual := choice.Setting == k.Usual()
			r.Choices = append(r.Choices, tuneChoice{k.Kind, choice.Query, choice.Keys, choice.Setting.String(), usual, choice.Gain, choice.Measured})
			gain := fmt.Sprintf("%+.1f%%", 100*choice.Gain)
			switch {
			case !choice.Measured:
				gain = "not measured"
			case usual:
				gain = "the default"
			}
			rows = append(rows, []string{string(k.Kind), limitText(choice.Query), limitText(choice.Keys), choice.Setting.String(), gain})
		}
		if k.Unfinished {
			r.Unfinished = append(r.Unfinished, k.Kind)
		}
		for _, x := range k.Rejected {
			r.Rejected = append(r.Rejected, fmt.Sprintf("%s %s: %s", k.Kind, x.Layout, x.Why))
			wrong = wrong || x.Wrong
		}
	}
	r.Gain, r.Worst = e.Gain(s, false)
	r.HeldOut, _ = e.Gain(s, true)
	for _, stage := range e.Took {
		r.Seconds += stage.Time.Seconds()
		r.Stages = append(r.Stages, tuneStage{stage.Name, stage.Time.Seconds()})
	}
	var err error
	if c.JSON {
		err = a.json(r)
	} else {
		err = r.print(a, rows)
	}
	if err == nil && wrong {
		err = errors.New("some plans give wrong results: see what is not ranked")
	}
	return err
}

// print shows a report to people.
func (r tuneReport) print(a *app, rows [][]string) error {
	fmt.Fprintf(a.stdout, "%s on %s, in %s\n", r.Spec, r.GPU, r.Table)
	if err := a.table([]string{"kind", "query", "keys", "plan", "against the default"}, rows); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "all cases: %+.1f%%, the worst %+.1f%%; held-out cases: %+.1f%%\n", 100*r.Gain, 100*r.Worst, 100*r.HeldOut)
	for _, x := range r.Rejected {
		fmt.Fprintln(a.stdout, "not ranked:", x)
	}
	for _, k := range r.Unfinished {
		fmt.Fprintf(a.stdout, "unfinished: %s: the budget was too short for some times, and a plan without all of a bucket's is not chosen: give a larger --budget\n", k)
	}
	var took []string
	for _, stage := range r.Stages {
		took = append(took, fmt.Sprintf("%s %.1f s", stage.Name, stage.Seconds))
	}
	_, err := fmt.Fprintf(a.stdout, "took: %s\n", strings.Join(took, ", "))
	return err
}

// score compares the cost model with a table.
func (c *tuneCommand) score(ctx context.Context, a *app, s spec.Spec) error {
	table, err := readTable(ctx, c.Score)
	if err != nil {
		return usageError{err}
	}
	e, ok := table.Entry(s.Name)
	if !ok {
		return usagef("%s has nothing of %s", c.Score, s.Name)
	}
	if why := e.Differs(tune.Identity{Digest: spec.Digest(s)}); why != "" {
		return usagef("%s: %s: %s; run kgen tune again", c.Score, s.Name, why)
	}
	if err := e.Check(s); err != nil {
		return err
	}
	sources, err := tune.Sources(s, e.Target)
	if err != nil {
		return err
	}
	if e.Sources != sources {
		fmt.Fprintf(a.stderr, "kgen: %s: %s is used, but %s\n", c.Score, s.Name, otherKernels)
	}
	scores := tune.ScoreModel(s, e, plan.NominalCeilings(e.Target))
	means := []meanRegret{}
	for _, heldOut := range []bool{false, true} {
		if regret, n := tune.MeanRegret(scores, heldOut); n > 0 {
			means = append(means, meanRegret{heldOut, n, regret})
		}
	}
	if c.JSON {
		return a.json(struct {
			Cases []tune.Score `json:"cases"`
			Means []meanRegret `json:"means"`
		}{scores, means})
	}
	var rows [][]string
	for _, x := range scores {
		held := ""
		if x.HeldOut {
			held = "held out"
		}
		rows = append(rows, []string{x.Case, held, fmt.Sprint(x.Settings), fmt.Sprintf("%.2f", x.Correlation), x.Pick, x.Best, fmt.Sprintf("%.1f%%", 100*x.Regret),
			microseconds(x.Predicted), microseconds(x.Measured)})
	}
	if err := a.table([]string{"case", "", "settings", "rank correlation", "pick", "best", "regret", "predicted us", "measured us"}, rows); err != nil {
		return err
	}
	for _, m := range means {
		fmt.Fprintf(a.stdout, "mean regret of %d %s: %.1f%%\n", m.Cases, map[bool]string{false: "cases", true: "held-out cases"}[m.HeldOut], 100*m.Regret)
	}
	return nil
}

// meanRegret is what the cost model's picks lose in the mean of a table's cases, those that
// choices are made by or the others.
type meanRegret struct {
	HeldOut bool    `json:"held_out"`
	Cases   int     `json:"cases"`
	Regret  float64 `json:"regret"`
}

func microseconds(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1e3) }
