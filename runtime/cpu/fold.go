package cpu

// results are what some rows have of some keys.
type results struct {
	output []float32 // [rows][v head dim], divided by the sum of the weights
	lse    []float32 // [rows], base 2
}

func (r *results) grow(rows, dim int) {
	r.output, r.lse = grow(r.output, rows*dim), grow(r.lse, rows)
}

// fold makes r what a and r, a before r, fold into: see [abi.Item]. The conversions keep
// products and sums apart: r has the same bits wherever it is folded.
func (r *results) fold(a results) {
	dim := len(r.output) / len(r.lse)
	for i := range r.lse {
		x, y := a.output[i*dim:][:dim], r.output[i*dim:][:dim]
		top := max(a.lse[i], r.lse[i])
		if top == negativeInfinity {
			clear(y)
			continue
		}
		wx, wy := exp2(a.lse[i]-top), exp2(r.lse[i]-top)
		sum := wx + wy
		wx, wy = wx/sum, wy/sum
		for d := range y {
			y[d] = float32(x[d]*wx) + float32(y[d]*wy)
		}
		r.lse[i] = top + log2(sum)
	}
}

// folder folds the results of parts in the order of [abi.Item].
type folder struct {
	parts  uint      // so far
	levels []results // of which those are in use that are bits of parts
}

// add takes the results of a part that is not the last, and leaves memory of no meaning.
func (f *folder) add(r *results) {
	level := 0
	for ; f.parts>>level&1 != 0; level++ {
		r.fold(f.levels[level])
	}
	if level == len(f.levels) {
		f.levels = append(f.levels, results{})
	}
	f.levels[level], *r = *r, f.levels[level]
	f.parts++
}

// last folds the results of all parts into those of the last.
func (f *folder) last(r *results) {
	for level := range f.levels {
		if f.parts>>level&1 != 0 {
			r.fold(f.levels[level])
		}
	}
}

// folded is the state of a row with the results of parts that were folded.
func folded(lse float32) rowState {
	if lse == negativeInfinity {
		return rowState{maximum: lse}
	}
	return rowState{maximum: lse, sum: 1}
}
