package plan

import (
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
)

// Tuned is the plans that were measured to be the fastest on one GPU model, or that the
// cost model chooses for GPUs that were not measured.
type Tuned struct {
	GPU    string // as the driver gives it; "": any other of the target
	Target spec.Target
	Rules  []Rule
}

// Of names the GPUs that the rules are of.
func (t Tuned) Of() string {
	if t.GPU == "" {
		return "other GPUs of " + string(t.Target)
	}
	return t.GPU
}

// Alternatives are the plans that may be chosen unseen in the place of a default: first
// itself, then the candidates of its family whose threads hold no more scores and outputs
// than its own, with which it does not spill.
func Alternatives(s spec.Spec, kind spec.Kind, target spec.Target) ([]Plan, error) {
	all, err := Candidates(s, kind, target)
	if err != nil {
		return nil, err
	}
	usual := all[0]
	others := slices.DeleteFunc(all[1:], func(p Plan) bool {
		return p.Family != usual.Family || accumulators(s.Model, p) > accumulators(s.Model, usual) || !roomToCap(s, p)
	})
	return append([]Plan{usual}, others...), nil
}

// Rule is a layout for sequences of up to so many query tokens and tokens of KV; 0:
// any number. Of one kind, the first that holds a sequence is used.
type Rule struct {
	Kind        spec.Kind
	Query, Keys int
	Layout      Layout
	Cut         Cut
}

// WithTuned is the plans with those of the rules added, behind the others of their kind.
func WithTuned(s spec.Spec, plans []Plan, tuned []Tuned) ([]Plan, error) {
	plans = slices.Clone(plans)
	for _, t := range tuned {
		for _, r := range t.Rules {
			p, misfit := Make(s, r.Kind, t.Target, r.Layout)
			if misfit != nil {
				return nil, s.ErrorAt("tiles."+string(r.Kind), fmt.Sprintf("tuned for %s: %v", t.Of(), misfit))
			}
			plans = addTuned(plans, p, t.Target)
		}
	}
	return plans, nil
}

func addTuned(plans []Plan, p Plan, target spec.Target) []Plan {
	last := len(plans)
	for i, q := range plans {
		if q.Kind != p.Kind {
			continue
		}
		last = i + 1
		if q.Layout() != p.Layout() {
			continue
		}
		if !slices.Contains(q.Targets, target) {
			plans[i].Targets = append(slices.Clone(q.Targets), target)
			plans[i].Tuned = append(slices.Clone(q.Tuned), target)
		}
		return plans
	}
	p.Tuned = []spec.Target{target}
	return slices.Insert(plans, last, p)
}
