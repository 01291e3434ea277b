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

// row folds the partial results of one token's one head.
func (j *mergeJob) row(w *worker, t, begin, end, h int64) error {
	dim, heads := int64(j.config.VHeadDim), int64(j.p.QHeads)
	w.folder.parts = 0
	for slot := begin; ; slot++ {
		w.result.grow(1, int(dim))
		var err error
		if w.result.lse[0], err = j.partialLSE.float32(slot*heads + h); err != nil {
			return err
		}
		if err := j.partialOut.float32s(w.result.output, (slot*heads+h)*dim); err != nil {
			return err
		}
		if slot+1 == end {
			break
		}
		w.folder.add(&w.result)
	}
	w.folder.last(&w.result)
	state, output := folded(w.result.lse[0]), w.result.output
	sink := negativeInfinity
	if j.config.SinkLogits {
		logit, err := j.sinks.float32(h)
		if err != nil {
			return err
		}
		sink = logit * math.Log2E
	}
	scale(output, state.normaliser(1, sink))
	out, err := j.out.at(elementBytes*(t*int64(j.p.OutTokenStride)+h*dim), elementBytes*dim)
	if err != nil {
		return err
	}
	j.config.Element.store(out, output)
	if j.p.LSE == 0 {
		return nil
	}
	return j.lse.putFloat32(t*heads+h, state.logSumExp2(1)*ln2)
}
