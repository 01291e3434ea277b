// Package rope makes the angle tables of every RoPE variant, in float64.
//
// A [Rule] holds the parameters of a published rule; [Rule.Resolve] turns it
// into a [Variant], which is all that a kernel needs to know of it; [Table]
// makes the variant's two-level table of angles.
//
// A vector at position p has each pair t of its rotated dimensions turned by
// the angle p*Frequencies[t]:
//
//	x' = x cos - y sin
//	y' = y cos + x sin
//
// where (x, y) are the pair's dimensions in the order that [Pairing] gives.
package rope

// Variant is a RoPE rule, resolved: what remains of every published rule is a
// frequency a pair of dimensions, a pairing, a number of rotated dimensions
// and a factor on scores.
type Variant struct {
	Type            string    // none, default, linear, ntk, yarn, llama3 or longrope; for messages and the digest
	Pairing         Pairing   // which dimensions form a pair
	RotaryDim       int       // rotated dimensions, even, at most the head dim; 0 for none
	Frequencies     []float64 // radians a position, one a pair: RotaryDim/2
	AttentionFactor float64   // cos and sin of both query and key are multiplied by it in the published rules; 1 for most
	MaxPosition     int       // the table reaches angles of |position| < MaxPosition
}

// Pairing says which dimensions are rotated together.
type Pairing string

const (
	Half        Pairing = "half"        // t with t + RotaryDim/2 (GPT-NeoX, Llama on Hugging Face)
	Interleaved Pairing = "interleaved" // 2t with 2t+1 (GPT-J, the RoFormer paper)
)

// ScoreFactors says how the attention factor f, which the published rules put
// on cos and sin of query and key, is applied to tables that hold pure
// rotations. Where all headDim dimensions are rotated it is a factor f*f on the
// score; where some are not, f*f belongs on the rotated dimensions of the
// query alone.
func (v Variant) ScoreFactors(headDim int) (score, rotatedQuery float64) {
	f := v.AttentionFactor * v.AttentionFactor
	switch v.RotaryDim {
	case 0:
		return 1, 1
	case headDim:
		return f, 1
	default:
		return 1, f
	}
}
