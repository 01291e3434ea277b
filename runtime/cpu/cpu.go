// Package cpu runs every kernel kind on the processor, in Go alone: the
// backend where there is no GPU.
//
// A [Device] is a cuda.Device over host memory; [Kernels] launches one spec's
// kernels on it with the launch parameters of package abi, so that the code
// around them is the same as on a GPU. The arithmetic is that of the GPU's
// kernels: products and sums in float32, and a rounding to the element type
// exactly where they round: a rotated query or key, a softmax weight, the
// output.
package cpu

import (
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/rope"
)

// Config is what a spec decides at compile time for a GPU. Any positive sizes
// are good: there are no tiles to fit.
type Config struct {
	Name     string // of the spec, for messages
	Group    int    // query heads that share one KV head
	HeadDim  int    // elements of a query or key
	VHeadDim int    // elements of a value or output
	Element  Element
	Rope     rope.Variant // pairing and rotary dim; the angles come with each launch

	PageSize  int  // tokens
	HeadMajor bool // pages are [KV heads][page size][dim], not [page size][KV heads][dim]
	Encoding  Encoding

	Window     int     // a key is seen iff its position is within the last Window positions; 0: no limit
	SinkTokens int     // keys at positions below this are seen whatever the window
	SinkLogits bool    // a launch gives a learned logit for each query head
	SoftCap    float64 // score = cap * tanh(score / cap); 0: none
}

// Element is the type of Q, K, V and the output.
type Element string

const (
	BF16 Element = "bf16"
	FP16 Element = "fp16"
)

// Encoding says at which angle K is stored.
type Encoding string

const (
	Segment Encoding = "segment" // K at its chunk-local position
	Raw     Encoding = "raw"     // K un-rotated
	Baked   Encoding = "baked"   // K at its position in the sequence
)

func (c Config) check() error {
	var errs []error
	for _, size := range []struct {
		name string
		n    int
	}{{"Group", c.Group}, {"HeadDim", c.HeadDim}, {"VHeadDim", c.VHeadDim}, {"PageSize", c.PageSize}} {
		if size.n < 1 || size.n > 1<<16 {
			errs = append(errs, fmt.Errorf("field %s is %d: it must be from 1 to %d", size.name, size.n, 1<<16))
		}
	}
	if n := c.Rope.RotaryDim; n < 0 || n%2 != 0 || n > c.HeadDim {
		errs = append(errs, fmt.Errorf("field Rope.RotaryDim is %d: it must be even, and at most HeadDim, %d", n, c.HeadDim))
	}
	if p := c.Rope.Pairing; c.Rope.RotaryDim > 0 && p != rope.Half && p != rope.Interleaved {
		errs = append(errs, fmt.Errorf("field Rope.Pairing is %q: it must be %s or %s", p, rope.Half, rope.Interleaved))
	}
	if c.Element != BF16 && c.Element != FP16 {
		errs = append(errs, fmt.Errorf("field Element is %q: it must be %s or %s", c.Element, BF16, FP16))
	}
	if e := c.Encoding; e != Segment && e != Raw && e != Baked {
		errs = append(errs, fmt.Errorf("field Encoding is %q: it must be %s, %s or %s", e, Segment, Raw, Baked))
	}
	if c.Window < 0 || c.SinkTokens < 0 || !(c.SoftCap >= 0) {
		errs = append(errs, fmt.Errorf("fields Window %d, SinkTokens %d, SoftCap %g: none may be negative", c.Window, c.SinkTokens, c.SoftCap))
	}
	return errors.Join(errs...)
}

// Kernels launches the kernels of one spec. Its methods are safe for
// concurrent use.
//
// A launch refuses addresses and strides that would end a process's use of a GPU (see
// package abi), unless the head dims are none that a GPU could have. It queues the work
// and returns; what is wrong with a parameter that lies in device memory, such as a
// page index, is reported by the device's Synchronize. No access goes outside the
// allocation that a parameter points into.
type Kernels struct {
	dev    *Device
	config Config
}

