// Package spec turns a YAML file into a checked, resolved Spec.
//
// specs/README.md describes the file: every field, unit and default.
package spec

import (
	"maps"

	"github.com/kgen-project/kgen/runtime/rope"
)

// Spec is one attention shape with everything that is decided at compile
// time. A Spec returned by [Parse] is resolved: every default is filled in and
// every field is valid.
type Spec struct {
	Name     string
	Model    Model
	Rule     rope.Rule // what Rope was resolved from
	Rope     rope.Variant
	Cache    Cache
	Masks    Masks
	Scale    float64       // score scale without the RoPE attention factor; default 1/sqrt(head dim)
	Sharing  Mode          // of chunks that several sequences hold; has no effect without SharedDecode among Kinds
	Batching Mode          // of a sequence's parts; has no effect without Extend among Kinds
	Kinds    []Kind        // in the order of AllKinds
	Targets  []Target      // in the order of AllTargets
	Tiles    map[Kind]Tile // kinds given by hand; a kind that is absent is auto

	// Positions says where the file gives a field, by its path, such as
	// tiles.prefill.rows. A field that the file leaves out is not in it.
	Positions map[string]Position
}

// WithEncoding returns a sibling of s that differs in its encoding alone, and so in the warps
// of tiles given by hand: how many a kernel has besides those that attend depends on what it
// rotates. The sibling's are auto.
func WithEncoding(s Spec, e Encoding) Spec {
	if s.Cache.Encoding == e {
		return s
	}
	s.Cache.Encoding = e
	s.Tiles = maps.Clone(s.Tiles)
	for kind, tile := range s.Tiles {
		tile.Warps = 0
		s.Tiles[kind] = tile
	}
	return s
}

// Whole reports whether a kernel of the kind walks the parts of an item as one: see
// schedule.Options.
func (s Spec) Whole(k Kind) bool { return k == Extend && s.Batching == Fastest }

// RotatesKeys reports whether attending kernels rotate the keys that they read.
func (s Spec) RotatesKeys() bool { return s.Cache.Encoding == Raw && s.Rope.RotaryDim > 0 }

// Model is the shape of one attention layer.
type Model struct {
	QueryHeads int
	KVHeads    int
	HeadDim    int
	VHeadDim   int
	DType      DType
}

// Group is the number of query heads that share one KV head.
func (m Model) Group() int { return m.QueryHeads / m.KVHeads }

// DType is the element type of Q, K, V and the output.
type DType string

const (
	BF16 DType = "bf16"
	FP16 DType = "fp16"
)

// Cache says how KV is stored.
type Cache struct {
	PageSize int // tokens
	Layout   Layout
	Encoding Encoding
}

// Layout is the order of dimensions in one page of K or V.
type Layout string

const (
	NHD Layout = "nhd" // [page size][KV heads][dim]
	HND Layout = "hnd" // [KV heads][page size][dim]
)

// Encoding says at which angle K is stored.
type Encoding string

const (
	Segment Encoding = "segment" // K at its chunk-local position
	Raw     Encoding = "raw"     // K un-rotated
	Baked   Encoding = "baked"   // K at its position in the sequence
)

// AllEncodings is every encoding.
var AllEncodings = []Encoding{Segment, Raw, Baked}

// Masks says which keys a query sees and how scores are changed.
type Masks struct {
	Causal     bool    // own tokens see only what comes before them; false: everything is seen
	Window     int     // a key is seen iff its position is within the last Window positions; 0: no limit
	SinkTokens int     // keys at positions below this are seen whatever the window
	SinkLogits bool    // one learned logit a query head joins the softmax denominator
	SoftCap    float64 // score = cap * tanh(score / cap); 0: none
}

// Mode says what comes first where a step's other sequences could make one faster.
type Mode string

const (
	Fastest Mode = "fastest" // time
	Bitwise Mode = "bitwise" // that a sequence's results have the same bits whatever else is in the step
)

// Kind is a kernel kind.
type Kind string

const (
	Append       Kind = "append"
	Prefill      Kind = "prefill"
	Extend       Kind = "extend"
	Decode       Kind = "decode"
	SharedDecode Kind = "shared_decode"
	Merge        Kind = "merge"
	Materialise  Kind = "materialise"
	Schedule     Kind = "schedule"
)

// AllKinds is every kind of this version, in the order of output.
var AllKinds = []Kind{Append, Prefill, Extend, Decode, SharedDecode, Merge, Materialise, Schedule}

// TiledKinds is the kinds that a spec can give tiles for.
var TiledKinds = []Kind{Prefill, Extend, Decode, SharedDecode}

// Target is an architecture that cubins are made for, such as sm_90a.
type Target string

// AllTargets is every target of this version.
var AllTargets = []Target{"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}

// Tile is the hand-given part of a plan; zero fields are left to the planner.
type Tile struct {
	Rows   int // rows (query tokens x heads of one KV head) of a tile
	Keys   int // keys of a tile
	Stages int // K/V tiles in flight
	Warps  int
}
