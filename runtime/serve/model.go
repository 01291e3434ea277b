package serve

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/rope"
)

// Kernels launches one spec's kernels: a *kernel.Set on a GPU or on the
// emulator, a generated package's *Kernels, which has its methods, or a *cpu.Kernels without
// either. Of other implementations an engine also uses these methods of *kernel.Set where they
// have them: SharedDecode; Choose, Choices, Attend, MapChoice, MapKeys and Materialise; MapCache; Schedule; Blocks, without which
// a device is taken to run one block a multiprocessor; Spec and SpecDigest, or Config of
// *cpu.Kernels, to which New holds the Model; and Artifact, by which New finds kinds that are missing. Wrap a *kernel.Set by
// embedding it, so that it keeps them.
type Kernels interface {
	Append(s cuda.Stream, p abi.AppendParams) error
	Prefill(s cuda.Stream, p abi.AttendParams) error
	Extend(s cuda.Stream, p abi.AttendParams) error
	Decode(s cuda.Stream, p abi.AttendParams) error
	Merge(s cuda.Stream, p abi.MergeParams) error
	// Tile is the rows (query tokens x heads of one KV head) and the keys of a
	// tile of prefill, extend, decode or shared_decode; 0 where there is no such kernel.
	Tile(kind abi.Kind) (rows, keys int)
}

// blocker is Kernels that know how many of their blocks the device runs at a
// time; others are taken to have one a multiprocessor.
type blocker interface {
	Blocks(kind abi.Kind) int
}

// specified is Kernels that know which spec they were made from.
type specified interface {
	SpecDigest() string
	Spec() kernel.Spec
}

// configured is Kernels of the CPU backend, which know a part of the spec.
type configured interface {
	Config() cpu.Config
}

// artifacts is Kernels that may lack a kind.
type artifacts interface {
	Artifact(kind abi.Kind) (kernel.Artifact, bool)
}

