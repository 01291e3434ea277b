package cpu

import (
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
)

// materialiseJob is a launch of materialise. A task is one copy.
type materialiseJob struct {
	config Config
	p      abi.MaterialiseParams

	copies                 region
	srcK, srcV, dstK, dstV cache
	rotation               rotation
}

func (j *materialiseJob) run(d *Device, op *operation) error {
	c, p := op.kernels.config, op.materialise
	l := regions{memory: &d.memory}
	table := l.of("PageTable", p.PageTable)
	*j = materialiseJob{
		config: c, p: p, copies: l.of("Copies", p.Copies),
		srcK: c.cache(l.of("SrcK", p.SrcK), table, c.HeadDim, p.KVHeads),
		dstK: c.cache(l.of("DstK", p.DstK), table, c.HeadDim, p.KVHeads),
	}
	if !j.keysAlone() {
		j.srcV = c.cache(l.of("SrcV", p.SrcV), table, c.VHeadDim, p.KVHeads)
		j.dstV = c.cache(l.of("DstV", p.DstV), table, c.VHeadDim, p.KVHeads)
	}
	if c.Encoding != Baked {
		j.rotation = c.rotation(l.of("Rope", p.Rope))
	}
	if l.err != nil {
		return l.err
	}
	return d.pool.run(j, op.tasks)
}

// keysAlone reports a launch that rotates keys ahead: see [abi.MaterialiseParams].
func (j *materialiseJob) keysAlone() bool { return j.p.DstV == 0 }

func (j *materialiseJob) task(w *worker, i int) error {
	c, err := j.copies.copyItem(int64(i))
	if err != nil {
		return err
	}
	if c.SrcBegin < 0 || c.DstBegin < 0 || c.Count < 0 {
		return fmt.Errorf("copy %d: SrcBegin %d, DstBegin %d, Count %d: none may be negative", i, c.SrcBegin, c.DstBegin, c.Count)
	}
	w.key = grow(w.key, j.config.HeadDim)
	for t := range int64(c.Count) {
		if err := j.token(w, c, t); err != nil {
			return fmt.Errorf("copy %d: token %d: %w", i, t, err)
		}
	}
	return nil
}

func (j *materialiseJob) token(w *worker, c abi.Copy, t int64) error {
	from, to := int64(c.SrcBegin)+t, int64(c.DstBegin)+t
	lacking := int64(c.Offset) // of the angle of the stored K
	if j.config.Encoding == Raw {
		lacking += from
	}
	if j.config.Encoding == Raw || t == 0 {
		if err := j.rotation.angles(&w.angles, lacking, 1); err != nil {
			return err
		}
	}
	for h := range int(j.p.KVHeads) {
		k, err := j.srcK.token(c.SrcPage, from, h)
		if err != nil {
			return err
		}
		if j.keysAlone() {
			toK, err := j.dstK.slot(int64(c.DstPage)+to/j.dstK.pageSize, to%j.dstK.pageSize, h)
			if err != nil {
				return err
			}
			j.rotation.move(toK, k, w, j.config.Element)
			continue
		}
		v, err := j.srcV.token(c.SrcPage, from, h)
		if err != nil {
			return err
		}
		toK, err := j.dstK.token(c.DstPage, to, h)
		if err != nil {
			return err
		}
		toV, err := j.dstV.token(c.DstPage, to, h)
		if err != nil {
			return err
		}
		j.rotation.move(toK, k, w, j.config.Element)
		copy(toV, v)
	}
	return nil
}
