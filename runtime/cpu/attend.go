package cpu

import (
	"fmt"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
)

// attendJob is a launch of prefill, extend, decode or shared_decode. A task is one
// KV head of one item.
type attendJob struct {
	config Config
	p      abi.AttendParams
	factor float32 // from a score to its exponent of 2
	shared bool    // items name their query tokens by members

	q, out, lse, partialOut, partialLSE, items, runs, positions, sinks, members, offsets region

	keys, values cache
	rotation     rotation
}

func (j *attendJob) run(d *Device, op *operation) error {
	c, p := op.kernels.config, op.attend
	l := regions{memory: &d.memory}
	table := l.of("PageTable", p.PageTable)
	*j = attendJob{
		config: c, p: p, factor: p.Scale * math.Log2E, shared: op.kind == abi.KindSharedDecode,
		q: l.of("Q", p.Q), out: l.of("Out", p.Out), lse: l.of("LSE", p.LSE),
		partialOut: l.of("PartialOut", p.PartialOut), partialLSE: l.of("PartialLSE", p.PartialLSE),
		items: l.of("Items", p.Items), runs: l.of("Runs", p.Runs),
		positions: l.of("Positions", p.Positions), sinks: l.of("SinkLogits", p.SinkLogits),
		members: l.of("Members", p.Members), offsets: l.of("MemberOffsets", p.MemberOffsets),
		keys:     c.cache(l.of("KCache", p.KCache), table, c.HeadDim, p.KVHeads),
		values:   c.cache(l.of("VCache", p.VCache), table, c.VHeadDim, p.KVHeads),
		rotation: c.rotation(l.of("Rope", p.Rope)),
	}
	if l.err != nil {
		return l.err
	}
	if c.SoftCap != 0 {
		j.factor = math.Log2E // the cap has applied the scale
	}
	return d.pool.run(j, op.tasks*int(p.KVHeads))
}

// worker is one goroutine's scratch memory.
type worker struct {
	angles angles
	tokens []token

	rows   []rowState
	query  []float32 // [rows][head dim], rotated
	result results   // of the part at work, or of what was folded
	folder folder    // of the parts before
	scores []float32 // [tileKeys], of one row
	key    []float32 // [tileKeys][head dim]
	value  []float32 // [tileKeys][v head dim]
}

// token is one query token of an item.
type token struct {
	index    int64 // among all query tokens
	slot     int64 // of its results, or Final
	position int64

	// Of the run at work.
	offset int64 // position of the segment's token 0 in this token's sequence
	base   int64 // what the rows are rotated against
	seen   seen  // of the tile at work
}

// seen is the keys of a tile that a query token sees: below end, and of these
// from begin on or below sinks.
type seen struct {
	end, begin, sinks int
}

func (j *attendJob) task(w *worker, i int) error {
	index, head := i/int(j.p.KVHeads), i%int(j.p.KVHeads)
	item, err := j.items.item(int64(index))
	if err != nil {
		return err
	}
	if item.QCount == 0 {
		return nil
	}
	if err := j.item(w, item, head); err != nil {
		return fmt.Errorf("item %d: %w", index, err)
	}
	return nil
}

// maxRows limits an item, and with it a worker's scratch memory.
const maxRows = 1 << 16

func (j *attendJob) item(w *worker, item abi.Item, head int) error {
	if item.QBegin < 0 || item.QCount < 0 || item.Slot < abi.Final {
		return fmt.Errorf("QBegin %d, QCount %d, Slot %d: out of range", item.QBegin, item.QCount, item.Slot)
	}
	if int64(item.QCount)*int64(j.config.Group) > maxRows {
		return fmt.Errorf("%d query tokens of %d heads a KV head: at most %d rows", item.QCount, j.config.Group, maxRows)
	}
	w.tokens = grow(w.tokens, int(item.QCount))
	for t := range w.tokens {
		var err error
		if w.tokens[t], err = j.token(item, t); err != nil {
			return err
		}
	}
	n := int(item.QCount) * j.config.Group
	w.rows = grow(w.rows, n)
	w.query = grow(w.query, n*j.config.HeadDim)
	w.folder.parts = 0
	j.beginPart(w)
	w.scores = grow(w.scores, tileKeys)
	w.key = grow(w.key, tileKeys*j.config.HeadDim)
	w.value = grow(w.value, tileKeys*j.config.VHeadDim)

	rotated := false
	for r := item.RunBegin; r < item.RunEnd; r++ {
		run, err := j.runs.run(int64(r))
		if err == nil && run.Begin < 0 {
			err = fmt.Errorf("it begins at token %d", run.Begin)
		}
		moved := false
		if err == nil && run.Begin < run.End {
			moved, err = j.place(w, run)
			if err == nil && (moved || !rotated) {
				err = j.rotateQuery(w, head)
				rotated = true
			}
		}
		for begin := int64(run.Begin); err == nil && begin < int64(run.End); begin += tileKeys {
			err = j.tile(w, item, run, begin, head)
		}
		if err != nil {
			return fmt.Errorf("run %d: %w", r, err)
		}
		if run.EndsPart != 0 && r+1 < item.RunEnd {
			j.endPart(w)
			w.folder.add(&w.result)
			j.beginPart(w)
		}
	}
	return j.finish(w, head)
}

