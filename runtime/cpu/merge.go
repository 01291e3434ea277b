package cpu

import (
	"fmt"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
)

// mergeJob is a launch of merge. A task is one token.
type mergeJob struct {
	config Config
	p      abi.MergeParams

	partialOut, partialLSE, out, lse, slotBegin, sinks region
}

func (j *mergeJob) run(d *Device, op *operation) error {
	p := op.merge
	l := regions{memory: &d.memory}
	*j = mergeJob{
		config: op.kernels.config, p: p,
		partialOut: l.of("PartialOut", p.PartialOut), partialLSE: l.of("PartialLSE", p.PartialLSE), out: l.of("Out", p.Out),
		lse: l.of("LSE", p.LSE), slotBegin: l.of("SlotBegin", p.SlotBegin), sinks: l.of("SinkLogits", p.SinkLogits),
	}
	if l.err != nil {
		return l.err
	}
	return d.pool.run(j, op.tasks)
}

func (j *mergeJob) task(w *worker, t int) error {
	begin, err := j.slotBegin.int32(int64(t))
	if err != nil {
		return err
	}
	end, err := j.slotBegin.int32(int64(t) + 1)
	if err != nil || begin >= end {
		return err
	}
	for h := range int(j.p.QHeads) {
		if err := j.row(w, int64(t), int64(begin), int64(end), int64(h)); err != nil {
			return fmt.Errorf("token %d, slots %d to %d, head %d: %w", t, begin, end, h, err)
		}
	}
	return nil
}

// row joins the partial results of one token's one head: their weights are
// 2 to the power of their log-sum-exps, to base 2.
func (j *mergeJob) row(w *worker, t, begin, end, h int64) error {
	dim, heads := int64(j.config.VHeadDim), int64(j.p.QHeads)
	state := rowState{maximum: negativeInfinity}
	for slot := begin; slot < end; slot++ {
		lse, err := j.partialLSE.float32(slot*heads + h)
		if err != nil {
			return err
		}
		state.maximum = max(state.maximum, lse)
	}
	w.output, w.value = grow(w.output, int(dim)), grow(w.value, int(dim))
	clear(w.output)
	for slot := begin; slot < end; slot++ {
		lse, err := j.partialLSE.float32(slot*heads + h)
		if err != nil {
			return err
		}
		if lse == negativeInfinity { // this split saw no key
			continue
		}
		if err := j.partialOut.float32s(w.value, (slot*heads+h)*dim); err != nil {
			return err
		}
		weight := exp2(lse - state.maximum)
		state.sum += weight
		for d, x := range w.value {
			w.output[d] += x * weight
		}
	}
	sink := negativeInfinity
	if j.config.SinkLogits {
		logit, err := j.sinks.float32(h)
		if err != nil {
			return err
		}
		sink = logit * math.Log2E
	}
	normaliser := state.normaliser(1, sink)
	for d := range w.output {
		w.output[d] *= normaliser
	}
	out, err := j.out.at(elementBytes*(t*int64(j.p.OutTokenStride)+h*dim), elementBytes*dim)
	if err != nil {
		return err
	}
	j.config.Element.store(out, w.output)
	if j.p.LSE == 0 {
		return nil
	}
	return j.lse.putFloat32(t*heads+h, state.logSumExp2(1)*ln2)
}