// cacheMapper is Kernels of which some read the caches by tensor maps.
type cacheMapper interface {
	MapCache(kind abi.Kind, keys, values abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
}

// Model is what an engine must know of a model and of the spec that its kernels
// were made from: see [ModelOf].
type Model struct {
	Name       string // identity of the weights: part of every chunk's identity
	SpecDigest string // likewise; that of the kernels' spec
	Layers     int

	KVHeads  int    // on this device
	Group    int    // query heads that share one KV head
	HeadDim  int    // elements of a query or key, 2 bytes each
	VHeadDim int    // elements of a value or output
	DType    string // of Q, K, V and the output: bf16 or fp16; "": what the kernels were made for
	PageSize int    // tokens
	Encoding string
	// Sharing says how decode reads chunks that several sequences of a step hold,
	// where the kernels have shared_decode. fastest: once for all of them, where that
	// is expected to be faster; "" is the same. bitwise: so that a sequence's
	// outputs have the same bits whoever else holds its chunks.
	Sharing string
	// Batching says how extend computes what it reads of one sequence, where a block takes
	// several parts of it. bitwise: part by part, so that a sequence's outputs have the same bits
	// whatever else is in the batch; "" is the same. fastest: as one, and all of a step's sequences
	// by one kernel, that which suits most of them together.
	Batching string

	Rope       rope.Variant
	Scale      float32 // as in abi.AttendParams
	RopeScale  float32 // as in abi.AttendParams
	Causal     bool    // own tokens see only what comes before them
	Window     int     // a key is seen iff its position is within the last Window positions; 0: no limit
	SinkTokens int     // keys at positions below this are seen whatever the window
	SinkLogits bool    // a learned logit for each query head joins the softmax: IO has them
	SoftCap    float64 // score = cap * tanh(score / cap); 0: none
	// MaxPosition is the limit of positions; 0: that of Rope, or none where Rope
	// has none.
	MaxPosition int
}

// ModelOf is the model of a bundle's spec, with all of its KV heads on one device. The name is
// the identity of the weights.
func ModelOf(b kernel.Bundle, name string, layers int) Model {
	s := b.Spec
	return Model{
		Name: name, SpecDigest: b.SpecDigest, Layers: layers,
		KVHeads: s.KVHeads, Group: s.Group, HeadDim: s.HeadDim, VHeadDim: s.VHeadDim, DType: s.DType, PageSize: s.PageSize,
		Encoding: s.Encoding, Sharing: s.Sharing, Batching: s.Batching, Rope: s.Rope, Scale: s.Scale, RopeScale: s.RopeScale,
		Causal: s.Causal, Window: s.Window, SinkTokens: s.SinkTokens, SinkLogits: s.SinkLogits, SoftCap: s.SoftCap,
	}
}

// checkSpec says what the kernels were compiled for and the model is not.
func (m Model) checkSpec(k Kernels) error {
	var s kernel.Spec
	switch of := k.(type) {
	case specified:
		if d := of.SpecDigest(); d != m.SpecDigest {
			return fmt.Errorf("the kernels are of the spec with digest %q, and the model's SpecDigest is %q", d, m.SpecDigest)
		}
		s = of.Spec()
	case configured:
		c := of.Config()
		s = kernel.Spec{
			Group: c.Group, HeadDim: c.HeadDim, VHeadDim: c.VHeadDim, DType: string(c.Element), PageSize: c.PageSize, Encoding: string(c.Encoding),
			Rope: c.Rope, Causal: m.Causal, Window: c.Window, SinkTokens: c.SinkTokens, SinkLogits: c.SinkLogits, SoftCap: c.SoftCap,
		}
	}
	if s.Group == 0 {
		return nil
	}
	if s.DType == "" {
		s.DType, s.SinkLogits, s.SoftCap = m.DType, m.SinkLogits, m.SoftCap
	}
	var errs []error
	for _, f := range []struct {
		name        string
		spec, model any
	}{
		{"DType", s.DType, cmp.Or(m.DType, s.DType)}, {"SinkLogits", s.SinkLogits, m.SinkLogits}, {"SoftCap", s.SoftCap, m.SoftCap},
		{"Group", s.Group, m.Group}, {"HeadDim", s.HeadDim, m.HeadDim}, {"VHeadDim", s.VHeadDim, m.VHeadDim}, {"PageSize", s.PageSize, m.PageSize},
		{"Encoding", s.Encoding, m.Encoding}, {"Causal", s.Causal, m.Causal}, {"Window", s.Window, m.Window}, {"SinkTokens", s.SinkTokens, m.SinkTokens},
		{"Rope.RotaryDim", s.Rope.RotaryDim, m.Rope.RotaryDim}, {"Rope.Pairing", s.Rope.Pairing, m.Rope.Pairing},
	} {
		if f.spec != f.model {
			errs = append(errs, fmt.Errorf("%s of the kernels' spec is %v, and of the model %v", f.name, f.spec, f.model))
		}
	}
	return errors.Join(errs...)
}

// baked is the encoding that fixes a chunk's position.
const baked = "baked"

// The values of Model.Sharing and Model.Batching.
const (
	fastest = "fastest"
	bitwise = "bitwise"
)

func (m Model) queryHeads() int { return m.KVHeads * m.Group }

func (m Model) shape() kvcache.Shape {
	return kvcache.Shape{
		Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim, VHeadDim: m.VHeadDim, ElementBytes: 2, PageSize: m.PageSize,
	}
}

// tokenBytes is a token's KV in one layer.
func (m Model) tokenBytes() int { return 2 * m.KVHeads * (m.HeadDim + m.VHeadDim) }

// keptBytes is a token's KV in all layers.
func (m Model) keptBytes() int64 { return int64(m.Layers) * int64(m.tokenBytes()) }

func (m Model) check() error {
	var errs []error
	if m.Group < 1 || m.Group > 1<<16 {
		errs = append(errs, fmt.Errorf("the model's Group is %d, want 1 to %d", m.Group, 1<<16))
	}
	if m.Encoding != "segment" && m.Encoding != "raw" && m.Encoding != baked {
		errs = append(errs, fmt.Errorf("the model's Encoding is %q, want segment, raw or baked", m.Encoding))
	}
	for _, mode := range []struct{ field, is string }{{"Sharing", m.Sharing}, {"Batching", m.Batching}} {
		if mode.is != "" && mode.is != fastest && mode.is != bitwise {
			errs = append(errs, fmt.Errorf("the model's %s is %q, want %s or %s", mode.field, mode.is, fastest, bitwise))
		}
	}
	if m.PageSize < 1 || m.PageSize&(m.PageSize-1) != 0 {
		errs = append(errs, fmt.Errorf("the model's PageSize is %d, want a power of two", m.PageSize))
	}
	factor := func(f float32) bool { return f > 0 && f <= math.MaxFloat32 } // so no NaN
	if !factor(m.Scale) || !factor(m.RopeScale) {
		errs = append(errs, fmt.Errorf("the model's Scale is %g and its RopeScale %g: both must be positive and finite", m.Scale, m.RopeScale))
	}
	if m.Window < 0 || m.SinkTokens < 0 || m.MaxPosition < 0 {
		errs = append(errs, fmt.Errorf("the model's Window is %d, SinkTokens %d, MaxPosition %d: none may be negative", m.Window, m.SinkTokens, m.MaxPosition))
	}
	if m.DType != "" && m.DType != string(cpu.BF16) && m.DType != string(cpu.FP16) {
		errs = append(errs, fmt.Errorf("the model's DType is %q, want %s or %s", m.DType, cpu.BF16, cpu.FP16))
	}
	if !(m.SoftCap >= 0 && m.SoftCap <= math.MaxFloat64) { // so no NaN
		errs = append(errs, fmt.Errorf("the model's SoftCap is %g: it must not be negative, and must be finite", m.SoftCap))
	}
	if max(m.Window, m.SinkTokens) > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("the model's Window is %d, SinkTokens %d: want at most %d", m.Window, m.SinkTokens, math.MaxInt32))
	}
	// A kernel would read behind the end of a table that is smaller than it expects.
	if r := m.Rope; r.RotaryDim != 0 && (r.RotaryDim < 0 || r.RotaryDim%2 != 0 || r.RotaryDim > m.HeadDim || len(r.Frequencies) != r.RotaryDim/2 || r.MaxPosition < 1) {
		errs = append(errs, fmt.Errorf("the model's Rope rotates %d of %d dimensions, by %d frequencies, at positions below %d: take one of rope.Rule.Resolve",
			r.RotaryDim, m.HeadDim, len(r.Frequencies), r.MaxPosition))
	}
	if p := m.Rope.Pairing; m.Rope.RotaryDim > 0 && p != rope.Half && p != rope.Interleaved {
		errs = append(errs, fmt.Errorf("the model's Rope.Pairing is %q, want %s or %s", p, rope.Half, rope.Interleaved))
	}
	if m.Rope.RotaryDim > 0 && m.MaxPosition > m.Rope.MaxPosition {
		errs = append(errs, fmt.Errorf("the model's MaxPosition is %d, and its RoPE table ends at %d", m.MaxPosition, m.Rope.MaxPosition))
	}
	return errors.Join(errs...)
}

