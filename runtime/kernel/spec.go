package kernel

import "github.com/kgen-project/kgen/runtime/rope"

// Spec is what callers must know of the spec that a bundle was made from: its constants,
// under the names that they have in the generated package.
type Spec struct {
	KVHeads    int    // of the whole model; a launch may have any number
	Group      int    // query heads that share one KV head; 0: the package is too old to say any of this
	HeadDim    int    // elements of a query or key
	VHeadDim   int    // elements of a value or output
	DType      string // of Q, K, V and the output: bf16 or fp16; "": the package is too old to say it, SinkLogits and SoftCap
	PageSize   int    // tokens
	Encoding   string
	Sharing    string
	Batching   string
	Rope       rope.Variant
	Scale      float32 // abi.AttendParams.Scale of the model
	RopeScale  float32 // likewise
	Causal     bool    // own tokens see only what comes before them
	Window     int     // positions that a query sees back, its own included; 0: all
	SinkTokens int     // positions below this are seen whatever the window
	SinkLogits bool    // a launch gives a learned logit for each query head
	SoftCap    float64 // score = cap * tanh(score / cap); 0: none
}
