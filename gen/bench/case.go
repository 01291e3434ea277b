// Package bench times the kernels of a spec: cases with their bytes and
// operations, so that each time stands beside what the hardware allows.
package bench

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/gen/spec"
)

// Case is one shape to time.
type Case struct {
	Kind    spec.Kind // prefill, extend or decode
	Batch   int       // sequences
	Query   int       // query tokens of each sequence
	Context int       // tokens of KV of each sequence; prefill: the same as Query
}

// String is the form that [ParseCase] reads.
func (c Case) String() string {
	if c.Kind == spec.Prefill {
		return fmt.Sprintf("%s:%dx%d", c.Kind, c.Batch, c.Query)
	}
	return fmt.Sprintf("%s:%dx%d/%d", c.Kind, c.Batch, c.Query, c.Context)
}

// ParseCase reads prefill:BATCHxTOKENS, or extend:BATCHxQUERY/CONTEXT and
// decode:BATCHxQUERY/CONTEXT.
func ParseCase(text string) (Case, error) {
	kind, shape, _ := strings.Cut(text, ":")
	c := Case{Kind: spec.Kind(kind)}
	batch, rest, _ := strings.Cut(shape, "x")
	query, context, hasContext := strings.Cut(rest, "/")
	if c.Kind == spec.Prefill && !hasContext {
		context, hasContext = query, true
	}
	known := c.Kind == spec.Prefill || c.Kind == spec.Extend || c.Kind == spec.Decode
	for _, n := range []struct {
		text string
		to   *int
	}{{batch, &c.Batch}, {query, &c.Query}, {context, &c.Context}} {
		v, err := strconv.Atoi(n.text)
		if err != nil || v < 1 || v > 1<<24 {
			known = false
		}
		*n.to = v
	}
	if !known || !hasContext || (c.Kind == spec.Prefill && c.Query != c.Context) {
		return Case{}, fmt.Errorf("case %q: want prefill:BATCHxTOKENS, extend:BATCHxQUERY/CONTEXT or decode:BATCHxQUERY/CONTEXT, such as extend:1x64/8192", text)
	}
	return c, nil
}

// Usual are the cases that kgen is measured by.
func Usual() []Case {
	return []Case{
		{spec.Prefill, 4, 4096, 4096},
		{spec.Prefill, 1, 16384, 16384},
		{spec.Extend, 1, 64, 8 << 10},
		{spec.Extend, 1, 64, 32 << 10},
		{spec.Extend, 1, 64, 128 << 10},
		{spec.Extend, 8, 64, 8 << 10},
		{spec.Extend, 1, 256, 16 << 10},
		{spec.Extend, 4, 512, 8 << 10},
		{spec.Decode, 1, 1, 8 << 10},
		{spec.Decode, 1, 1, 32 << 10},
		{spec.Decode, 8, 1, 8 << 10},
		{spec.Decode, 32, 1, 8 << 10},
		{spec.Decode, 128, 1, 4 << 10},
	}
}

// Bytes are the fewest that the case must move through device memory: every
// input read once, every output written once.
func (c Case) Bytes(m spec.Model) float64 {
	const element = 2
	kv := float64(c.Batch) * float64(c.Context) * float64(m.KVHeads) * float64(m.HeadDim+m.VHeadDim)
	qo := float64(c.Batch) * float64(c.Query) * float64(m.QueryHeads) * float64(m.HeadDim+m.VHeadDim)
	return element * (kv + qo)
}

// Operations are the floating-point operations of the two matrix products; of
// a causal prefill, those of the lower triangle.
func (c Case) Operations(m spec.Model, causal bool) float64 {
	scores := float64(c.Batch) * float64(c.Query) * float64(c.Context) * float64(m.QueryHeads)
	if c.Kind == spec.Prefill && causal {
		scores /= 2
	}
	return 2 * scores * float64(m.HeadDim+m.VHeadDim)
}
