package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/tune"
)

// modelled is how many plans of a target inspect shows the cost model's terms of.
const modelled = 4

// shape prints which plan the sequences of a case get on each GPU model that has a
// table that is of now, and on any other of each target; and what the cost model says of them.
func (a *app) shape(s spec.Spec, entries []tune.Entry, now tune.Identity, text string) error {
	c, err := bench.ParseCase(text)
	if err != nil {
		return usagef("%v", err)
	}
	kind, shape := tune.KindOf(c), tune.ShapeOf(c)
	if !slices.Contains(s.Kinds, kind) {
		return usagef("spec %s has no kernel %s: add it to the spec's kernels", s.Name, kind)
	}
	if err := c.Check(s); err != nil {
		return usageError{err}
	}
	var chosen [][]string
	sources := sourcesOf(s)
	for _, e := range entries {
		if !slices.Contains(s.Targets, e.Target) || !a.current(e, now) {
			continue
		}
		kernels, err := sources(e.Target)
		if err != nil {
			return err
		}
		chosen = append(chosen, []string{e.GPU, string(e.Target), chosenBy(s, e, c), "table", whyTuned(s, e, c, kernels)})
	}
	var model [][]string
	for _, target := range s.Targets {
		all, err := plan.Candidates(s, kind, target)
		if err != nil {
			return err
		}
		e, err := tune.Predict(s, target)
		if err != nil {
			return err
		}
		setting, by, why := chosenUnmeasured(s, e, c, all[0])
		chosen = append(chosen, []string{"any other", string(target), setting, by, why})
		model = append(model, modelRows(s, target, all, shape)...)
	}
	if err := a.table([]string{"GPU", "target", "plan", "by", "why"}, chosen); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\nThe cost model, in microseconds, on the target's best-known GPU. Its terms overlap.\n")
	return a.table([]string{"target", "plan", "time", "memory", "products", "tiles", "items", "merge", "parts", "waves", ""}, model)
}

func kindTable(e tune.Entry, kind spec.Kind) (tune.KindTable, bool) {
	i := slices.IndexFunc(e.Kinds, func(k tune.KindTable) bool { return k.Kind == kind })
	if i < 0 {
		return tune.KindTable{}, false
	}
	return e.Kinds[i], true
}

func chosenBy(s spec.Spec, e tune.Entry, c bench.Case) string {
	k, ok := kindTable(e, tune.KindOf(c))
	if !ok {
		return "the default"
	}
	return k.Choose(c.Query, c.Keys(s)).Setting.String()
}

// whyTuned says where a choice comes from. sources is a hash of the kernels as they are now.
func whyTuned(s spec.Spec, e tune.Entry, c bench.Case, sources string) string {
	k, ok := kindTable(e, tune.KindOf(c))
	if !ok {
		return fmt.Sprintf("%s was not tuned", tune.KindOf(c))
	}
	choice := k.Choose(c.Query, c.Keys(s))
	why := []string{fmt.Sprintf("tuned %s, for sequences of %s", e.Date, bucketText(choice.Bucket))}
	switch {
	case !choice.Measured:
		why = append(why, "of which none was measured")
	case choice.Setting == k.Usual():
		why = append(why, "in which nothing was enough faster than the default")
	default:
		why = append(why, fmt.Sprintf("in which it is %.1f%% faster than %s, the default", 100*choice.Gain, k.Default))
	}
	if i := slices.IndexFunc(k.Cases, func(t tune.TimedCase) bool { return t.Case == c }); i >= 0 {
		best, fastest := k.Cases[i].Best()
		if t := k.Cases[i].Times[choice.Setting]; t > 0 {
			why = append(why, fmt.Sprintf("%s us in this very case, where the best, %s, took %s", microseconds(t), best, microseconds(fastest)))
		}
	}
	if e.Sources != sources {
		why = append(why, otherKernels)
	}
	return strings.Join(why, "; ")
}

// chosenUnmeasured is what a GPU without a table gets, who chose it, and why.
func chosenUnmeasured(s spec.Spec, e tune.Entry, c bench.Case, usual plan.Plan) (setting, by, why string) {
	kind := tune.KindOf(c)
	choice := tune.Choice{Setting: tune.Setting{Layout: usual.Layout()}}
	if k, ok := kindTable(e, kind); ok {
		choice = k.Choose(c.Query, c.Keys(s))
	}
	given, field := s.Tiles[kind], "the spec's tiles."+string(kind)
	by = "cost model"
	var reasons []string
	switch {
	case given.Rows > 0 && given.Keys > 0 && given.Stages > 0 && given.Warps > 0:
		by, reasons = "spec", append(reasons, field)
	case choice.Layout != usual.Layout():
		reasons = append(reasons, fmt.Sprintf("for sequences of %s; as it foretells, %.0f%% faster than %s, the default", bucketText(choice.Bucket), 100*choice.Gain, usual.Layout()))
	case kind == spec.SharedDecode:
		by, reasons = "default", append(reasons, "the cost model does not choose for it: its time depends on who shares")
	default:
		reasons = append(reasons, fmt.Sprintf("the default; it foretells of no plan to gain %.0f%%", 100*tune.PredictedGain))
	}
	if by != "spec" && given != (spec.Tile{}) {
		reasons = append(reasons, "with what "+field+" gives")
	}
	if usual.Fallback != "" {
		reasons = append(reasons, "of family sm80: "+usual.Fallback)
	}
	return choice.Setting.String(), by, strings.Join(reasons, "; ")
}

func bucketText(b tune.Bucket) string {
	var parts []string
	if b.Query > 0 {
		parts = append(parts, fmt.Sprintf("up to %d query tokens", b.Query))
	}
	if b.Keys > 0 {
		parts = append(parts, fmt.Sprintf("up to %d keys", b.Keys))
	}
	if parts == nil {
		return "any length"
	}
	return strings.Join(parts, " and ")
}

// modelRows are the cost model's terms of the default and of the plans that it
// thinks most of.
func modelRows(s spec.Spec, target spec.Target, all []plan.Plan, shape plan.Shape) [][]string {
	ceilings := plan.NominalCeilings(target)
	show := []int{0}
	for _, i := range plan.Rank(s, all, shape, ceilings) {
		if len(show) < modelled && i != 0 {
			show = append(show, i)
		}
	}
	var rows [][]string
	for _, i := range show {
		e := plan.Predict(s, all[i], plan.Cut{}, shape, ceilings)
		note := ""
		if i == 0 {
			note = "the default"
		}
		rows = append(rows, []string{string(target), all[i].Layout().String(), microseconds(e.Time), microseconds(e.Memory), microseconds(e.Products),
			microseconds(e.Tiles), microseconds(e.Items), microseconds(e.Merge), strconv.Itoa(e.Parts), strconv.FormatFloat(e.Waves, 'f', 2, 64), note})
	}
	return rows
}
