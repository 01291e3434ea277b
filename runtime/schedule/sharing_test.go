package schedule_test

import (
	"math/rand/v2"

	"github.com/kgen-project/kgen/runtime/schedule"
)

// sharedOptions are those of Llama-3-8B on an H200.
func sharedOptions() schedule.SharedOptions {
	return schedule.SharedOptions{Rows: 128, Keys: 128, Blocks: 132, KVHeads: 8}
}

// zipf is sequences in decode that hold documents of 512 tokens of 1000, the
// first of them the most popular, and 100 own tokens.
func zipf(rng *rand.Rand, n, each int) []schedule.Sequence {
	popularity := rand.NewZipf(rng, 1.07, 1, 999)
	sequences := make([]schedule.Sequence, n)
	for i := range sequences {
		s := &sequences[i]
		s.QueryBegin = int32(i)
		offset := int32(0)
		for range each {
			s.Segments = append(s.Segments, schedule.Segment{Page: int32(popularity.Uint64()) * 32, Tokens: 512, Offset: offset})
			offset += 512
		}
		s.Segments = append(s.Segments, schedule.Segment{Page: int32(32000 + 7*i), Tokens: 100, Offset: offset, Own: true})
		s.Positions = []int32{offset + 99}
	}
	return sequences
}

// randomSharing makes sequences that hold some of a few chunks, any of them twice, and
// own tokens. Page table indices may be those of two chunks of different lengths.
func randomSharing(rng *rand.Rand, sequences int) ([]schedule.Sequence, schedule.Options, schedule.SharedOptions) {
	o := schedule.Options{Group: 1 + rng.IntN(4), Causal: rng.IntN(2) == 0, MaxPosition: 4000}
	o.Rows = o.Group + rng.IntN(9)
	if rng.IntN(3) == 0 {
		o.Window, o.SinkTokens = 1+rng.IntN(500), rng.IntN(30)
	}
	if rng.IntN(2) == 0 {
		o.SplitTokens, o.MaxItems = 1+rng.IntN(20), rng.IntN(4)
	}
	if rng.IntN(2) == 0 {
		o.PageSize = 1 << rng.IntN(5)
	}
	s := schedule.SharedOptions{
		Rows: o.Group + rng.IntN(40), Keys: 1 << rng.IntN(6), Blocks: 1 + rng.IntN(20), KVHeads: 1 + rng.IntN(4), Bitwise: rng.IntN(2) == 0,
	}
	type chunk struct{ page, tokens int32 }
	var chunks []chunk
	page := int32(0)
	for range 1 + rng.IntN(5) {
		c := chunk{page, rng.Int32N(200)}
		chunks = append(chunks, c)
		if rng.IntN(8) == 0 {
			chunks = append(chunks, chunk{page, rng.Int32N(200)})
		}
		page += 200
	}
	most := 1 + rng.IntN(len(chunks)+2)
	var all []schedule.Sequence
	query := int32(0)
	common := rng.IntN(len(chunks)) // that they hold in the same order
	for range 1 + rng.IntN(sequences) {
		query += rng.Int32N(2)
		sequence := schedule.Sequence{QueryBegin: query}
		at := rng.Int32N(1000)
		for range 1 + max(0, rng.IntN(6)-3) {
			sequence.Positions = append(sequence.Positions, at+rng.Int32N(1000))
		}
		query += int32(len(sequence.Positions))
		place := func(c chunk) {
			sequence.Segments = append(sequence.Segments, schedule.Segment{Page: c.page, Tokens: c.tokens, Offset: at + rng.Int32N(900)})
		}
		for _, c := range chunks[:common] {
			place(c)
		}
		for range rng.IntN(most) {
			place(chunks[rng.IntN(len(chunks))])
		}
		if rng.IntN(10) > 0 {
			n := int32(len(sequence.Positions)) + rng.Int32N(30)
			sequence.Segments = append(sequence.Segments, schedule.Segment{Page: page, Tokens: n, Offset: at + 500, Own: true})
			page += n
		}
		all = append(all, sequence)
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, o, s
}
