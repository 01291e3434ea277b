package tune

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// Score is how well the cost model foretells the times of a case.
type Score struct {
	Kind        spec.Kind     `json:"kind"`
	Case        string        `json:"case"`
	HeldOut     bool          `json:"held_out"`
	Settings    int           `json:"settings"`
	Correlation float64       `json:"rank_correlation"` // Spearman's, of predicted and measured times
	Pick        string        `json:"pick"`             // the setting that the model thinks the fastest
	Best        string        `json:"best"`             // the fastest
	Regret      float64       `json:"regret"`           // the pick's time over the best's, less 1
	Predicted   time.Duration `json:"predicted_ns"`     // of the pick
	Measured    time.Duration `json:"measured_ns"`      // of the pick
}

// ScoreModel scores the cost model on every case of an entry.
func ScoreModel(s spec.Spec, e Entry, c plan.Ceilings) []Score {
	var scores []Score
	for _, k := range e.Kinds {
		for _, t := range k.Cases {
			shape := ShapeOf(t.Case)
			score := Score{Kind: k.Kind, Case: t.Case.String(), HeldOut: t.HeldOut}
			var settings []Setting
			for setting := range t.Times {
				settings = append(settings, setting)
			}
			slices.SortFunc(settings, func(a, b Setting) int { return cmp.Compare(a.String(), b.String()) })
			var predicted, measured []float64
			pick, best := -1, -1
			for _, setting := range settings {
				p, misfit := plan.Make(s, k.Kind, e.Target, setting.Layout)
				if misfit != nil {
					continue
				}
				predicted = append(predicted, float64(plan.Predict(s, p, setting.Cut, shape, c).Time))
				measured = append(measured, float64(t.Times[setting]))
				settings[len(measured)-1] = setting
				i := len(measured) - 1
				if pick < 0 || predicted[i] < predicted[pick] {
					pick = i
				}
				if best < 0 || measured[i] < measured[best] {
					best = i
				}
			}
			if pick < 0 {
				continue
			}
			score.Settings, score.Correlation = len(measured), spearman(predicted, measured)
			score.Pick, score.Best = settings[pick].String(), settings[best].String()
			score.Regret = measured[pick]/measured[best] - 1
			score.Predicted, score.Measured = time.Duration(predicted[pick]), time.Duration(measured[pick])
			scores = append(scores, score)
		}
	}
	return scores
}

// MeanRegret is the geometric mean of the scores' regrets, of held-out cases or of
// the others.
func MeanRegret(scores []Score, heldOut bool) (regret float64, cases int) {
	sum := 0.0
	for _, s := range scores {
		if s.HeldOut == heldOut {
			sum += math.Log1p(s.Regret)
			cases++
		}
	}
	if cases == 0 {
		return 0, 0
	}
	return math.Expm1(sum / float64(cases)), cases
}

// spearman is the correlation of the ranks of x and y; of fewer than three, 1.
func spearman(x, y []float64) float64 {
	if len(x) < 3 {
		return 1
	}
	a, b := ranks(x), ranks(y)
	mean := float64(len(x)-1) / 2
	var ab, aa, bb float64
	for i := range a {
		ab += (a[i] - mean) * (b[i] - mean)
		aa += (a[i] - mean) * (a[i] - mean)
		bb += (b[i] - mean) * (b[i] - mean)
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return ab / math.Sqrt(aa*bb)
}

// ranks are from 0; equal values share their mean rank.
func ranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(x[i], x[j]) })
	out := make([]float64, len(x))
	for begin := 0; begin < len(order); {
		end := begin
		for end < len(order) && x[order[end]] == x[order[begin]] {
			end++
		}
		for _, i := range order[begin:end] {
			out[i] = float64(begin+end-1) / 2
		}
		begin = end
	}
	return out
}
