package tune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// Rounds of a kind: all candidates with few repeats, the better half with more, the
// best ones with other cuts, and the finalists with all.
const (
	firstRepeats  = 5
	secondRepeats = 9
	fewest        = 6 // candidates of a bucket that pass the first round at least
	cutLayouts    = 3 // of a bucket that are tried with other cuts
	finalists     = 4 // of a bucket
	finalBlocks   = 3 // that the last round's repeats are taken in, in turns
)

// entrant is a setting of a candidate.
type entrant struct {
	Setting
	of *candidate
}

// usual tells whether it is the default, cut as usual: what others are held to.
func (e entrant) usual() bool { return e.of.isDefault && e.Cut == (plan.Cut{}) }

// field is the entrants of a kind, as of a race, and what is known of them.
type field struct {
	*run
	kind     spec.Kind
	all      []*candidate
	cases    []Case
	problems map[Case]*bench.Problem
	timer    *bench.Timer                // made when first needed; nil where the machine counts
	times    map[Case]map[Setting]sample // of the latest round
	until    time.Time                   // of the round: what is not timed by then is left out

	unfinished bool // something was
}

func (r *run) kind(ctx context.Context, kind spec.Kind, all []*candidate, part float64) (k KindTable, err error) {
	f := &field{run: r, kind: kind, all: all, cases: r.cases(kind), problems: map[Case]*bench.Problem{}, times: map[Case]map[Setting]sample{}}
	end := r.until(part)
	if f.until = end; !end.IsZero() {
		f.until = time.Now().Add(time.Until(end) * 7 / 10)
	}
	defer func() {
		if f.timer != nil {
			err = errors.Join(err, f.timer.Close())
		}
		for _, p := range f.problems {
			p.Free()
		}
		for _, c := range all {
			if c.kernels.Set != nil {
				err = errors.Join(err, c.kernels.Close())
				c.kernels = set{}
			}
		}
	}()
	if len(f.cases) == 0 {
		return KindTable{}, fmt.Errorf("no case of kind %s", kind)
	}
	var first []entrant
	for _, c := range all {
		if c.failure == "" {
			first = append(first, entrant{Setting{Layout: c.plan.Layout()}, c})
		}
	}
	if err := f.round(ctx, 1, first, f.cases, firstRepeats, 1); err != nil {
		return KindTable{}, err
	}
	second := f.best(first, max(fewest, (len(first)+1)/2))
	tuning := slices.DeleteFunc(slices.Clone(f.cases), func(c Case) bool { return c.HeldOut })
	if err := f.round(ctx, 2, second, tuning, secondRepeats, 1); err != nil {
		return KindTable{}, err
	}
	if cuts := f.cuts(f.best(second, cutLayouts)); len(cuts) > 0 {
		if err := f.round(ctx, 3, cuts, tuning, secondRepeats, 1); err != nil {
			return KindTable{}, err
		}
		second = append(second, cuts...)
	}
	f.until = end
	last := f.best(second, finalists)
	if err := f.round(ctx, 4, last, f.cases, max(1, f.o.Repeats/finalBlocks), finalBlocks); err != nil {
		return KindTable{}, err
	}
	return f.table(last), nil
}

// round times the entrants in the cases, case by case, in blocks of repeats in which
// all entrants have a turn, and keeps the times in the journal.
func (f *field) round(ctx context.Context, number int, entrants []entrant, cases []Case, repeats, blocks int) error {
	for i, c := range cases {
		f.o.Progress(fmt.Sprintf("%s, round %d of 4", f.kind, number), i, len(cases))
		if f.times[c] == nil {
			f.times[c] = map[Setting]sample{}
		}
		pending := map[Setting][]int64{}
		var waiting []entrant
		for _, e := range entrants {
			if ns, known := f.j.time(f.timeKey(number, repeats*blocks, c, e)); known {
				f.times[c][e.Setting] = newSample(ns, number)
			} else if e.of.failure == "" {
				waiting = append(waiting, e)
			}
		}
		for block := range blocks {
			for _, e := range waiting {
				if err := ctx.Err(); err != nil {
					return err
				}
				if past(f.until) && !e.usual() {
					f.unfinished = true
					continue
				}
				if e.of.failure != "" {
					continue
				}
				ns, err := f.one(ctx, c, e, repeats)
				if err != nil {
					return err
				}
				pending[e.Setting] = append(pending[e.Setting], ns...)
				if block == blocks-1 && len(pending[e.Setting]) == blocks*len(ns) && ns != nil {
					if err := f.j.addTime(f.timeKey(number, repeats*blocks, c, e), pending[e.Setting]); err != nil {
						return err
					}
					f.times[c][e.Setting] = newSample(pending[e.Setting], number)
				}
			}
		}
	}
	return nil
}

