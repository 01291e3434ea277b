package verify_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/rope"
)

// goKernels are the kernels as plain Go: float32 arithmetic, rounded where a
// GPU kernel rounds. fault breaks them in one way.
type goKernels struct {
	dev    *hostDevice
	spec   spec.Spec
	format numeric.Format
	keys   int
	fault  fault
	calls  *atomic.Int64
}

type fault string

var _ verify.Launcher = goKernels{}

// guarded turns an access outside memory into an error, as a device does.
func guarded(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	f()
	return nil
}

func (g goKernels) load(p abi.DevicePtr, element, n int) []float32 {
	row := g.dev.bytes(p+abi.DevicePtr(2*element), 2*n)
	x := make([]float32, n)
	values := &valuesBF16
	if g.format == numeric.FP16 {
		values = &valuesFP16
	}
	for i := range x {
		x[i] = values[binary.LittleEndian.Uint16(row[2*i:])]
	}
	return x
}

// Every value of a format: most of a test's time would go to computing them.
var valuesBF16, valuesFP16 = allValues(numeric.BF16), allValues(numeric.FP16)

func allValues(f numeric.Format) (values [1 << 16]float32) {
	for b := range values {
		values[b] = float32(f.Value(uint16(b)))
	}
	return values
}

func (g goKernels) store(p abi.DevicePtr, element int, x []float32) {
	g.format.Encode(g.dev.bytes(p+abi.DevicePtr(2*element), 2*len(x))[:0], widen(x)...)
}

