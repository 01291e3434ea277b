// Package tune measures which plan is the fastest for which lengths of sequences on
// one GPU, and writes and reads the tables that say so.
//
// A run goes in stages: the candidates of package plan, of which the cost model leaves
// some out; their compilation, in parallel; a check of each against attention in
// float64; times, one at a time, of ever fewer candidates with ever more repeats;
// and a choice for each bucket of lengths. See specs/README.md for the tables.
package tune

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/parallel"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/templates"
)

// Options say what a run tries. The zero value of a field is its default.
type Options struct {
	Target     spec.Target   // whose plans run on the device; required
	Kinds      []spec.Kind   // default: those of Kinds that the spec has
	Cases      []Case        // in place of Cases of each kind
	Candidates int           // of a kind, after pruning; default 32
	Repeats    int           // of the last round; default 31
	CheckCases int           // random cases that each candidate is checked by; default 4
	CheckWork  int           // multiply-adds of one of them, about; default 10 million
	Budget     time.Duration // of the whole run; 0: no limit
	Seed       uint64        // of all data
	Ceilings   plan.Ceilings // of the device, for the cost model; zero: nominal

	Progress func(stage string, done, total int) // may be nil
}

func (o *Options) defaults(s spec.Spec) {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&o.Candidates, 32)
	set(&o.Repeats, 31)
	set(&o.CheckCases, 4)
	set(&o.CheckWork, 10e6)
	if o.Kinds == nil {
		o.Kinds = KindsOf(s)
	}
	if o.Ceilings == (plan.Ceilings{}) {
		o.Ceilings = plan.NominalCeilings(o.Target)
	}
	if o.Progress == nil {
		o.Progress = func(string, int, int) {}
	}
}

// candidate is a plan on its way.
type candidate struct {
	plan      plan.Plan
	isDefault bool
	rank      int    // by the cost model; the default's is 0
	failure   string // why it is not ranked
	wrong     bool   // it gave wrong results
	kernels   set
}

func (c *candidate) String() string { return fmt.Sprintf("%s %s", c.plan.Kind, c.plan.Layout()) }

// run is the state of one Run.
type run struct {
	m        Machine
	spec     spec.Spec
	j        *Journal
	o        Options
	deadline time.Time // zero: none
	started  time.Time
	cubins   compiled
}

// Run tunes s on the machine. What it measures goes to the journal first; what the
// journal has is not measured again. An error leaves the journal of use.
func Run(ctx context.Context, m Machine, s spec.Spec, j *Journal, o Options) (_ Entry, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("tune %s: %w", s.Name, err)
		}
	}()
	o.defaults(s)
	if len(o.Kinds) == 0 {
		return Entry{}, fmt.Errorf("the spec has no kernel to tune, of %v", Kinds)
	}
	s.Targets = []spec.Target{o.Target}
	r := &run{m: m, spec: s, j: j, o: o, cubins: compiled{}, started: time.Now()}
	if o.Budget > 0 {
		r.deadline = r.started.Add(o.Budget)
	}
	byKind := map[spec.Kind][]*candidate{}
	var all []*candidate
	for _, kind := range o.Kinds {
		found, err := r.candidates(kind)
		if err != nil {
			return Entry{}, err
		}
		byKind[kind] = found
		all = append(all, found...)
	}
	// Where the budget is short, every kind's best come first.
	slices.SortStableFunc(all, func(a, b *candidate) int { return a.rank - b.rank })
	var e Entry
	stage := func(name string, do func() error) error {
		start := time.Now()
		err := do()
		e.Took = append(e.Took, Stage{name, time.Since(start)})
		return err
	}
	if err := stage("compile", func() error { return r.compile(ctx, all) }); err != nil {
		return Entry{}, err
	}
	if err := stage("check", func() error { return r.check(ctx, all) }); err != nil {
		return Entry{}, err
	}
	for i, kind := range o.Kinds {
		err := stage("time "+string(kind), func() error {
			k, err := r.kind(ctx, kind, byKind[kind], r.partOf(o.Kinds[i:]))
			e.Kinds = append(e.Kinds, k)
			return err
		})
		if err != nil {
			return Entry{}, err
		}
	}
	return e, nil
}

// partOf is the first kind's part of the time that is left for some: that of its cases.
func (r *run) partOf(kinds []spec.Kind) float64 {
	all := 0
	for _, k := range kinds {
		all += len(r.cases(k))
	}
	return float64(len(r.cases(kinds[0]))) / float64(max(1, all))
}

// cases are those of a kind.
func (r *run) cases(kind spec.Kind) []Case {
	if r.o.Cases == nil {
		return Cases(r.spec, kind)
	}
	var of []Case
	for _, c := range r.o.Cases {
		if KindOf(c.Case) == kind {
			of = append(of, c)
		}
	}
	return of
}

// candidates are the default and the plans that the cost model thinks most of: for
// each case in turn its best, until there are enough.
func (r *run) candidates(kind spec.Kind) ([]*candidate, error) {
	plans, err := plan.Candidates(r.spec, kind, r.o.Target)
	if err != nil {
		return nil, err
	}
	kept := []int{0}
	var rankings [][]int
	for _, c := range r.cases(kind) {
		rankings = append(rankings, plan.Rank(r.spec, plans, ShapeOf(c.Case), r.o.Ceilings))
	}
	for place := range plans {
		for _, ranking := range rankings {
			if i := ranking[place]; len(kept) < r.o.Candidates && !slices.Contains(kept, i) {
				kept = append(kept, i)
			}
		}
	}
	out := make([]*candidate, 0, len(kept))
	for i, p := range plans {
		if rank := slices.Index(kept, i); rank >= 0 {
			out = append(out, &candidate{plan: p, isDefault: i == 0, rank: rank})
		}
	}
	return out, nil
}

