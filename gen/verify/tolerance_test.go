package verify

import (
	"math"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
)

func TestRatioError(t *testing.T) {
	for _, c := range []struct {
		name  string
		cases []pair
		want  float64
	}{
		{"no case", nil, 0},
		{"one", []pair{{2, 1}}, 0},
		{"the same ratio in each", []pair{{2, 1}, {4, 2}, {1, 0.5}}, 0},
		{"squares of 1 and of 3 times baked's", []pair{{1, 1}, {3, 1}}, 1 / (2 * math.Sqrt2)},
		{"baked is exact", []pair{{1, 0}, {2, 0}}, 0},
		{"both are", []pair{{0, 0}, {0, 0}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := ratioError(c.cases); math.Abs(got-c.want) > 1e-12 {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// A pooled error of 1.2 times baked's is a kernel's where it is so in every case, and a matter of the dice where it is not.
func TestRatioOfCases(t *testing.T) {
	for _, c := range []struct {
		name   string
		ratios []float64 // of squared errors, case by case
		ok     bool
	}{
		{"in every case", []float64{1.4, 1.45, 1.5, 1.4, 1.45}, false},
		{"by one case of five", []float64{1, 1.1, 0.9, 1.2, 3}, true},
		{"none", []float64{1, 1.1, 0.9, 1.05, 0.95}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all tally
			for i, r := range c.ratios {
				all.add(i+1, outcome{measure: measure{err2: r, ref2: 1e4, rows: ratioRows}, baked: measure{err2: 1, ref2: 1e4, rows: ratioRows}})
			}
			if _, failures := all.row(spec.Extend, spec.Segment, 1); (len(failures) == 0) != c.ok {
				t.Errorf("failures %v, want none: %v", failures, c.ok)
			}
		})
	}
}