// NewKernels returns the kernels of a spec.
func NewKernels(dev *Device, c Config) (*Kernels, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("CPU kernels of %s: %w", c.Name, err)
	}
	return &Kernels{dev: dev, config: c}, nil
}

// Config is what the kernels were made with.
func (k *Kernels) Config() Config { return k.config }

// tileKeys is the number of keys that are turned to float32 at a time.
const tileKeys = 64

// Tile is the rows (query tokens x heads of one KV head) of one work item that
// suit a kind, and the keys of a tile. Items may have other numbers of rows.
func (k *Kernels) Tile(kind abi.Kind) (rows, keys int) {
	switch kind {
	case abi.KindPrefill, abi.KindExtend, abi.KindSharedDecode:
		return max(64, k.config.Group), tileKeys
	case abi.KindDecode:
		return max(16, k.config.Group), tileKeys
	}
	return 0, 0
}

// Append launches append on the stream. With no tokens it does nothing.
func (k *Kernels) Append(s cuda.Stream, p abi.AppendParams) error {
	return k.launch(operation{stream: s, kind: abi.KindAppend, append: p}, p.CheckAligned(), p.Tokens, p.KVHeads)
}

// Prefill launches prefill on the stream. With no items it does nothing.
func (k *Kernels) Prefill(s cuda.Stream, p abi.AttendParams) error {
	return k.attend(s, abi.KindPrefill, p)
}

// Extend launches extend on the stream. With no items it does nothing.
func (k *Kernels) Extend(s cuda.Stream, p abi.AttendParams) error {
	return k.attend(s, abi.KindExtend, p)
}

// Decode launches decode on the stream. With no items it does nothing.
func (k *Kernels) Decode(s cuda.Stream, p abi.AttendParams) error {
	return k.attend(s, abi.KindDecode, p)
}

// SharedDecode launches shared_decode on the stream. With no items it does nothing.
func (k *Kernels) SharedDecode(s cuda.Stream, p abi.AttendParams) error {
	return k.attend(s, abi.KindSharedDecode, p)
}

func (k *Kernels) attend(s cuda.Stream, kind abi.Kind, p abi.AttendParams) error {
	return k.launch(operation{stream: s, kind: kind, attend: p}, p.CheckAligned(), p.ItemCount, p.KVHeads)
}

// Merge launches merge on the stream. With no tokens it does nothing.
func (k *Kernels) Merge(s cuda.Stream, p abi.MergeParams) error {
	return k.launch(operation{stream: s, kind: abi.KindMerge, merge: p}, p.CheckAligned(), p.Tokens, p.QHeads)
}

// Materialise launches materialise on the stream. With no copies it does nothing.
func (k *Kernels) Materialise(s cuda.Stream, p abi.MaterialiseParams) error {
	return k.launch(operation{stream: s, kind: abi.KindMaterialise, materialise: p}, p.CheckAligned(), p.CopyCount, p.KVHeads)
}

// Schedule launches schedule on the stream.
func (k *Kernels) Schedule(s cuda.Stream, p abi.ScheduleParams) error {
	return k.launch(operation{stream: s, kind: abi.KindSchedule, schedule: p}, nil, 1, 1)
}

// maxHeads is the largest grid height of a GPU.
const maxHeads = 65535

// launch queues an operation. misaligned is what a GPU's launcher would refuse it for; no GPU
// has heads of other than multiples of 8 elements.
func (k *Kernels) launch(op operation, misaligned error, count, heads int32) error {
	switch {
	case misaligned != nil && k.config.HeadDim%8 == 0 && k.config.VHeadDim%8 == 0:
		return fmt.Errorf("launch %s of %s: %w", op.kind, k.config.Name, misaligned)
	case count < 0 || heads < 1 || heads > maxHeads:
		return fmt.Errorf("launch %s of %s: a grid of %d by %d", op.kind, k.config.Name, count, heads)
	case count == 0:
		return nil
	}
	op.kernels = k
	op.tasks = int(count)
	if err := k.dev.enqueue(op); err != nil {
		return fmt.Errorf("launch %s of %s: %w", op.kind, k.config.Name, err)
	}
	return nil
}
