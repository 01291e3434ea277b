package demo

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// workload is what is asked for.
type workload struct {
	Options
	lengths  []int   // tokens of each document
	requests [][]int // documents of each request, in order
}

func newWorkload(o Options) workload {
	rng := rand.New(rand.NewPCG(o.Seed, 0))
	w := workload{Options: o}
	for range o.Documents {
		w.lengths = append(w.lengths, o.Shortest+rng.IntN(o.Longest-o.Shortest+1))
	}
	for range o.Requests {
		w.requests = append(w.requests, draw(rng, o))
	}
	return w
}

// draw takes different documents, one after the other, each in proportion to
// its weight among those left: those with the largest log weight plus Gumbel noise.
func draw(rng *rand.Rand, o Options) []int {
	documents, keys := make([]int, o.Documents), make([]float64, o.Documents)
	for i := range documents {
		documents[i] = i
		keys[i] = -o.Zipf*math.Log(float64(i+1)) - math.Log(rng.ExpFloat64())
	}
	slices.SortFunc(documents, func(a, b int) int { return cmp.Compare(keys[b], keys[a]) })
	return documents[:o.PerRequest]
}

// tokens is the length of a request's documents together.
func (w workload) tokens(request int) int {
	n := 0
	for _, document := range w.requests[request] {
		n += w.lengths[document]
	}
	return n
}

// used is the documents that some request has.
func (w workload) used() []int {
	var all []int
	for _, r := range w.requests {
		all = append(all, r...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// checked says whether a request is one of those to compare with the oracle:
// they are spread over the workload.
func (w workload) checked(request int) bool {
	n := min(w.Check, w.Requests)
	return request*n/w.Requests != (request+1)*n/w.Requests
}
