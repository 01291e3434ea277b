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
// table, and on any other of each target; and what the cost model says of them.
func (a *app) shape(s spec.Spec, entries []tune.Entry, text string) error {
	c, err := bench.ParseCase(text)
	if err != nil {
		return usagef("%v", err)
	}
	kind, shape := tune.KindOf(c), tune.ShapeOf(c)
	if !slices.Contains(s.Kinds, kind) {
		return usagef("spec %s has no kernel %s: add it to the spec's kernels", s.Name, kind)
	}
	var chosen [][]string
	for _, e := range entries {
		if slices.Contains(s.Targets, e.Target) {
			chosen = append(chosen, []string{e.GPU, string(e.Target), chosenBy(e, c), whyTuned(e, c)})
		}
	}
	var model [][]string
	for _, target := range s.Targets {
		all, err := plan.Candidates(s, kind, target)
		if err != nil {
			return err
		}
		why := "the default"
		if all[0].Fallback != "" {
			why += ", of family sm80: " + all[0].Fallback
		}
		chosen = append(chosen, []string{"any other", string(target), all[0].Layout().String(), why})
		model = append(model, modelRows(s, target, all, shape)...)
	}
	if err := a.table([]string{"GPU", "target", "plan", "why"}, chosen); err != nil {
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

func chosenBy(e tune.Entry, c bench.Case) string {
	k, ok := kindTable(e, tune.KindOf(c))
	if !ok {
		return "the default"
	}
	return k.Choose(c.Query, c.Context).Setting.String()
}

// whyTuned says where a choice comes from.
func whyTuned(e tune.Entry, c bench.Case) string {
	k, ok := kindTable(e, tune.KindOf(c))
	if !ok {
		return fmt.Sprintf("%s was not tuned", tune.KindOf(c))
	}
	choice := k.Choose(c.Query, c.Context)
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
	if e.Sources != tune.Sources() {
		why = append(why, "with kernels of other templates than these")
	}
	return strings.Join(why, "; ")
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
		return "any other length"
	}
	return strings.Join(parts, " and ")
}

// modelRows are the cost model's terms of the default and of the plans that it
// thinks most of.
func modelRows(s spec.Spec, target spec.Target, all []plan.Plan, shape plan.Shape) [][]string {
	ceilings := plan.NominalCeilings(target)
	show := []int{0}
	for _, i := range plan.Rank(s, all, []plan.Shape{shape}, ceilings) {
		if len(show) < modelled && i != 0 {
			show = append(show, i)
		}
	}
	var rows [][]string
	for _, i := range show {
		e := plan.Predict(s, all[i], plan.Cut{}, shape, ceilings, 0)
		note := ""
		if i == 0 {
			note = "the default"
		}
		rows = append(rows, []string{string(target), all[i].Layout().String(), microseconds(e.Time), microseconds(e.Memory), microseconds(e.Products),
			microseconds(e.Tiles), microseconds(e.Items), microseconds(e.Merge), strconv.Itoa(e.Parts), strconv.FormatFloat(e.Waves, 'f', 2, 64), note})
	}
	return rows
}
