package serve

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Kernels launches one spec's kernels: a *kernel.Set on a GPU or on the
// emulator, a *cpu.Kernels without either.
type Kernels interface {
	Append(s cuda.Stream, p abi.AppendParams) error
	Prefill(s cuda.Stream, p abi.AttendParams) error
	Extend(s cuda.Stream, p abi.AttendParams) error
	Decode(s cuda.Stream, p abi.AttendParams) error
	Merge(s cuda.Stream, p abi.MergeParams) error
	// Tile is the rows (query tokens x heads of one KV head) and the keys of a
	// tile of prefill, extend or decode; 0 where there is no such kernel.
	Tile(kind abi.Kind) (rows, keys int)
}

// blocker is Kernels that know how many of their blocks the device runs at a
// time; others are taken to have one a multiprocessor.
type blocker interface {
	Blocks(kind abi.Kind) int
}

// cacheMapper is Kernels of which some read the caches by tensor maps.
type cacheMapper interface {
	MapCache(kind abi.Kind, keys, values abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
}

// Model is what an engine must know of a model and of the spec that its kernels
// were made from. The constants of a generated package have most of it, under
// the same names.
type Model struct {
	Name       string // identity of the weights: part of every chunk's identity
	SpecDigest string // likewise
	Layers     int

	KVHeads  int // on this device
	Group    int // query heads that share one KV head
	HeadDim  int // elements of a query or key, 2 bytes each
	VHeadDim int // elements of a value or output
	PageSize int // tokens
	Encoding string

	Rope       rope.Variant
	Scale      float32 // as in abi.AttendParams
	RopeScale  float32 // as in abi.AttendParams
	Causal     bool    // own tokens see only what comes before them
	Window     int     // a key is seen iff its position is within the last Window positions; 0: no limit
	SinkTokens int     // keys at positions below this are seen whatever the window
	// MaxPosition is the limit of positions; 0: that of Rope, or none where Rope
	// has none.
	MaxPosition int
}

// baked is the encoding that fixes a chunk's position.
const baked = "baked"

func (m Model) queryHeads() int { return m.KVHeads * m.Group }

func (m Model) shape() kvcache.Shape {
	return kvcache.Shape{
		Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim, VHeadDim: m.VHeadDim, ElementBytes: 2, PageSize: m.PageSize,
	}
}

func (m Model) check() error {
	var errs []error
	if m.Group < 1 || m.Group > 1<<16 {
		errs = append(errs, fmt.Errorf("the model's Group is %d, want 1 to %d", m.Group, 1<<16))
	}
	if m.Encoding != "segment" && m.Encoding != "raw" && m.Encoding != baked {
		errs = append(errs, fmt.Errorf("the model's Encoding is %q, want segment, raw or baked", m.Encoding))
	}
	if m.Scale == 0 || m.RopeScale == 0 {
		errs = append(errs, fmt.Errorf("the model's Scale is %g and its RopeScale %g: neither may be 0", m.Scale, m.RopeScale))
	}
	if m.Window < 0 || m.SinkTokens < 0 || m.MaxPosition < 0 {
		errs = append(errs, fmt.Errorf("the model's Window is %d, SinkTokens %d, MaxPosition %d: none may be negative", m.Window, m.SinkTokens, m.MaxPosition))
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
	Pages     int            // of the pool
	HostBytes int64          // limit of the host tier; 0: evicted chunks are lost
	Policy    kvcache.Policy // of eviction; nil: least recently used first
	Stream    cuda.Stream    // that all work is queued on; 0: one of the engine's own
	Logger    *slog.Logger   // nil: nothing is logged
}

// kinds are those that attend, in the order of an engine's schedule options.
var kinds = [...]abi.Kind{abi.KindPrefill, abi.KindExtend, abi.KindDecode}

const (
	prefill = iota
	extend
	decode
)

// scheduleOptions says how the work of each kind is listed. Rows is 0 for a
// kind that there is no kernel of.
func scheduleOptions(m Model, k Kernels, device cuda.Info) [len(kinds)]schedule.Options {
	var options [len(kinds)]schedule.Options
	for i, kind := range kinds {
		rows, keys := k.Tile(kind)
		if rows == 0 {
			continue
		}
		o := schedule.Options{
			Rows: rows, Group: m.Group, Causal: m.Causal, Window: m.Window, SinkTokens: m.SinkTokens,
			MaxPosition: m.maxPosition(), PageSize: m.PageSize,
		}
		if i != prefill {
			blocks := device.Multiprocessors
			if b, ok := k.(blocker); ok {
				blocks = b.Blocks(kind)
			}
			o = o.Fill(blocks, m.KVHeads, keys)
		}
		options[i] = o
	}
	return options
}
