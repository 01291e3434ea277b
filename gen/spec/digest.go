package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Digest is the identity of a resolved spec, in lower-case hex: a SHA-256 over
// everything that can change what is generated or what it computes. File
// names, comments, the order of fields, and whether a default is written out do
// not change it.
func Digest(s Spec) string {
	sum := sha256.Sum256([]byte(canonical(s)))
	return hex.EncodeToString(sum[:])
}

// canonical writes each field of the resolved spec in a line of its own. Of
// the RoPE rule it has the resolved variant, to 12 digits: the platform's
// logarithms and powers may differ in the last of a float64's 16.
func canonical(s Spec) string {
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%s=%v\n", name, value) }
	line("kgen spec", 1)
	line("name", s.Name)
	line("query_heads", s.Model.QueryHeads)
	line("kv_heads", s.Model.KVHeads)
	line("head_dim", s.Model.HeadDim)
	line("v_head_dim", s.Model.VHeadDim)
	line("dtype", s.Model.DType)
	line("rope", s.Rope.Type)
	line("pairing", s.Rope.Pairing)
	line("rotary_dim", s.Rope.RotaryDim)
	line("max_position", s.Rope.MaxPosition)
	line("attention_factor", digits12(s.Rope.AttentionFactor))
	for _, w := range s.Rope.Frequencies {
		line("frequency", digits12(w))
	}
	line("page_size", s.Cache.PageSize)
	line("layout", s.Cache.Layout)
	line("encoding", s.Cache.Encoding)
	line("causal", s.Masks.Causal)
	line("window", s.Masks.Window)
	line("sink_tokens", s.Masks.SinkTokens)
	line("sink_logits", s.Masks.SinkLogits)
	line("soft_cap", s.Masks.SoftCap)
	line("scale", s.Scale)
	line("sharing", s.Sharing)
	if s.Batching != Bitwise { // specs that are older than the field keep their digests
		line("batching", s.Batching)
	}
	line("kernels", join(s.Kinds))
	line("targets", join(s.Targets))
	for _, k := range AllKinds {
		if t := s.Tiles[k]; t != (Tile{}) {
			line("tile "+string(k), t)
		}
	}
	return b.String()
}

func digits12(x float64) string { return strconv.FormatFloat(x, 'e', 11, 64) }
