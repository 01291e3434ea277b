package cpu

import (
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/rope"
)

// rotation turns vectors by angles from a launch's table.
type rotation struct {
	table       region // rope.Table of the variant
	pairs       int
	interleaved bool
}

func (c Config) rotation(table region) rotation {
	return rotation{table, c.Rope.RotaryDim / 2, c.Rope.Pairing == rope.Interleaved}
}

// angles fills cos and sin [pairs] for a position, multiplied by factor.
func (r rotation) angles(a *angles, position int64, factor float32) error {
	a.cos, a.sin = grow(a.cos, r.pairs), grow(a.sin, r.pairs)
	a.low, a.high = grow(a.low, 2*r.pairs), grow(a.high, 2*r.pairs)
	if r.pairs == 0 {
		return nil
	}
	magnitude, sign := position, factor
	if position < 0 {
		magnitude, sign = -position, -factor
	}
	const lowRows = 1 << abi.RopeLowBits
	row := int64(2 * r.pairs)
	err := r.table.float32s(a.low, magnitude%lowRows*row)
	if err == nil {
		err = r.table.float32s(a.high, (lowRows+magnitude/lowRows)*row)
	}
	if err != nil {
		return fmt.Errorf("the angle of position %d: %w", position, err)
	}
	for t := range a.cos {
		lc, ls, hc, hs := a.low[2*t], a.low[2*t+1], a.high[2*t], a.high[2*t+1]
		a.cos[t] = (hc*lc - hs*ls) * factor
		a.sin[t] = (hs*lc + hc*ls) * sign
	}
	return nil
}

// angles are the cosines and sines of one position; low and high are its rows
// of the table.
type angles struct {
	cos, sin, low, high []float32
}

// turn rotates x and rounds what it rotated.
func (r rotation) turn(x []float32, a *angles, e Element) {
	if r.pairs == 0 {
		return
	}
	cos, sin := a.cos, a.sin
	if r.interleaved {
		for t, c := range cos {
			s := sin[t]
			u, v := x[2*t], x[2*t+1]
			x[2*t], x[2*t+1] = u*c-v*s, v*c+u*s
		}
	} else {
		first, second := x[:len(cos)], x[len(cos):2*len(cos)]
		for t, c := range cos {
			s := sin[t]
			u, v := first[t], second[t]
			first[t], second[t] = u*c-v*s, v*c+u*s
		}
	}
	e.round(x[:2*len(cos)])
}

// grow returns a slice of n elements, s itself where it is long enough.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