func (f *field) timeKey(round, repeats int, c Case, e entrant) string {
	return fmt.Sprintf("%d %s %s x%d", round, c.Case, e.Setting, repeats)
}

// one times an entrant. One that can't be run drops out, with no times.
func (f *field) one(ctx context.Context, c Case, e entrant, repeats int) ([]int64, error) {
	p, err := f.problem(f.problems, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Case, err)
	}
	if f.timer == nil && f.m.Count == nil {
		if f.timer, err = bench.NewTimer(f.m.Device); err != nil {
			return nil, fmt.Errorf("timer: %w", err)
		}
	}
	if e.of.kernels.Set == nil {
		if e.of.kernels, err = f.open(ctx, e.of.plan); err != nil {
			return nil, fmt.Errorf("%s: %w", e.of, err)
		}
	}
	ns, err := f.sample(ctx, p, e.of.kernels.with(e.Cut, f.m.Device.Info().Multiprocessors), repeats)
	switch {
	case err == nil:
		return ns, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case e.of.isDefault || f.alive() != nil:
		return nil, fmt.Errorf("%s: %s: %w", e.of, c.Case, err)
	}
	e.of.failure = fmt.Sprintf("%s: %v", c.Case, err)
	return nil, nil
}

// best are the n entrants of each bucket with the best geometric mean over its
// cases, and the default's.
func (f *field) best(entrants []entrant, n int) []entrant {
	keep := map[Setting]bool{}
	for _, e := range entrants {
		if e.usual() {
			keep[e.Setting] = true
		}
	}
	for _, b := range Buckets(f.spec, f.kind) {
		cases := f.casesOf(b)
		if len(cases) == 0 {
			continue
		}
		type scored struct {
			Setting
			score float64
		}
		var ranking []scored
		for _, e := range entrants {
			if score, ok := f.mean(cases, e.Setting); ok && e.of.failure == "" {
				ranking = append(ranking, scored{e.Setting, score})
			}
		}
		slices.SortStableFunc(ranking, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
		for _, s := range ranking[:min(n, len(ranking))] {
			keep[s.Setting] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(entrants), func(e entrant) bool { return !keep[e.Setting] })
}

// casesOf are a bucket's cases that choices are made by.
func (f *field) casesOf(b Bucket) []Case { return within(b, f.spec, f.kind, f.cases) }

// cuts are other cuts for entrants. A prefill is never cut, and shared decode's work is
// cut by package schedule's own model.
func (f *field) cuts(entrants []entrant) []entrant {
	if f.kind == spec.Prefill || f.kind == spec.SharedDecode || f.m.Count != nil || !slices.Contains(f.spec.Kinds, spec.Merge) {
		return nil
	}
	var out []entrant
	for _, e := range entrants {
		usual := plan.Cut{}.Resolve(e.of.plan)
		for _, cut := range []plan.Cut{
			{Fill: usual.Fill / 2, Tokens: usual.Tokens}, {Fill: 2 * usual.Fill, Tokens: usual.Tokens},
			{Fill: usual.Fill, Tokens: usual.Tokens / 2}, {Fill: usual.Fill, Tokens: 2 * usual.Tokens},
			{Fill: 2 * usual.Fill, Tokens: usual.Tokens / 2},
		} {
			if cut.Tokens >= leastTokens(f.spec, e.Layout) {
				out = append(out, entrant{Setting{e.Layout, cut}, e.of})
			}
		}
	}
	return out
}