// until is the time at which a part of what is left of the budget is spent.
func (r *run) until(part float64) time.Time {
	if r.deadline.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(time.Duration(float64(r.deadline.Sub(now)) * part))
}

func past(t time.Time) bool { return !t.IsZero() && time.Now().After(t) }

// compile compiles what candidates and their checks need, the defaults first. A
// candidate that is not compiled in its part of the budget, or that spills, drops out.
func (r *run) compile(ctx context.Context, all []*candidate) error {
	if r.m.Compile == nil {
		return nil
	}
	type job struct {
		of     *candidate // nil: needed by all
		source build.Source
	}
	var jobs []job
	seen := map[[sha256.Size]byte]bool{}
	add := func(out emit.Output, err error, of *candidate) error {
		if err != nil {
			return err
		}
		for _, k := range out.Kernels {
			if sum := sha256.Sum256(k.Source); !seen[sum] {
				seen[sum] = true
				jobs = append(jobs, job{of, source(k, r.o.Target)})
			}
		}
		return nil
	}
	siblings := []spec.Spec{r.spec}
	if r.spec.Cache.Encoding != spec.Baked {
		siblings = append(siblings, plan.WithEncoding(r.spec, spec.Baked))
	}
	if r.spec.Cache.Encoding == spec.Raw {
		siblings = append(siblings, plan.WithEncoding(r.spec, spec.Segment)) // what verify holds raw shared decode to
	}
	for _, s := range siblings {
		for _, kind := range r.o.Kinds {
			usual, err := plan.Choose(s, kind, r.o.Target)
			if err != nil {
				return err
			}
			out, err := emitFor(s, usual, r.o.Target, checkedWith(usual)...)
			if err := add(out, err, nil); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(all, func(c *candidate) bool { return c.plan.KeysAhead }) {
		rotation, err := plan.Choose(r.spec, spec.Materialise, r.o.Target)
		if err != nil {
			return err
		}
		out, err := emit.Emit(r.spec, []plan.Plan{rotation}, templates.FS)
		if err := add(out, err, nil); err != nil {
			return err
		}
	}
	for _, c := range all {
		out, err := emit.Emit(r.spec, []plan.Plan{c.plan}, templates.FS)
		if err := add(out, err, c); err != nil {
			return err
		}
	}

	deadline := r.until(0.45)
	var mu sync.Mutex // of what several compilations write
	var failures []error
	err := parallel.Each(ctx, runtime.NumCPU(), len(jobs), func(ctx context.Context, i int) error {
		j := jobs[i]
		if j.of != nil && past(deadline) {
			j.of.failure = "not compiled within the budget"
			return nil
		}
		cubin, err := r.m.Compile(ctx, j.source)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil && j.of == nil:
			failures = append(failures, err)
		case err != nil:
			j.of.failure = "it does not compile: " + err.Error()
		default:
			r.cubins[sha256.Sum256(j.source.Text)] = cubin.Cubin
			if spilled := cubin.Figures.SpillStores + cubin.Figures.SpillLoads; j.of != nil && spilled > 0 {
				j.of.failure = fmt.Sprintf("it spills %d bytes", spilled)
			}
		}
		return nil
	}, func(_, done int) { r.o.Progress("compile", done, len(jobs)) })
	return errors.Join(append(failures, err)...)
}

// check compares every candidate with attention in float64, by random cases.
func (r *run) check(ctx context.Context, all []*candidate) error {
	deadline := r.until(0.45)
	for i, c := range all {
		r.o.Progress("check", i, len(all))
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.failure != "" {
			continue
		}
		key := fmt.Sprintf("%s by %d", c, r.o.CheckCases) // a check by fewer cases is another
		failure, known := r.j.check(key)
		if !known {
			if past(deadline) && !c.isDefault {
				c.failure = "not checked within the budget"
				continue
			}
			var err error
			if failure, err = r.checkOne(ctx, c); err != nil {
				return err
			}
			if err := r.j.addCheck(key, failure); err != nil {
				return err
			}
		}
		c.failure, c.wrong = failure, failure != ""
		if c.isDefault && c.wrong {
			return fmt.Errorf("the default, %s, does not do on %s: %s", c, r.m.Device.Info().Name, failure)
		}
	}
	r.o.Progress("check", len(all), len(all))
	return nil
}

// checkOne returns what is wrong with a candidate. The error is about what kept it
// from being judged.
func (r *run) checkOne(ctx context.Context, c *candidate) (failure string, err error) {
	report, err := verify.Run(ctx, r.m.Device, r.spec, r.provide(c), verify.Options{
		Kinds: []spec.Kind{c.plan.Kind}, Cases: r.o.CheckCases, Seed: r.o.Seed, Work: r.o.CheckWork,
	})
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil && r.alive() != nil:
		return "", fmt.Errorf("%s took the device down: %w", c, err)
	case err != nil:
		return "it could not be run: " + err.Error(), nil
	case report.OK():
		return "", nil
	case len(report.Failures) > 0:
		return report.Failures[0].Message, nil
	}
	return "its error is larger than baked's allows", nil
}

// alive tells whether the device still takes work.
func (r *run) alive() error {
	p, err := r.m.Device.Alloc(256)
	if err != nil {
		return err
	}
	return errors.Join(r.m.Device.Upload(p, make([]byte, 256)), r.m.Device.Free(p))
}

// problem is a case's data, made when first needed.
func (r *run) problem(problems map[Case]*bench.Problem, c Case) (*bench.Problem, error) {
	if p, ok := problems[c]; ok {
		return p, nil
	}
	p, err := bench.NewProblem(r.m.Device, r.spec, c.Case, r.o.Seed)
	if err == nil {
		problems[c] = p
	}
	return p, err
}