func (g goKernels) round(x []float32) {
	for i := range x {
		x[i] = float32(g.format.Round(float64(x[i])))
	}
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

// rotate turns x in place by the two-level table.
func (g goKernels) rotate(table abi.DevicePtr, x []float32, position int, scale float32) {
	if g.fault == "not rotated" {
		return
	}
	n := g.spec.Rope.RotaryDim
	sign := float32(1)
	if position < 0 {
		position, sign = -position, -1
	}
	if g.fault == "angle sign" {
		sign = -sign
	}
	low, high := position&(1<<abi.RopeLowBits-1), position>>abi.RopeLowBits
	if g.fault == "high level of the table" {
		high = 0
	}
	for t := range n / 2 {
		a := 2 * (low*n/2 + t)
		b := 2 * ((1<<abi.RopeLowBits+high)*n/2 + t)
		ca, sa := g.dev.float32At(table, a), g.dev.float32At(table, a+1)
		cb, sb := g.dev.float32At(table, b), g.dev.float32At(table, b+1)
		cos, sin := (ca*cb-sa*sb)*scale, (sa*cb+ca*sb)*scale*sign
		i, j := t, t+n/2
		if (g.spec.Rope.Pairing == rope.Interleaved) != (g.fault == "pairing") {
			i, j = 2*t, 2*t+1
		}
		x[i], x[j] = x[i]*cos-x[j]*sin, x[j]*cos+x[i]*sin
	}
}

// element is the index of a row in a cache.
func (g goKernels) element(page, place, head, heads, dim int) int {
	size := g.spec.Cache.PageSize
	if (g.spec.Cache.Layout == spec.HND) != (g.fault == "layout") {
		return ((page*heads+head)*size + place) * dim
	}
	return ((page*size+place)*heads + head) * dim
}

func (g goKernels) Prefill(_ cuda.Stream, p abi.AttendParams) error {
	return guarded(func() { g.attend(p) })
}
func (g goKernels) Extend(_ cuda.Stream, p abi.AttendParams) error {
	return guarded(func() { g.attend(p) })
}
func (g goKernels) Decode(_ cuda.Stream, p abi.AttendParams) error {
	return guarded(func() { g.attend(p) })
}

func (g goKernels) SharedDecode(_ cuda.Stream, p abi.AttendParams) error {
	return guarded(func() { g.attend(p) })
}

// member is an item's query token i and its slot, for kinds without members too.
func (g goKernels) member(p abi.AttendParams, item abi.Item, i int) (token, slot int) {
	token, slot = int(item.QBegin)+i, int(item.Slot)+i*int(item.SlotStride)
	if item.Slot == abi.Final {
		slot = abi.Final
	}
	if p.Members == 0 {
		return token, slot
	}
	members := structs[abi.Member](g.dev, p.Members+abi.DevicePtr(8*item.QBegin), int(item.QCount))
	token, slot = int(members[i].Token), int(members[i].Slot)
	if g.fault == "slot of another member" {
		slot = int(members[len(members)-1-i].Slot)
	}
	return token, slot
}

// offset is where the run's segment stands for the item's query token i.
func (g goKernels) offset(p abi.AttendParams, run abi.Run, i int) int {
	if p.Members == 0 {
		return int(run.Offset)
	}
	if g.fault == "offset of the first member" {
		i = 0
	}
	return int(g.dev.int32At(p.MemberOffsets, int(run.Offset)+i))
}

func (g goKernels) attend(p abi.AttendParams) {
	g.calls.Add(1)
	runs := 0
	items := structs[abi.Item](g.dev, p.Items, int(p.ItemCount))
	for _, item := range items {
		runs = max(runs, int(item.RunEnd))
	}
	list := structs[abi.Run](g.dev, p.Runs, runs)
	for _, item := range items {
		for i := range item.QCount {
			for h := range int(p.KVHeads) * g.spec.Model.Group() {
				g.row(p, item, list[item.RunBegin:item.RunEnd], int(i), h)
			}
		}
	}
}

// row is one row of an item: softmax as the keys come.
func (g goKernels) row(p abi.AttendParams, item abi.Item, runs []abi.Run, i, h int) {
	dim, vDim, masks := g.spec.Model.HeadDim, g.spec.Model.VHeadDim, g.spec.Masks
	heads := int(p.KVHeads) * g.spec.Model.Group()
	kvHead := h / g.spec.Model.Group()
	if g.fault == "group mapping" {
		kvHead = h % int(p.KVHeads)
	}
	token, slot := g.member(p, item, i)
	position := int(g.dev.int32At(p.Positions, token))
	q := g.load(p.Q, token*int(p.QTokenStride)+h*dim, dim)
	out := make([]float32, vDim)
	largest, sum := float32(math.Inf(-1)), float32(0)
	for n, run := range runs {
		if g.fault == "last run missed" && n > 0 && n == len(runs)-1 {
			continue
		}
		qr := append([]float32(nil), q...)
		angle, offset, shared := position, g.offset(p, run, i), p.Members != 0
		relative := g.spec.Cache.Encoding == spec.Segment || shared && g.spec.Cache.Encoding == spec.Raw
		if relative && g.fault != "offset ignored" {
			angle -= offset
		}
		if g.fault == "position of the first row" && !shared {
			angle += int(g.dev.int32At(p.Positions, int(item.QBegin))) - position
		}
		g.rotate(p.Rope, qr, angle, p.RopeScale)
		g.round(qr)
		for begin := run.Begin; begin < run.End; begin += int32(g.keys) {
			end := min(begin+int32(g.keys), run.End)
			if g.fault == "last key of a tile missed" && end-begin == int32(g.keys) {
				end--
			}
			if g.fault == "ragged tail" && end == run.End && (end-begin)%8 == 1 {
				end++
			}
			var scores []float32
			var rows []int
			tileMax := largest
			for l := begin; l < end; l++ {
				causal := item.QIndex + int32(i) + run.Causal
				if g.fault == "causal off by one" && run.Causal != abi.Visible {
					causal--
				}
				key := offset + int(l)
				window := position-key < masks.Window
				if g.fault == "window off by one" {
					window = position-key <= masks.Window
				}
				sinks := masks.SinkTokens
				if g.fault == "a sink token too many" {
					sinks++
				}
				if l > causal || masks.Window > 0 && !window && key >= sinks {
					continue
				}
				page, place := int(l)/g.spec.Cache.PageSize, int(l)%g.spec.Cache.PageSize
				if g.fault == "page of the run's begin" {
					page = int(run.Begin) / g.spec.Cache.PageSize
				}
				entry := int(g.dev.int32At(p.PageTable, int(run.Page)+page))
				k := g.load(p.KCache, g.element(entry, place, kvHead, int(p.KVHeads), dim), dim)
				if g.spec.Cache.Encoding == spec.Raw {
					if relative {
						g.rotate(p.Rope, k, int(l), 1)
					} else {
						g.rotate(p.Rope, k, key, 1)
					}
					g.round(k)
				}
				s := float32(0)
				for d := range k {
					s += qr[d] * k[d]
				}
				s *= p.Scale
				if g.fault == "scores one percent too large" {
					s *= 1.01
				}
				if masks.SoftCap != 0 && g.fault != "soft cap" {
					height := masks.SoftCap
					if g.fault == "soft cap three percent too high" {
						height *= 1.03
					}
					s = float32(height * math.Tanh(float64(s)/height))
				}
				scores = append(scores, s)
				rows = append(rows, g.element(entry, place, kvHead, int(p.KVHeads), vDim))
				tileMax = max(tileMax, s)
			}
			rescale := float32(math.Exp(float64(largest - tileMax)))
			if math.IsInf(float64(tileMax), -1) {
				continue
			}
			largest = tileMax
			sum *= rescale
			if g.fault == "no rescale" {
				rescale = 1
			}
			for d := range out {
				out[d] *= rescale
			}
			for j, s := range scores {
				e := float32(math.Exp(float64(s - largest)))
				sum += e
				w := float32(g.format.Round(float64(e)))
				if g.fault == "coarse weights" {
					w = float32(numeric.BF16.Round(math.Round(float64(e)*160) / 160))
				}
				for d, v := range g.load(p.VCache, rows[j], vDim) {
					out[d] += w * v
					if g.fault == "output sums of fp16" && math.Abs(float64(out[d])) > 65504 {
						out[d] = float32(math.Inf(1))
					}
				}
			}
		}
	}
	if g.fault == "row not written" && item.QCount > 1 && i == int(item.QCount)-1 && h == heads-1 {
		return
	}
	g.finish(p, token, slot, h, heads, out, largest, sum)
}

// finish writes a row: final, or partial.
func (g goKernels) finish(p abi.AttendParams, token, slot, h, heads int, out []float32, largest, sum float32) {
	lse := largest + float32(math.Log(float64(sum)))
	if sum == 0 {
		lse = float32(math.Inf(-1))
		if g.fault == "LSE of no key" && slot == abi.Final {
			lse = -1e30
		}
	}
	denominator := sum
	if slot == abi.Final && p.SinkLogits != 0 && g.fault != "sink logit" {
		denominator += float32(math.Exp(float64(g.dev.float32At(p.SinkLogits, h) - largest)))
	}
	for d := range out {
		if sum > 0 {
			out[d] /= denominator
		}
		if g.fault == "different every time" {
			out[d] *= 1 + float32(g.calls.Load()%64)/128
		}
		if g.fault == "values one percent too large" {
			out[d] *= 1.01
		}
		if g.fault == "depends on the batch" {
			out[d] *= 1 + float32(p.ItemCount)/100
		}
	}
	vDim := len(out)
	if slot != abi.Final {
		row := slot*heads + h
		for d := range out {
			g.dev.putFloat32(p.PartialOut, row*vDim+d, out[d])
		}
		if g.fault != "partial LSE base e" {
			lse *= math.Log2E
		}
		g.dev.putFloat32(p.PartialLSE, row, lse)
		return
	}
	if g.fault == "writes past the row" {
		out = append(out, 0)
	}
	g.store(p.Out, token*int(p.OutTokenStride)+h*vDim, out)
	if p.LSE != 0 {
		if g.fault == "LSE base 2" {
			lse *= math.Log2E
		}
		g.dev.putFloat32(p.LSE, token*heads+h, lse)
	}
}

func (g goKernels) Append(_ cuda.Stream, p abi.AppendParams) error {
	return guarded(func() {
		dim, vDim, size := g.spec.Model.HeadDim, g.spec.Model.VHeadDim, g.spec.Cache.PageSize
		for t := range int(p.Tokens) {
			slot := int(g.dev.int32At(p.Slots, t))
			if slot < 0 && g.fault != "skipped token" {
				continue
			}
			slot = max(slot, 0)
			for h := range int(p.KVHeads) {
				k := g.load(p.K, t*int(p.KTokenStride)+h*dim, dim)
				if g.spec.Cache.Encoding != spec.Raw {
					g.rotate(p.Rope, k, int(g.dev.int32At(p.Positions, t)), 1)
				}
				v := g.load(p.V, t*int(p.VTokenStride)+h*vDim, vDim)
				g.store(p.KCache, g.element(slot/size, slot%size, h, int(p.KVHeads), dim), k)
				g.store(p.VCache, g.element(slot/size, slot%size, h, int(p.KVHeads), vDim), v)
			}
		}
	})
}

func (g goKernels) Merge(_ cuda.Stream, p abi.MergeParams) error {
	return guarded(func() {
		vDim, heads := g.spec.Model.VHeadDim, int(p.QHeads)
		for t := range int(p.Tokens) {
			begin, end := int(g.dev.int32At(p.SlotBegin, t)), int(g.dev.int32At(p.SlotBegin, t+1))
			if begin == end {
				continue
			}
			if g.fault == "last split missed" && end-begin > 1 {
				end--
			}
			for h := range heads {
				out, largest, sum := make([]float32, vDim), float32(math.Inf(-1)), float32(0)
				for slot := begin; slot < end; slot++ {
					largest = max(largest, g.dev.float32At(p.PartialLSE, slot*heads+h))
				}
				for slot := begin; slot < end && !math.IsInf(float64(largest), -1); slot++ {
					w := float32(math.Exp2(float64(g.dev.float32At(p.PartialLSE, slot*heads+h) - largest)))
					sum += w
					for d := range out {
						out[d] += w * g.dev.float32At(p.PartialOut, (slot*heads+h)*vDim+d)
					}
				}
				denominator := sum
				if p.SinkLogits != 0 && g.fault != "sink logit" {
					denominator += float32(math.Exp2(float64(g.dev.float32At(p.SinkLogits, h)*math.Log2E - largest)))
				}
				for d := range out {
					if sum > 0 {
						out[d] /= denominator
					}
				}
				g.store(p.Out, t*int(p.OutTokenStride)+h*vDim, out)
				if p.LSE == 0 {
					continue
				}
				lse := float32((float64(largest) + math.Log2(float64(sum))) * math.Ln2)
				if g.fault == "LSE of no key" && sum == 0 {
					lse = -1e30
				}
				g.dev.putFloat32(p.LSE, t*heads+h, lse)
			}
		}
	})
}

func (g goKernels) Materialise(_ cuda.Stream, p abi.MaterialiseParams) error {
	return guarded(func() {
		dim, vDim, size := g.spec.Model.HeadDim, g.spec.Model.VHeadDim, g.spec.Cache.PageSize
		for _, c := range structs[abi.Copy](g.dev, p.Copies, int(p.CopyCount)) {
			for i := range int(c.Count) {
				src, dst := int(c.SrcBegin)+i, int(c.DstBegin)+i
				if g.fault == "begin of a copy" {
					src = i
				}
				from := int(g.dev.int32At(p.PageTable, int(c.SrcPage)+src/size))
				to := int(c.DstPage) + dst/size // the page itself, without V
				if p.DstV != 0 {
					to = int(g.dev.int32At(p.PageTable, to))
				}
				for h := range int(p.KVHeads) {
					k := g.load(p.SrcK, g.element(from, src%size, h, int(p.KVHeads), dim), dim)
					switch g.spec.Cache.Encoding {
					case spec.Segment:
						g.rotate(p.Rope, k, int(c.Offset), 1)
					case spec.Raw:
						g.rotate(p.Rope, k, int(c.Offset)+src, 1)
					}
					g.store(p.DstK, g.element(to, dst%size, h, int(p.KVHeads), dim), k)
					if p.DstV == 0 {
						continue
					}
					v := g.load(p.SrcV, g.element(from, src%size, h, int(p.KVHeads), vDim), vDim)
					g.store(p.DstV, g.element(to, dst%size, h, int(p.KVHeads), vDim), v)
				}
			}
		}
	})
}
