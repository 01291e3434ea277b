package tune

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// Table is a file of one GPU model: what was measured of any number of specs.
type Table struct {
	GPU     string // as the driver gives it
	Entries []Entry
}

// Entry is one spec's part of a table.
type Entry struct {
	Identity
	Date  string // of the measurement, such as 2026-11-21
	Kinds []KindTable
	Took  []Stage // of the run; not in the file

	at spec.Position // in the file it was read from
}

// File is the file that the entry was read from.
func (e Entry) File() string { return e.at.File }

// Stage is a part of a run and how long it took.
type Stage struct {
	Name string
	Time time.Duration
}

// KindTable is what was measured of a kind, and what follows.
type KindTable struct {
	Kind       spec.Kind
	Default    plan.Layout
	Choices    []Choice // the first whose bucket holds a sequence is its own; the last holds all
	Cases      []TimedCase
	Rejected   []Rejected
	Unfinished bool // the budget was too short for some times
}

// Choice is a setting for a bucket.
type Choice struct {
	Bucket
	Setting
	Gain     float64 // the default's time over its own, less 1, in the mean of the bucket's cases
	Measured bool    // false: no case is in the bucket

	at     spec.Position
	fields map[string]spec.Position // such as plan.rows
}

// TimedCase is a case with the median times of settings.
type TimedCase struct {
	bench.Case
	HeldOut bool
	Spread  float64 // of the default's times: half the distance of their quartiles over the median
	Times   map[Setting]time.Duration
}

// Rejected is a candidate that was not ranked.
type Rejected struct {
	Layout plan.Layout
	Wrong  bool // it gave wrong results
	Why    string
}

// Choose is the choice for a sequence.
func (k KindTable) Choose(query, keys int) Choice {
	for _, c := range k.Choices {
		if c.holds(query, keys) {
			return c
		}
	}
	return Choice{Setting: Setting{Layout: k.Default}}
}

// Usual is the setting of the default.
func (k KindTable) Usual() Setting { return Setting{Layout: k.Default} }

// Best is the fastest setting of a case.
func (c TimedCase) Best() (Setting, time.Duration) {
	var best Setting
	lowest := time.Duration(0)
	for s, t := range c.Times {
		if lowest == 0 || t < lowest || t == lowest && s.String() < best.String() {
			best, lowest = s, t
		}
	}
	return best, lowest
}

// Gain is the geometric mean, over the cases that choices were made by, of the
// default's time over the chosen setting's, less 1; and the worst case's.
func (k KindTable) Gain(s spec.Spec, heldOut bool) (mean, worst float64, cases int) {
	sum := 0.0
	worst = math.Inf(1)
	for _, c := range k.Cases {
		d, t := c.Times[k.Usual()], c.Times[k.Choose(c.Query, c.Keys(s)).Setting]
		if c.HeldOut != heldOut || d == 0 || t == 0 {
			continue
		}
		ratio := float64(d) / float64(t)
		sum += math.Log(ratio)
		worst = min(worst, ratio-1)
		cases++
	}
	if cases == 0 {
		return 0, 0, 0
	}
	return math.Exp(sum/float64(cases)) - 1, worst, cases
}

// Tuned is the rules of the entry's choices, for the kinds that a spec has; but for shared decode
// of another sharing than was measured, which cuts chunks otherwise. (H200, 32 sequences that hold
// 8k tokens: with fastest 48 us by tiles of 64 keys and 51 by 128, with bitwise 58 and 51.) Where a kind's last choices are the spec's
// default, they are left out: that is what a sequence gets that no rule holds. (The default
// of the day of the measurement may have been another.)
func (e Entry) Tuned(s spec.Spec) (plan.Tuned, error) {
	t := plan.Tuned{GPU: e.GPU, Target: e.Target}
	for _, k := range e.Kinds {
		if !slices.Contains(s.Kinds, k.Kind) || k.Kind == spec.SharedDecode && e.MeasuredOf(s).Sharing != s.Sharing {
			continue
		}
		usual, err := plan.Choose(s, k.Kind, e.Target)
		if err != nil {
			return plan.Tuned{}, err
		}
		choices := k.Choices
		for len(choices) > 0 && choices[len(choices)-1].Setting == (Setting{Layout: usual.Layout()}) {
			choices = choices[:len(choices)-1]
		}
		for i, c := range choices {
			if repeated(c, choices[i+1:]) {
				continue
			}
			t.Rules = append(t.Rules, plan.Rule{Kind: k.Kind, Query: c.Query, Keys: c.Keys, Layout: c.Layout, Cut: c.Cut})
		}
	}
	return t, nil
}

// repeated tells whether a choice says nothing: those behind it are the same up to one of a
// bucket around its own.
func repeated(c Choice, behind []Choice) bool {
	for _, b := range behind {
		if b.Setting != c.Setting {
			return false
		}
		if b.Around(c.Bucket) {
			return true
		}
	}
	return false
}

// FileName is the name of a GPU model's table: nvidia-h200.yaml of NVIDIA H200.
func FileName(gpu string) string {
	return strings.Trim(notWord.ReplaceAllString(strings.ToLower(gpu), "-"), "-") + ".yaml"
}

var notWord = regexp.MustCompile(`[^a-z0-9]+`)

