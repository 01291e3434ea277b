package verify

import (
	"math/rand/v2"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/numeric"
)

// size limits a case.
type size struct {
	work   int // multiply-adds of the scores of one case, about
	keys   int // keys of one sequence, at most
	tokens int // tokens of one append, merge or materialise

	holders int // sequences of one case of shared decode
}

var (
	deviceSize   = size{work: 100e6, keys: 2048, tokens: 300, holders: 300}
	emulatorSize = size{work: 3e6, keys: 256, tokens: 24, holders: 300}
)

const farthest = 1_000_001 // offsets and positions stay below it

// dice makes the random parts of a case.
type dice struct {
	*rand.Rand
	spec   spec.Spec
	format numeric.Format
	size   size
	edges  []int // sizes around which lengths are of interest
}

func (b *bench) dice(rng *rand.Rand, edges ...int) dice {
	d := dice{rng, b.spec, b.format, b.size, []int{b.spec.Cache.PageSize}}
	for _, e := range edges {
		if e > 1 {
			d.edges = append(d.edges, e)
		}
	}
	return d
}

// oneIn is true once in n times.
func (d dice) oneIn(n int) bool { return d.IntN(n) == 0 }

// length is from 0 to limit: often one, or next to a multiple of an edge.
func (d dice) length(limit int) int {
	n := d.IntN(limit + 1)
	switch d.IntN(8) {
	case 0, 1, 2, 3:
		n = (1+d.IntN(3))*d.edges[d.IntN(len(d.edges))] + d.IntN(3) - 1
	case 4:
		n = 1
	}
	return min(n, limit)
}

// top is one past the farthest position.
func (d dice) top() int { return min(farthest, d.spec.Rope.MaxPosition) }

// kvHeads is a number of KV heads: few, or now and then as many as the spec has.
func (d dice) kvHeads() int {
	if d.oneIn(16) && d.spec.Model.KVHeads <= 8*d.size.keys/256 {
		return d.spec.Model.KVHeads
	}
	return 1 + d.IntN(3)
}

// normal is n elements of the spec's type, normally distributed.
func (d dice) normal(n int, deviation float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = d.format.Round(deviation * d.NormFloat64())
	}
	return x
}

// logits is one float32 sink logit a query head, or nil where the spec has none.
func (d dice) logits(queryHeads int) []float64 {
	if !d.spec.Masks.SinkLogits {
		return nil
	}
	x := make([]float64, queryHeads)
	for i := range x {
		x[i] = float64(float32(2 * d.NormFloat64()))
	}
	return x
}

// stride is a token stride for rows of n elements: n, or more, with 16-byte alignment.
func (d dice) stride(n int) int {
	if d.oneIn(2) {
		return n
	}
	return n + 8*(1+d.IntN(4))
}

// attendCase is the logical data of one case of an attending kind.
type attendCase struct {
	kind                  spec.Kind
	kvHeads, queryHeads   int
	chunks                []chunk
	sequences             []sequence
	tokens                int       // query tokens, used or not
	q                     []float64 // [tokens][query heads][head dim]
	sinkLogits            []float64
	qStride, outStride    int
	splitTokens, maxItems int
	padding               int  // items that do nothing
	bitwise               bool // shared_decode: the cuts of a chunk depend on it alone
	scheduled             bool // shared_decode: the lists are package schedule's
	withLSE               bool //
	alone                 int  // index of a sequence to run by itself too, or -1
	sharp                 bool // scores differ by more than the exponents of floating-point numbers
	capped                bool // some scores are near the soft cap
	loud                  bool // elements are large, or small, for the exponents of fp16
	layoutSeed            uint64
}

// chunk is un-rotated KV.
type chunk struct {
	tokens int
	k, v   []float64 // [tokens][KV heads][dim]
}

type sequence struct {
	queryBegin int
	positions  []int
	segments   []placed
}

// placed is a chunk at an offset.
type placed struct {
	chunk, offset int
	own           bool
}

