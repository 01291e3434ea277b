// Package rope makes the angle tables of every RoPE variant, in float64.
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