// beginPart clears what the rows have.
func (j *attendJob) beginPart(w *worker) {
	for r := range w.rows {
		w.rows[r] = rowState{maximum: negativeInfinity}
	}
	w.result.grow(len(w.rows), j.config.VHeadDim)
	clear(w.result.output)
}

// endPart makes what the rows have the part's results.
func (j *attendJob) endPart(w *worker) {
	dim := j.config.VHeadDim
	for r, state := range w.rows {
		scale(w.result.output[r*dim:][:dim], state.normaliser(j.factor, negativeInfinity))
		w.result.lse[r] = state.logSumExp2(j.factor)
	}
}

// token is query token t of an item, before any run.
func (j *attendJob) token(item abi.Item, t int) (token, error) {
	x := token{index: int64(item.QBegin) + int64(t), slot: abi.Final}
	if j.shared {
		m, err := j.members.member(x.index)
		if err != nil {
			return x, err
		}
		x.index, x.slot = int64(m.Token), int64(m.Slot)
	} else if item.Slot != abi.Final {
		x.slot = int64(item.Slot) + int64(t)*int64(item.SlotStride)
	}
	if x.slot < 0 && (j.shared || item.Slot != abi.Final) {
		return x, fmt.Errorf("query token %d: slot %d: out of range", x.index, x.slot)
	}
	position, err := j.positions.int32(x.index)
	x.position = int64(position)
	return x, err
}

// place says where the run's segment stands for each token; moved: the rows must be
// rotated against something else than for the run before.
func (j *attendJob) place(w *worker, run abi.Run) (moved bool, err error) {
	relative := j.config.Encoding == Segment || j.shared && j.config.Encoding == Raw
	for t := range w.tokens {
		x, base := &w.tokens[t], int64(0)
		x.offset = int64(run.Offset)
		if j.shared {
			offset, err := j.offsets.int32(int64(run.Offset) + int64(t))
			if err != nil {
				return false, err
			}
			x.offset = int64(offset)
		}
		if relative {
			base = x.offset
		}
		moved = moved || base != x.base
		x.base = base
	}
	return moved, nil
}

// rotateQuery turns the item's rows by their positions less their bases.
func (j *attendJob) rotateQuery(w *worker, head int) error {
	dim, group := j.config.HeadDim, j.config.Group
	for t, token := range w.tokens {
		if err := j.rotation.angles(&w.angles, token.position-token.base, j.p.RopeScale); err != nil {
			return err
		}
		at := token.index*int64(j.p.QTokenStride) + int64(head*group*dim)
		heads, err := j.q.at(elementBytes*at, int64(elementBytes*group*dim))
		if err != nil {
			return fmt.Errorf("query token %d: %w", token.index, err)
		}
		rows := w.query[t*group*dim:][:group*dim]
		j.config.Element.load(rows, heads)
		for ; len(rows) > 0; rows = rows[dim:] {
			j.rotation.turn(rows[:dim], &w.angles, j.config.Element)
		}
	}
	return nil
}

// tile takes the keys of a run from begin on, at most tileKeys of them.
func (j *attendJob) tile(w *worker, item abi.Item, run abi.Run, begin int64, head int) error {
	end := 0 // one past the last key that anyone sees
	for t := range w.tokens {
		w.tokens[t].seen = j.seen(item, run, begin, t, &w.tokens[t])
		end = max(end, w.tokens[t].seen.end)
	}
	if end == 0 {
		return nil
	}
	if err := j.loadTile(w, run, begin, end, head); err != nil {
		return err
	}
	dim, vDim := j.config.HeadDim, j.config.VHeadDim
	for r := range w.rows {
		s := w.tokens[r/j.config.Group].seen
		if s.end == 0 {
			continue
		}
		n := roundUp(s.end, keyStep)
		scores := w.scores[:n]
		dots(scores, w.query[r*dim:][:dim], w.key[:n*dim])
		if j.config.SoftCap != 0 {
			j.softCap(scores)
		}
		for i := s.end; i < n; i++ {
			scores[i] = negativeInfinity
		}
		for i := s.sinks; i < s.begin; i++ {
			scores[i] = negativeInfinity
		}
		output := w.result.output[r*vDim:][:vDim]
		if rescale := w.rows[r].update(scores, j.factor, j.config.Element); rescale != 1 {
			scale(output, rescale)
		}
		accumulate(output, scores, w.value[:n*vDim])
	}
	return nil
}