// With is the table with an entry in the place of the spec's own, if it has one. What that has of
// other kinds stays where it was measured with the same: see [Entry.Differs].
func (t Table) With(e Entry) Table {
	if old, ok := t.Entry(e.Spec); ok && old.Differs(e.Identity) == "" {
		e.Kinds = slices.Clone(e.Kinds)
		for _, k := range old.Kinds {
			if !slices.ContainsFunc(e.Kinds, func(new KindTable) bool { return new.Kind == k.Kind }) {
				e.Kinds = append(e.Kinds, k)
			}
		}
		slices.SortFunc(e.Kinds, func(a, b KindTable) int { return slices.Index(Kinds, a.Kind) - slices.Index(Kinds, b.Kind) })
	}
	entries := slices.DeleteFunc(slices.Clone(t.Entries), func(old Entry) bool { return old.Spec == e.Spec })
	entries = append(entries, e)
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Spec, b.Spec) })
	return Table{t.GPU, entries}
}

// Marshal writes the file that Parse reads.
func (t Table) Marshal() []byte {
	var b strings.Builder
	line := func(indent int, format string, args ...any) {
		fmt.Fprintf(&b, "%s%s\n", strings.Repeat("  ", indent), fmt.Sprintf(format, args...))
	}
	line(0, "# What `kgen tune` measured; `kgen build` reads it. specs/README.md has its fields.")
	line(0, "gpu: %s", quote(t.GPU))
	line(0, "specs:")
	for _, e := range t.Entries {
		line(1, "%s:", e.Spec)
		line(2, "digest: %s", quote(e.Digest))
		line(2, "target: %s", e.Target)
		line(2, "driver: %s", quote(e.Driver))
		line(2, "compiler: %s", quote(e.Compiler))
		line(2, "sources: %s", quote(e.Sources))
		line(2, "date: %s", quote(e.Date))
		line(2, "kinds:")
		for _, k := range e.Kinds {
			k.marshal(line)
		}
	}
	return []byte(b.String())
}

func (k KindTable) marshal(line func(indent int, format string, args ...any)) {
	line(3, "%s:", k.Kind)
	if k.Unfinished {
		line(4, "unfinished: true  # the budget was too short for some times")
	}
	line(4, "default: %s", k.Default)
	line(4, "choices:")
	for _, c := range k.Choices {
		var fields []string
		if c.Query > 0 {
			fields = append(fields, fmt.Sprintf("query: %d", c.Query))
		}
		if c.Keys > 0 {
			fields = append(fields, fmt.Sprintf("keys: %d", c.Keys))
		}
		t := c.Layout.Tile
		plan := fmt.Sprintf("family: %s, rows: %d, keys: %d, stages: %d, warps: %d", c.Layout.Family, t.Rows, t.Keys, t.Stages, t.Warps)
		if c.Layout.Blocks > 1 {
			plan += fmt.Sprintf(", blocks: %d", c.Layout.Blocks)
		}
		if c.Layout.KeysAhead {
			plan += ", keys_ahead: true"
		}
		fields = append(fields, "plan: {"+plan+"}")
		if c.Cut.Fill > 0 {
			fields = append(fields, fmt.Sprintf("fill: %d", c.Cut.Fill))
		}
		if c.Cut.Tokens > 0 {
			fields = append(fields, fmt.Sprintf("tokens: %d", c.Cut.Tokens))
		}
		if c.Measured {
			fields = append(fields, fmt.Sprintf("gain: %.4f", c.Gain))
		}
		line(5, "- {%s}", strings.Join(fields, ", "))
	}
	if len(k.Cases) > 0 {
		line(4, "cases:")
	}
	for _, c := range k.Cases {
		line(5, "%s:", quote(c.Case.String()))
		if c.HeldOut {
			line(6, "held_out: true")
		}
		line(6, "spread: %.4f", c.Spread)
		line(6, "times:")
		settings := make([]Setting, 0, len(c.Times))
		for s := range c.Times {
			settings = append(settings, s)
		}
		slices.SortFunc(settings, func(a, b Setting) int {
			return cmp.Or(cmp.Compare(c.Times[a], c.Times[b]), strings.Compare(a.String(), b.String()))
		})
		for _, s := range settings {
			line(7, "%s: %.3f", s, float64(c.Times[s].Nanoseconds())/1e3)
		}
	}
	if len(k.Rejected) == 0 {
		return
	}
	line(4, "rejected:")
	for _, r := range k.Rejected {
		why, _, _ := strings.Cut(r.Why, "\n")
		line(5, "%s: %s", r.Layout, quote(why))
	}
}

// quote writes a text as YAML's double-quoted form.
func quote(text string) string { return fmt.Sprintf("%q", text) }

// Entry is a spec's part of the table.
func (t Table) Entry(spec string) (Entry, bool) {
	for _, e := range t.Entries {
		if e.Spec == spec {
			return e, true
		}
	}
	return Entry{}, false
}

// MeasuredOf is the spec that the entry was measured of, if that is s or differs from s in its
// sharing or batching alone, and else s. These say how work is listed, for the same kernels.
func (e Entry) MeasuredOf(s spec.Spec) spec.Spec {
	for _, sharing := range []spec.Mode{spec.Fastest, spec.Bitwise} {
		for _, batching := range []spec.Mode{spec.Fastest, spec.Bitwise} {
			other := s
			other.Sharing, other.Batching = sharing, batching
			if spec.Digest(other) == e.Digest {
				return other
			}
		}
	}
	return s
}

// Gain is the geometric mean of all kinds' cases, and the worst case's: see
// [KindTable.Gain].
func (e Entry) Gain(s spec.Spec, heldOut bool) (mean, worst float64) {
	sum, n := 0.0, 0
	worst = math.Inf(1)
	for _, k := range e.Kinds {
		mean, low, cases := k.Gain(s, heldOut)
		if cases > 0 {
			sum += math.Log1p(mean) * float64(cases)
			n += cases
			worst = min(worst, low)
		}
	}
	if n == 0 {
		return 0, 0
	}
	return math.Expm1(sum / float64(n)), worst
}
