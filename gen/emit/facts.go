package emit

import "github.com/kgen-project/kgen/gen/spec"

// Fact is one constant of a spec, for Go and C.
type Fact struct {
	GoName, CName string
	Value         any // string, int, bool or float64
	Doc           string
}

// Facts is what generated code tells of a spec.
func Facts(s spec.Spec) []Fact {
	scale, rotated := s.Rope.ScoreFactors(s.Model.HeadDim)
	return []Fact{
		{"SpecName", "SPEC_NAME", s.Name, "name of the spec"},
		{"SpecDigest", "SPEC_DIGEST", spec.Digest(s), "identity of the resolved spec"},
		{"QueryHeads", "QUERY_HEADS", s.Model.QueryHeads, "of the whole model; a launch may have any multiple of the group"},
		{"KVHeads", "KV_HEADS", s.Model.KVHeads, "of the whole model; a launch may have any number"},
		{"Group", "GROUP", s.Model.Group(), "query heads that share one KV head"},
		{"HeadDim", "HEAD_DIM", s.Model.HeadDim, "elements of a query or key vector"},
		{"VHeadDim", "V_HEAD_DIM", s.Model.VHeadDim, "elements of a value or output vector"},
		{"DType", "DTYPE", string(s.Model.DType), "element type of Q, K, V and the output: bf16 or fp16, 2 bytes"},
		{"PageSize", "PAGE_SIZE", s.Cache.PageSize, "tokens of a page"},
		{"Layout", "LAYOUT", string(s.Cache.Layout), "of a page: nhd is [page size][KV heads][dim], hnd is [KV heads][page size][dim]"},
		{"Encoding", "ENCODING", string(s.Cache.Encoding), "of stored K: segment is at positions in the chunk, raw un-rotated, baked at positions in the sequence"},
		{"RotaryDim", "ROTARY_DIM", s.Rope.RotaryDim, "rotated dimensions, the first of a vector"},
		{"MaxPosition", "MAX_POSITION", s.Rope.MaxPosition, "the RoPE table serves positions of smaller magnitude"},
		{"Causal", "CAUSAL", s.Masks.Causal, "own tokens see only what comes before them"},
		{"Window", "WINDOW", s.Masks.Window, "positions that a query sees back, its own included; 0: all"},
		{"SinkTokens", "SINK_TOKENS", s.Masks.SinkTokens, "positions below this are seen whatever the window"},
		{"SinkLogits", "SINK_LOGITS", s.Masks.SinkLogits, "a launch gives a learned logit for each query head"},
		{"SoftCap", "SOFT_CAP", s.Masks.SoftCap, "score = cap * tanh(score / cap); 0: none"},
		{"Sharing", "SHARING", string(s.Sharing), "fastest, or bitwise: the bits of a result never depend on who else holds a chunk"},
		{"Batching", "BATCHING", string(s.Batching), "bitwise, or fastest: the last bits of extend's results may depend on what else is in the step"},
		{"Scale", "SCALE", s.Scale * scale, "AttendParams.Scale of the model"},
		{"RopeScale", "ROPE_SCALE", rotated, "AttendParams.RopeScale of the model"},
	}
}

// About says in a sentence what a kind does; the kind is its subject.
func About(kind spec.Kind) string { return about[kind] }

var about = map[spec.Kind]string{
	spec.Append:       "writes new tokens' K, rotated as the encoding says, and V to their pages",
	spec.Prefill:      "attends from many query tokens; its tile suits a chunk that is encoded alone",
	spec.Extend:       "attends from a block of query tokens to many segments and to the block's own tokens",
	spec.Decode:       "attends from one query token of each sequence, its keys split over many blocks",
	spec.SharedDecode: "attends from the query tokens of all sequences that hold a chunk, each at its own offset, with one read of its keys; results are partial",
	spec.Merge:        "turns the partial results of split keys into outputs",
	spec.Materialise:  "copies segments to a sequence's own pages, with K turned to positions in the sequence",
	spec.Schedule:     "makes the work lists of a decode step from what its sequences hold",
}
