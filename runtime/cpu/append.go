package cpu

import (
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
)

// appendJob is a launch of append. A task is one token.
type appendJob struct {
	config Config
	p      abi.AppendParams

	k, v, slots, positions region
	keys, values           cache
	rotation               rotation
}

func (j *appendJob) run(d *Device, op *operation) error {
	c, p := op.kernels.config, op.append
	l := regions{memory: &d.memory}
	*j = appendJob{
		config: c, p: p, k: l.of("K", p.K), v: l.of("V", p.V),
		slots: l.of("Slots", p.Slots), positions: l.of("Positions", p.Positions),
		keys:   c.cache(l.of("KCache", p.KCache), region{}, c.HeadDim, p.KVHeads),
		values: c.cache(l.of("VCache", p.VCache), region{}, c.VHeadDim, p.KVHeads),
	}
	if c.Encoding != Raw {
		j.rotation = c.rotation(l.of("Rope", p.Rope))
	}
	if l.err != nil {
		return l.err
	}
	return d.pool.run(j, op.tasks)
}

func (j *appendJob) task(w *worker, t int) error {
	slot, err := j.slots.int32(int64(t))
	if err != nil || slot < 0 {
		return err
	}
	if err := j.token(w, int64(t), int64(slot)); err != nil {
		return fmt.Errorf("token %d in slot %d: %w", t, slot, err)
	}
	return nil
}

func (j *appendJob) token(w *worker, t, slot int64) error {
	if j.config.Encoding != Raw {
		position, err := j.positions.int32(t)
		if err != nil {
			return err
		}
		if err := j.rotation.angles(&w.angles, int64(position), 1); err != nil {
			return err
		}
	}
	dim, vDim, size := int64(j.config.HeadDim), int64(j.config.VHeadDim), int64(j.config.PageSize)
	w.key = grow(w.key, int(dim))
	for h := range int(j.p.KVHeads) {
		k, err := j.k.at(elementBytes*(t*int64(j.p.KTokenStride)+int64(h)*dim), elementBytes*dim)
		if err != nil {
			return err
		}
		v, err := j.v.at(elementBytes*(t*int64(j.p.VTokenStride)+int64(h)*vDim), elementBytes*vDim)
		if err != nil {
			return err
		}
		toK, err := j.keys.slot(slot/size, slot%size, h)
		if err != nil {
			return err
		}
		toV, err := j.values.slot(slot/size, slot%size, h)
		if err != nil {
			return err
		}
		j.rotation.move(toK, k, w, j.config.Element)
		copy(toV, v)
	}
	return nil
}

// move copies a stored vector and turns it by w.angles. What is not rotated
// keeps its bits.
func (r rotation) move(dst, src []byte, w *worker, e Element) {
	copy(dst, src)
	if r.pairs == 0 {
		return
	}
	x := w.key[:2*r.pairs]
	e.load(x, src)
	r.turn(x, &w.angles, e)
	e.store(dst, x)
}
