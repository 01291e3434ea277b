package tune

import (
	"math"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/plan"
)

// Rules of the choice.
const (
	// A setting is chosen in place of the default if it is faster by this part of the
	// default's time in the bucket's mean, which is more than two runs differ by,
	switchGain = 0.02
	// and in no case of the bucket slower by more than this.
	mostLoss = 0.01
	// Where its kernel is another bucket's, to have it costs nothing more: then so much is enough, if it is slower in no case. (Times of
	// one round differ by less.)
	sharedGain = 0.01
	// Settings this close to the best are as good: the simplest is taken, or one whose kernel
	// another bucket has.
	tie = 0.01
	// One setting for all buckets of a kind is taken where it is this close to every
	// bucket's own: fewer kernels are loaded, and one launch serves sequences of any
	// length.
	uniformLoss = 0.02
)

// sample is the times of a setting in a case.
type sample struct {
	median time.Duration
	spread float64 // half the distance of the quartiles over the median
	round  int
}

func newSample(ns []int64, round int) sample {
	sorted := slices.Sorted(slices.Values(ns))
	// Of an even number the upper of the two in the middle, as gen/bench has it.
	at := func(part float64) float64 { return float64(sorted[int(math.Ceil(part*float64(len(sorted)-1)))]) }
	return sample{time.Duration(at(0.5)), (at(0.75) - at(0.25)) / 2 / max(1, at(0.5)), round}
}

// mean is the geometric mean of a setting's times in the cases; false where one is
// missing.
func (f *field) mean(cases []Case, s Setting) (float64, bool) {
	sum := 0.0
	for _, c := range cases {
		t, ok := f.times[c][s]
		if !ok {
			return 0, false
		}
		sum += math.Log(max(1, float64(t.median)))
	}
	return math.Exp(sum / float64(len(cases))), true
}

// verdict is what a setting is worth in a bucket.
type verdict struct {
	setting Setting
	ratio   float64 // mean time over the default's
	worst   float64 // the same of the case where it is largest
}

// verdicts are those of the settings that have a time in every case of the bucket in
// the default's own round, in the order of settings.
func (f *field) verdicts(cases []Case, usual Setting, settings []Setting) []verdict {
	var out []verdict
	for _, s := range settings {
		v := verdict{setting: s, ratio: 1}
		sum, complete := 0.0, true
		for _, c := range cases {
			d, t := f.times[c][usual], f.times[c][s]
			if complete = complete && d.median > 0 && t.median > 0 && d.round == t.round; !complete {
				break
			}
			ratio := float64(t.median) / float64(d.median)
			v.worst = max(v.worst, ratio)
			sum += math.Log(ratio)
		}
		if complete {
			v.ratio = math.Exp(sum / float64(len(cases)))
			out = append(out, v)
		}
	}
	return out
}

// decide picks a bucket's setting among its verdicts: the simplest of the best. The
// default comes first in simplicity, then usual cuts, then the order of settings.
func decide(verdicts []verdict, usual Setting) verdict {
	best := verdict{setting: usual, ratio: 1, worst: 1}
	for _, v := range verdicts {
		if v.ratio <= 1-switchGain && v.worst <= 1+mostLoss && v.ratio < best.ratio {
			best = v
		}
	}
	if best.setting == usual {
		return best
	}
	for _, cutless := range []bool{true, false} {
		for _, v := range verdicts {
			if v.ties(best) && (v.setting.Cut == (plan.Cut{})) == cutless {
				return v
			}
		}
	}
	return best
}

// ties is whether a setting may be chosen, and is as good as the best.
func (v verdict) ties(best verdict) bool {
	return v.ratio <= best.ratio*(1+tie) && v.ratio <= 1-switchGain && v.worst <= 1+mostLoss
}

// decided is what a bucket has.
type decided struct {
	bucket   Bucket
	cases    []Case
	verdicts []verdict
	verdict
}

// share makes the most of the kernels that the buckets have, as each is compiled and loaded: one is given up where each of its buckets
// has another bucket's that is as good, those of the fewest buckets first, and a bucket that has the default takes another's that is faster.
func share(all []decided, usual Setting) {
	has := map[plan.Layout]int{}
	var kernels []plan.Layout
	for _, d := range all {
		if has[d.setting.Layout]++; has[d.setting.Layout] == 1 {
			kernels = append(kernels, d.setting.Layout)
		}
	}
	slices.SortStableFunc(kernels, func(a, b plan.Layout) int { return has[a] - has[b] })
	for _, kernel := range kernels {
		giveUp(kernel, all, has)
	}
	for i := range all {
		if all[i].setting == usual {
			all[i].takeShared(has)
		}
	}
}