// keyStep is the number of keys that the products take at a time.
const keyStep = 8

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// seen is what query token t of an item sees of the tile that begins at token
// begin of the run. What it does not see at all has end 0.
func (j *attendJob) seen(item abi.Item, run abi.Run, begin int64, t int, x *token) seen {
	limit := int(min(tileKeys, int64(run.End)-begin))
	within := func(token int64) int { return int(min(max(token-begin, 0), int64(limit))) }
	s := seen{end: within(int64(item.QIndex) + int64(t) + int64(run.Causal) + 1)}
	if j.config.Window > 0 {
		s.begin = min(within(x.position-x.offset-int64(j.config.Window)+1), s.end)
		s.sinks = min(within(int64(j.config.SinkTokens)-x.offset), s.end)
	}
	if s.begin == s.end && s.sinks == 0 {
		s.end = 0
	}
	return s
}

// loadTile turns n keys and their values to float32, and raw keys to their
// positions, in shared decode those in the segment. Up to the next whole step come
// zeros.
func (j *attendJob) loadTile(w *worker, run abi.Run, begin int64, n, head int) error {
	dim, vDim, e := j.config.HeadDim, j.config.VHeadDim, j.config.Element
	base := int64(run.Offset)
	if j.shared {
		base = 0
	}
	for i := range n {
		token := begin + int64(i)
		stored, err := j.keys.token(run.Page, token, head)
		if err != nil {
			return fmt.Errorf("key %d: %w", token, err)
		}
		key := w.key[i*dim:][:dim]
		e.load(key, stored)
		if j.config.Encoding == Raw {
			if err := j.rotation.angles(&w.angles, base+token, 1); err != nil {
				return fmt.Errorf("key %d: %w", token, err)
			}
			j.rotation.turn(key, &w.angles, e)
		}
		if stored, err = j.values.token(run.Page, token, head); err != nil {
			return fmt.Errorf("value %d: %w", token, err)
		}
		e.load(w.value[i*vDim:][:vDim], stored)
	}
	clear(w.key[n*dim : roundUp(n, keyStep)*dim])
	clear(w.value[n*vDim : roundUp(n, keyStep)*vDim])
	return nil
}

func (j *attendJob) softCap(scores []float32) {
	scale := float64(j.p.Scale) / j.config.SoftCap
	for i, s := range scores {
		scores[i] = float32(j.config.SoftCap * math.Tanh(float64(s)*scale))
	}
}

// finish writes the item's rows, final or partial.
func (j *attendJob) finish(w *worker, head int) error {
	group, dim, factor := j.config.Group, j.config.VHeadDim, j.factor
	if w.folder.parts > 0 {
		j.endPart(w)
		w.folder.last(&w.result)
		for r := range w.rows {
			w.rows[r] = folded(w.result.lse[r])
		}
		factor = 1
	}
	for r, state := range w.rows {
		x, h := &w.tokens[r/group], head*group+r%group
		out := w.result.output[r*dim:][:dim]
		if err := j.store(x, h, state, factor, out); err != nil {
			return fmt.Errorf("query token %d, head %d: %w", x.index, h, err)
		}
	}
	return nil
}

func (j *attendJob) store(x *token, h int, state rowState, factor float32, out []float32) error {
	final := x.slot == abi.Final
	sink := negativeInfinity
	if final && j.config.SinkLogits {
		logit, err := j.sinks.float32(int64(h))
		if err != nil {
			return err
		}
		sink = logit * math.Log2E
	}
	scale(out, state.normaliser(factor, sink))
	lse := state.logSumExp2(factor)
	heads := int64(j.p.KVHeads) * int64(j.config.Group)
	if !final {
		row := x.slot*heads + int64(h)
		if err := j.partialOut.putFloat32s(row*int64(len(out)), out); err != nil {
			return err
		}
		return j.partialLSE.putFloat32(row, lse)
	}
	at := x.index*int64(j.p.OutTokenStride) + int64(h*len(out))
	stored, err := j.out.at(elementBytes*at, int64(elementBytes*len(out)))
	if err != nil {
		return err
	}
	j.config.Element.store(stored, out)
	if j.p.LSE == 0 {
		return nil
	}
	return j.lse.putFloat32(x.index*heads+int64(h), lse*ln2)
}
