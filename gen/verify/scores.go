package verify

import (
	"math"
	"math/rand/v2"

	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/tests/oracle"
)

// loudness is what scores deviate by where elements of queries and keys do by 1. Queries are drawn
// smaller for it: of scores far apart a weight is all, and the errors of a few rows are all that counts.
func (d dice) loudness() float64 {
	return math.Abs(d.spec.Scale) * math.Sqrt(float64(d.spec.Model.HeadDim))
}

// sharpScores is the deviation of scores in sharp cases.
const sharpScores = 64

// mostLoudness is as far as queries are drawn smaller, which leaves those of fp16 normal numbers.
const mostLoudness = 64

// nearCap turns half of the query rows to a key that they see, for a score of once to twice the
// soft cap. It outweighs the others, so that the LSE is the capped score. By chance no score is
// there: those of large queries are, but by bounds as large as the scores' rounding errors.
func (d dice) nearCap(c *attendCase) {
	d.turnRows(c, func() (score float64, turns bool) {
		if d.oneIn(2) {
			return 0, false
		}
		return d.spec.Masks.SoftCap * (1 + d.Float64()), true
	})
}

// lateMaxima makes the scores of a sharp case small, but for one row of 16, which it turns to a key that it sees, for
// a score that the first keys' do not foretell. It draws from the case's layout seed, which moves nothing else.
func (d dice) lateMaxima(c *attendCase) {
	d.Rand = rand.New(rand.NewPCG(c.layoutSeed, sharpScores))
	for i := range c.q {
		c.q[i] /= sharpScores
	}
	d.turnRows(c, func() (score float64, turns bool) { return sharpScores, d.oneIn(16) })
}

// turnRows turns the query rows that draw asks for, each to a key that it sees, for a score of the height drawn.
func (d dice) turnRows(c *attendCase, draw func() (score float64, turns bool)) {
	for _, s := range c.sequences {
		for t := range s.positions {
			for h := range c.queryHeads {
				segment, token := d.visible(c, s, t)
				if segment < 0 {
					continue
				}
				if score, turns := draw(); turns {
					d.turn(c, s, t, h, s.segments[segment], token, score)
				}
			}
		}
	}
}

// turn makes the query of a sequence's token and head a multiple of a key, for a score of that height.
func (d dice) turn(c *attendCase, s sequence, t, h int, segment placed, token int, score float64) {
	m, rope := d.spec.Model, d.spec.Rope
	key := c.chunks[segment.chunk].k[(token*c.kvHeads+h/m.Group())*m.HeadDim:][:m.HeadDim]
	norm2 := 0.0 // with the attention factor
	for i, x := range key {
		if i < rope.RotaryDim {
			x *= rope.AttentionFactor
		}
		norm2 += x * x
	}
	factor := score / (d.spec.Scale * norm2)
	if !(math.Abs(factor) < 100) {
		return // a score that is not come near, or a key of zeros
	}
	q := oracle.Rotate(rope, key, 1, m.HeadDim, []int{segment.offset + token - s.positions[t]})
	for i := range q {
		q[i] = d.format.Round(factor * q[i])
	}
	copy(c.q[((s.queryBegin+t)*c.queryHeads+h)*m.HeadDim:], q)
}

// visible is a segment of the sequence and a token of it that query token t sees, or -1 where
// none was found.
func (d dice) visible(c *attendCase, s sequence, t int) (segment, token int) {
	masks := d.spec.Masks
	for range 8 * min(1, len(s.segments)) {
		i := d.IntN(len(s.segments))
		placed := s.segments[i]
		tokens := c.chunks[placed.chunk].tokens
		end := tokens
		if placed.own && masks.Causal {
			end -= len(s.positions) - 1 - t
		}
		if end <= 0 {
			continue
		}
		l := d.IntN(end)
		if position := placed.offset + l; masks.Window == 0 || s.positions[t]-position < masks.Window || position < masks.SinkTokens {
			return i, l
		}
	}
	return -1, 0
}

// amplify makes queries and values large and keys small, by powers of two: scores stay as they are.
func (c *attendCase) amplify(f numeric.Format) {
	const query, value = 1 << 8, 1 << 13
	multiply := func(x []float64, factor float64) {
		for i := range x {
			x[i] = f.Round(factor * x[i])
		}
	}
	multiply(c.q, query)
	for _, chunk := range c.chunks {
		multiply(chunk.k, 1./query)
		multiply(chunk.v, value)
	}
}