func (d dice) attendCase(kind spec.Kind, tile spec.Tile) attendCase {
	m := d.spec.Model
	c := attendCase{kind: kind, kvHeads: d.kvHeads(), alone: -1, withLSE: !d.oneIn(8), layoutSeed: d.Uint64()}
	c.queryHeads = c.kvHeads * m.Group()
	switch n := d.batch(kind); kind {
	case spec.Prefill:
		d.prefillSequences(&c, n)
	default:
		d.sequences(&c, n)
	}
	if d.oneIn(4) {
		c.tokens += 1 + d.IntN(3)
	}
	scores := []float64{1, 1, 1, 4}[d.IntN(4)] // their deviation, up to mostLoudness
	if c.sharp = c.layoutSeed%8 == 0; c.sharp {
		scores = sharpScores
	}
	loudness := d.loudness()
	c.sharp = c.sharp || loudness > mostLoudness
	c.q = d.normal(c.tokens*c.queryHeads*m.HeadDim, scores/min(max(1, loudness), mostLoudness))
	if d.spec.Masks.SoftCap > 0 && !c.sharp {
		if c.capped = d.oneIn(3); c.capped {
			d.nearCap(&c)
		}
	}
	if c.sharp && loudness <= mostLoudness && c.layoutSeed/16%2 == 0 {
		d.lateMaxima(&c)
	}
	if c.loud = d.spec.Model.DType == spec.FP16 && c.layoutSeed/8%4 == 0 && !c.sharp && !c.capped; c.loud {
		c.amplify(d.format)
	}
	c.sinkLogits = d.logits(c.queryHeads)
	c.qStride, c.outStride = d.stride(c.queryHeads*m.HeadDim), d.stride(c.queryHeads*m.VHeadDim)
	c.bitwise = kind == spec.SharedDecode && d.oneIn(2)
	c.scheduled = kind == spec.SharedDecode && has(d.spec.Kinds, spec.Decode) && d.oneIn(3)
	if len(c.sequences) > 1 && d.oneIn(2) && (c.bitwise || kind != spec.SharedDecode) {
		c.alone = d.IntN(len(c.sequences))
	}
	if canSplit := has(d.spec.Kinds, spec.Merge); canSplit && (fewTokens(kind) || d.oneIn(3)) {
		c.splitTokens = []int{tile.Keys, 2 * tile.Keys, d.spec.Cache.PageSize, 1 + d.IntN(100)}[d.IntN(4)]
		c.maxItems = []int{0, 0, 3, 8}[d.IntN(4)]
	}
	if d.oneIn(3) {
		c.padding = 1 + d.IntN(3)
	}
	return c
}

// batch is the number of sequences.
func (d dice) batch(kind spec.Kind) int {
	if d.oneIn(3) {
		return 1
	}
	if kind == spec.SharedDecode && d.oneIn(6) {
		return 1 + d.IntN(d.size.holders)
	}
	if fewTokens(kind) {
		return 1 + d.IntN(10)
	}
	return 1 + d.IntN(5)
}

// fewTokens reports a kind for sequences of a few query tokens.
func fewTokens(kind spec.Kind) bool { return kind == spec.Decode || kind == spec.SharedDecode }

// gap leaves some query tokens unused.
func (d dice) gap(c *attendCase) {
	if d.oneIn(4) {
		c.tokens += 1 + d.IntN(2)
	}
}

func (d dice) addChunk(c *attendCase, tokens int) int {
	m := d.spec.Model
	c.chunks = append(c.chunks, chunk{
		tokens: tokens,
		k:      d.normal(tokens*c.kvHeads*m.HeadDim, 1),
		v:      d.normal(tokens*c.kvHeads*m.VHeadDim, 1),
	})
	return len(c.chunks) - 1
}

// prefillSequences are chunks alone at their local positions. A window is often longer than any
// of them, so the queries may stand farther on: where the window of one begins among the keys.
func (d dice) prefillSequences(c *attendCase, n int) {
	longest := 1
	for longest*longest*c.queryHeads*d.spec.Model.HeadDim*n < 2*d.size.work {
		longest++
	}
	longest = min(longest, d.size.keys, d.top())
	for range n {
		d.gap(c)
		tokens := max(1, d.length(longest))
		s := sequence{queryBegin: c.tokens, positions: make([]int, tokens)}
		for i := range s.positions {
			s.positions[i] = i
		}
		s.segments = []placed{{chunk: d.addChunk(c, tokens), own: true}}
		if window := d.spec.Masks.Window; window > 0 && d.oneIn(2) {
			ahead := min(max(window-d.IntN(tokens+1), 0), d.top()-tokens)
			for i := range s.positions {
				s.positions[i] += ahead
			}
		}
		c.tokens += tokens
		c.sequences = append(c.sequences, s)
	}
}