// giveUp has all buckets of a kernel go by others' that are as good, if each has one. `has` is how many buckets have each kernel.
func giveUp(kernel plan.Layout, all []decided, has map[plan.Layout]int) {
	others := map[int]verdict{} // for each bucket of the kernel
	for i, d := range all {
		if d.setting.Layout != kernel {
			continue
		}
		j := slices.IndexFunc(d.verdicts, func(v verdict) bool {
			return v.setting.Layout != kernel && has[v.setting.Layout] > 0 && v.ties(d.verdict)
		})
		if j < 0 {
			return
		}
		others[i] = d.verdicts[j]
	}
	has[kernel] = 0
	for i, v := range others {
		all[i].verdict = v
		has[v.setting.Layout]++
	}
}

// takeShared has a bucket of the default go by the fastest of the other kernels that buckets have, where that gains enough.
func (d *decided) takeShared(has map[plan.Layout]int) {
	usual := d.setting.Layout
	for _, v := range d.verdicts {
		if v.setting.Layout != usual && has[v.setting.Layout] > 0 && v.ratio <= 1-sharedGain && v.worst <= 1 && v.ratio < d.ratio {
			d.verdict = v
		}
	}
}

// choose makes a kind's choices, for every bucket that has cases.
func (f *field) choose(usual Setting, settings []Setting) []Choice {
	var all []decided
	for _, b := range Buckets(f.spec, f.kind) {
		d := decided{bucket: b, cases: f.casesOf(b)}
		if len(d.cases) > 0 {
			d.verdicts = f.verdicts(d.cases, usual, settings)
		}
		d.verdict = decide(d.verdicts, usual)
		all = append(all, d)
	}
	share(all, usual)
	uniform, lowest := Setting{}, 0.0
	for _, s := range settings {
		sum, n := 0.0, 0
		good := true
		for _, d := range all {
			if len(d.cases) == 0 {
				continue
			}
			i := slices.IndexFunc(d.verdicts, func(v verdict) bool { return v.setting == s })
			if good = i >= 0 && d.verdicts[i].worst <= 1+mostLoss && d.verdicts[i].ratio <= d.ratio*(1+uniformLoss); !good {
				break
			}
			sum += math.Log(d.verdicts[i].ratio)
			n++
		}
		// Settings come with the simplest first; a later one must be worth it.
		worth := tie
		if uniform == usual {
			worth = switchGain
		}
		if mean := sum / float64(max(1, n)); good && (uniform == Setting{} || mean < lowest-worth) {
			uniform, lowest = s, mean
		}
	}
	var out []Choice
	for _, d := range all {
		v := d.verdict
		if (uniform != Setting{}) {
			v = verdict{setting: uniform, ratio: 1, worst: 1}
			if i := slices.IndexFunc(d.verdicts, func(v verdict) bool { return v.setting == uniform }); i >= 0 {
				v = d.verdicts[i]
			}
		}
		c := Choice{Bucket: d.bucket, Setting: v.setting, Gain: 1/v.ratio - 1, Measured: len(d.cases) > 0}
		out = append(out, c)
	}
	return out
}

// table is what is known of the kind in the end.
func (f *field) table(last []entrant) KindTable {
	var usual Setting
	var settings []Setting
	for _, c := range f.all {
		if c.isDefault {
			usual = Setting{Layout: c.plan.Layout()}
		}
	}
	settings = append(settings, usual)
	for _, e := range last {
		if e.Setting != usual {
			settings = append(settings, e.Setting)
		}
	}
	k := KindTable{Kind: f.kind, Default: usual.Layout, Choices: f.choose(usual, settings), Unfinished: f.unfinished}
	for _, c := range f.cases {
		t := TimedCase{Case: c.Case, HeldOut: c.HeldOut, Times: map[Setting]time.Duration{}, Spread: f.times[c][usual].spread}
		for s, sample := range f.times[c] {
			t.Times[s] = sample.median
		}
		k.Cases = append(k.Cases, t)
	}
	for _, c := range f.all {
		if c.failure != "" {
			k.Rejected = append(k.Rejected, Rejected{Layout: c.plan.Layout(), Wrong: c.wrong, Why: c.failure})
		}
	}
	return k
}
