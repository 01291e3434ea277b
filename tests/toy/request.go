package toy

import (
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/tests/oracle"
)

// Request is what a sequence must hold.
type Request struct {
	Segments []Placed
	Offset   int // of the own tokens
	Own      []int32
}

// Placed is a document at an offset, or own tokens before another document.
type Placed struct {
	Tokens []int32
	Offset int
	Own    bool
}

// Place puts documents behind the own tokens. The offset of further own tokens is the
// caller's to set.
func (r *Request) Place(documents ...Placed) {
	segments := slices.Clone(r.Segments)
	if len(r.Own) > 0 {
		segments = append(segments, Placed{r.Own, r.Offset, true})
	}
	r.Segments, r.Own = append(segments, documents...), nil
}

// Before is the own tokens among the segments.
func (r *Request) Before() (n int) {
	for _, s := range r.Segments {
		if s.Own {
			n += len(s.Tokens)
		}
	}
	return n
}

// Truncate leaves the first n own tokens, and of the segments what no token that
// goes was before.
func (r *Request) Truncate(n int) {
	for n < r.Before() {
		last := len(r.Segments) - 1
		if s := r.Segments[last]; s.Own {
			r.Own, r.Offset = s.Tokens, s.Offset
		}
		r.Segments = r.Segments[:last:last]
	}
	n -= r.Before()
	r.Own = r.Own[:n:n]
}

// Compare holds the outputs of a request's last n own tokens, which begin at row
// of the step's, to the oracle's.
func (b *Bench) Compare(r *Request, n int, outs [][]byte, row int) error {
	m := b.Model
	for layer, out := range outs {
		p := oracle.Problem{
			QueryHeads: m.KVHeads * m.Group, KVHeads: m.KVHeads, HeadDim: m.HeadDim, VHeadDim: m.VHeadDim,
			Rope: m.Rope, Scale: float64(m.Scale), Window: m.Window, SinkTokens: m.SinkTokens,
		}
		first := len(r.Own) - n
		for i, token := range r.Own[first:] {
			p.Q = append(p.Q, b.rows[layer][0][token]...)
			p.Positions = append(p.Positions, r.Offset+first+i)
		}
		for _, s := range append(r.Segments[:len(r.Segments):len(r.Segments)], Placed{r.Own, r.Offset, true}) {
			segment := oracle.Segment{Offset: s.Offset, Causal: oracle.All}
			for _, token := range s.Tokens {
				segment.K = append(segment.K, b.rows[layer][1][token]...)
				segment.V = append(segment.V, b.rows[layer][2][token]...)
			}
			p.Segments = append(p.Segments, segment)
		}
		if m.Causal {
			p.Segments[len(p.Segments)-1].Causal = first
		}
		want := oracle.Attend(p).Out
		elements := p.QueryHeads * m.VHeadDim
		got := numeric.BF16.Decode(out[2*row*elements:][:2*n*elements])
		for i := 0; i < len(got); i += m.VHeadDim {
			difference := make([]float64, m.VHeadDim)
			for d := range difference {
				difference[d] = got[i+d] - want[i+d]
			}
			if e, limit := norm(difference), b.bound*norm(want[i:i+m.VHeadDim]); !(e <= limit) {
				return fmt.Errorf("layer %d, row %d, head %d: the output is %.3g from the oracle's, at most %.3g is right",
					layer, row+i/elements, i%elements/m.VHeadDim, e, limit)
			}
		}
	}
	return nil
}