// sequences are query blocks over several chunks and their own tokens.
func (d dice) sequences(c *attendCase, n int) {
	work := d.size.work / (n * c.queryHeads * d.spec.Model.HeadDim) // query tokens x keys of a sequence
	limit := min(d.size.keys, d.top()/2)
	shared := make([]int, 1+d.IntN(4))
	for i := range shared {
		shared[i] = d.addChunk(c, d.length(min(limit, work)))
	}
	var segments []placed // of the sequence before
	for range n {
		d.gap(c)
		tokens := max(1, d.length(min(limit, work, 100+d.IntN(200))))
		if fewTokens(c.kind) {
			tokens = min([]int{1, 1, 1, 2, 4}[d.IntN(5)], d.top())
		}
		keys := min(limit, max(work/tokens, tokens))
		var wanted []int // chunks, as far as there is room
		if c.kind == spec.SharedDecode && d.oneIn(2) {
			wanted = d.chunksOf(segments)
		}
		for range d.IntN(6) {
			wanted = append(wanted, shared[d.IntN(len(shared))])
		}
		segments = nil
		for _, chunk := range wanted {
			if n := c.chunks[chunk].tokens; n <= keys-tokens {
				keys -= n
				segments = append(segments, placed{chunk: chunk})
			}
		}
		if !d.oneIn(8) && (c.kind != spec.SharedDecode || has(d.spec.Kinds, spec.Decode)) {
			history := 0
			if d.oneIn(2) {
				history = d.length(max(0, keys-tokens))
			}
			segments = append(segments, placed{chunk: d.addChunk(c, tokens+history), own: true})
			if d.oneIn(8) { // own tokens need not come last
				last := len(segments) - 1
				at := d.IntN(len(segments))
				segments[at], segments[last] = segments[last], segments[at]
			}
		}
		s := sequence{queryBegin: c.tokens, segments: segments}
		d.place(c, &s, tokens)
		c.tokens += tokens
		c.sequences = append(c.sequences, s)
	}
}

// chunksOf is the chunks of some segments, own tokens left out.
func (d dice) chunksOf(segments []placed) []int {
	var chunks []int
	for _, p := range segments {
		if !p.own {
			chunks = append(chunks, p.chunk)
		}
	}
	return chunks
}

// place chooses the offsets of a sequence's segments and its query positions.
func (d dice) place(c *attendCase, s *sequence, tokens int) {
	total := 0
	for _, p := range s.segments {
		total += c.chunks[p.chunk].tokens
	}
	end := total // where the next token would be
	next := 0
	if d.oneIn(2) {
		next = d.IntN(d.top() - total + 1)
	}
	contiguous := d.oneIn(2)
	for i := range s.segments {
		n := c.chunks[s.segments[i].chunk].tokens
		switch {
		case contiguous:
			s.segments[i].offset = next
			next += n
		case i > 0 && d.oneIn(3): // the same offset again
			s.segments[i].offset = min(s.segments[i-1].offset, d.top()-n)
		case d.oneIn(3): // near
			s.segments[i].offset = d.IntN(min(2*total+1, d.top()-n+1))
		default:
			s.segments[i].offset = d.IntN(d.top() - n + 1)
		}
		if s.segments[i].own {
			end = s.segments[i].offset + n
		}
	}
	first := min(max(end, tokens), d.top()) - tokens
	arbitrary := d.oneIn(4)
	for i := range tokens {
		p := first + i
		if arbitrary {
			p = d.IntN(d.top())
		}
		s.positions = append(s.positions, p)
	}
	if d.spec.Masks.Window > 0 && d.oneIn(2) {
		d.placeAtWindow(c, s)
	}
	if d.spec.Masks.SinkTokens > 0 && d.oneIn(2) {
		d.placeAtSinks(c, s)
	}
}

// placeAtSinks moves a segment to where the sink tokens end, and the queries to where their
// windows begin there too: package schedule lists no keys between the two but for a page's.
func (d dice) placeAtSinks(c *attendCase, s *sequence) {
	masks := d.spec.Masks
	moved := d.IntN(len(s.segments) + 1)
	if moved == len(s.segments) || s.segments[moved].own {
		return
	}
	n := c.chunks[s.segments[moved].chunk].tokens
	s.segments[moved].offset = min(max(masks.SinkTokens-d.IntN(n+1), 0), d.top()-n)
	if at := masks.SinkTokens + masks.Window - 1; at+d.spec.Cache.PageSize < d.top() && d.oneIn(2) {
		for i := range s.positions {
			s.positions[i] = at + d.IntN(d.spec.Cache.PageSize+1)
		}
	}
}

// placeAtWindow moves a segment to where the window of a query token begins. By chance that is
// rarely inside of one: windows are of thousands of positions, and there are a million.
func (d dice) placeAtWindow(c *attendCase, s *sequence) {
	moved := d.IntN(len(s.segments) + 1)
	if moved == len(s.segments) || s.segments[moved].own {
		return
	}
	n := c.chunks[s.segments[moved].chunk].tokens
	begin := s.positions[d.IntN(len(s.positions))] - d.spec.Masks.Window + 1
	s.segments[moved].offset = min(max(begin-d.IntN(n+1), 0), d.top()-n)
}

func has(kinds []spec.Kind, kind spec.Kind) bool {
	for _, k := range kinds {
		if k == kind {
			return true
		}
	}
	return false
}
