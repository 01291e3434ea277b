package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/kgen-project/kgen/gen/spec"
)

// Report is what Run found.
type Report struct {
	Spec     string      `json:"spec"`
	Device   string      `json:"device"`
	Target   spec.Target `json:"target,omitempty"` // whose plans were run, where the caller says; "": the device's
	Plan     string      `json:"plan,omitempty"`   // one of some lengths that was run; "": the defaults
	Seed     uint64      `json:"seed"`
	Rows     []Row       `json:"rows"`
	Failures []Failure   `json:"failures"` // the first few of each row
}

// Row is one kind in one encoding. Errors are relative to the norm of the
// reference, pooled over all cases but those of very large scores or elements, which are
// held to their own bounds alone.
type Row struct {
	Kind     spec.Kind     `json:"kind"`
	Encoding spec.Encoding `json:"encoding"`
	Cases    int           `json:"cases"`
	Failed   int           `json:"failed"`
	Error    float64       `json:"error"`     // ||out-ref|| / ||ref||
	Baked    float64       `json:"baked"`     // the same of the baked kernel
	Ratio    float64       `json:"ratio"`     // Error / Baked; 1 where both are 0
	Largest  float64       `json:"largest"`   // largest error of an element
	LSE      float64       `json:"lse"`       // largest error of a log-sum-exp
	SameBits int           `json:"same_bits"` // raw: cases whose bits were compared with baked's
}

// MarshalJSON has null for errors that are no numbers, as those of outputs of NaN are: JSON has
// no word for them.
func (r Row) MarshalJSON() ([]byte, error) {
	type row Row
	number := func(x float64) *float64 {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return &x
	}
	return json.Marshal(struct {
		row
		Error   *float64 `json:"error"`
		Baked   *float64 `json:"baked"`
		Ratio   *float64 `json:"ratio"`
		Largest *float64 `json:"largest"`
		LSE     *float64 `json:"lse"`
	}{row(r), number(r.Error), number(r.Baked), number(r.Ratio), number(r.Largest), number(r.LSE)})
}

// Failure is one wrong case.
type Failure struct {
	Kind     spec.Kind     `json:"kind"`
	Encoding spec.Encoding `json:"encoding"`
	Seed     uint64        `json:"seed"`
	Case     int           `json:"case"` // 0: of all cases together
	Message  string        `json:"message"`
}

// OK says whether every case passed.
func (r Report) OK() bool {
	for _, row := range r.Rows {
		if row.Failed > 0 {
			return false
		}
	}
	return len(r.Failures) == 0
}

// Flags are the options of `kgen verify` that run a failed case again.
func (r Report) Flags(f Failure) string {
	s := fmt.Sprintf("--kernel %s --encoding %s --seed %d", f.Kind, f.Encoding, f.Seed)
	if f.Case != 0 {
		s += fmt.Sprintf(" --case %d", f.Case)
	}
	if r.Target != "" {
		s += fmt.Sprintf(" --target %s", r.Target)
	}
	return s
}

// String is the report as a table, then the failures.
func (r Report) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s on %s, seed %d\n", r.Spec, r.Device, r.Seed)
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "kind\tencoding\tcases\tfailed\terror\tbaked\tratio\tlargest\tlse")
	for _, row := range r.Rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.2e\t%.2e\t%.3f\t%.2e\t%.2e\n", row.Kind, row.Encoding,
			row.Cases, row.Failed, row.Error, row.Baked, row.Ratio, row.Largest, row.LSE)
	}
	w.Flush()
	for _, f := range r.Failures {
		fmt.Fprintf(&s, "%s %s: %s\n  again: %s\n", f.Kind, f.Encoding, f.Message, r.Flags(f))
	}
	return s.String()
}

// wrong is a kernel's mistake, as against a verification that cannot go on.
type wrong struct{ error }

func wrongf(format string, args ...any) error { return wrong{fmt.Errorf(format, args...)} }

// fatal is err unless it is a kernel's mistake.
func fatal(err error) error {
	if errors.As(err, new(wrong)) {
		return nil
	}
	return err
}

// measure is the error of one case in one encoding.
type measure struct {
	err2, ref2 float64 // sums of squares
	largest    float64 // largest error of an element
	lse        float64 // largest error of a log-sum-exp
	rows       int     // rows, or what else has independent errors
	bound      float64 // what the relative error may be
	sameBits   bool    // the bits were compared with the baked kernel's
	apart      bool    // its errors are so much larger than other cases' that, pooled, they would be all that counts
}

func (m measure) relative() float64 {
	if m.ref2 == 0 {
		return math.Sqrt(m.err2) // an empty or all-zero reference: any error counts
	}
	return math.Sqrt(m.err2 / m.ref2)
}

// tally sums the measures of a row of the report.
type tally struct {
	cases, failed, sameBits int
	measured, baked         measure // of the cases where both were measured
	pooled                  []pair  // the same, case by case
	failures                []Failure
}

// pair is the squared error of a case beside that of baked.
type pair struct{ measured, baked float64 }

const maxFailures = 5 // of one row, in the report

func (t *tally) add(n int, o outcome) {
	t.cases++
	if o.err != nil {
		t.failed++
		if len(t.failures) < maxFailures {
			t.failures = append(t.failures, Failure{Case: n, Message: o.err.Error()})
		}
	}
	if !o.measure.apart {
		t.measured.pool(o.measure)
		t.baked.pool(o.baked)
		t.pooled = append(t.pooled, pair{o.measure.err2, o.baked.err2})
	}
	if o.measure.sameBits {
		t.sameBits++
	}
}

func (m *measure) pool(other measure) {
	m.err2 += other.err2
	m.ref2 += other.ref2
	m.largest = max(m.largest, other.largest)
	m.lse = max(m.lse, other.lse)
	m.rows += other.rows
}

func (t *tally) row(kind spec.Kind, e spec.Encoding, seed uint64) (Row, []Failure) {
	row := Row{
		Kind: kind, Encoding: e, Cases: t.cases, Failed: t.failed,
		Error: t.measured.relative(), Baked: t.baked.relative(), Ratio: 1,
		Largest: t.measured.largest, LSE: t.measured.lse, SameBits: t.sameBits,
	}
	if row.Error != row.Baked {
		row.Ratio = row.Error / math.Max(row.Baked, math.SmallestNonzeroFloat32)
	}
	if limit := maxRatio + ratioErrors*ratioError(t.pooled); t.failed == 0 && t.measured.rows >= ratioRows && row.Ratio > limit {
		t.failures = append(t.failures, Failure{
			Message: fmt.Sprintf("relative error %.3e over all cases is %.3f times that of baked, %.3e; at most %.2f is right",
				row.Error, row.Ratio, row.Baked, limit),
		})
	}
	for i := range t.failures {
		t.failures[i].Kind, t.failures[i].Encoding, t.failures[i].Seed = kind, e, seed
	}
	return row, t.failures
}