// noPositionLimit is the limit of a model without one, far from the largest int32.
const noPositionLimit = 1 << 30

func (m Model) maxPosition() int {
	switch {
	case m.MaxPosition > 0:
		return m.MaxPosition
	case m.Rope.RotaryDim > 0:
		return m.Rope.MaxPosition
	}
	return noPositionLimit
}

// Options are what an engine's owner decides. Pages must be given.
type Options struct {
	Pages     int            // of the pool: each is PageSize tokens of K and V, in all layers
	HostBytes int64          // limit of the host tier; 0: evicted chunks are lost
	Policy    kvcache.Policy // of eviction; nil: least recently used first
	Stream    cuda.Stream    // that work is queued on; 0: one of the engine's own
	Logger    *slog.Logger   // nil: nothing is logged
}

// blocksOf is how many blocks of a kind the device runs at a time.
func blocksOf(k Kernels, kind abi.Kind, device cuda.Info) int {
	if b, ok := k.(blocker); ok {
		return b.Blocks(kind)
	}
	return max(1, device.Multiprocessors)
}

// kinds are those that attend.
var kinds = [...]abi.Kind{abi.KindPrefill, abi.KindExtend, abi.KindDecode, abi.KindSharedDecode}

const (
	prefill = iota
	extend
	decode
	sharedDecode // whose options are an engine's sharing
)
