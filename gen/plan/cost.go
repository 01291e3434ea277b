package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Shape is a batch of like sequences.
type Shape struct {
	Kind  spec.Kind
	Batch int // sequences
	Query int // query tokens of each
	Keys  int // tokens of KV of each; prefill: the same as Query
}

// Ceilings are what a device can do at best.
type Ceilings struct {
	Multiprocessors int
	Read            float64 // bytes of device memory a second
	Product         float64 // operations of matrix products a second
}

// NominalCeilings are those of the best-known GPU of a target, for when none is
// there to be measured: A100, A10, L40S, H200, B200 and the RTX 5090, from NVIDIA's
// data sheets, at nine tenths of the memory's and eight tenths of the products' rate.
func NominalCeilings(t spec.Target) Ceilings {
	const read, product = 0.9e12, 0.8e12 // of a TB and a TFLOP
	switch t {
	case "sm_80":
		return Ceilings{108, 2.0 * read, 312 * product}
	case "sm_86":
		return Ceilings{72, 0.6 * read, 125 * product}
	case "sm_89":
		return Ceilings{142, 0.86 * read, 362 * product}
	case "sm_90a":
		return Ceilings{132, 4.8 * read, 989 * product}
	case "sm_100a":
		return Ceilings{148, 8.0 * read, 2250 * product}
	}
	return Ceilings{170, 1.79 * read, 210 * product}
}

// Cut says how a schedule cuts a sequence's keys into parts: see schedule.Options.
type Cut struct {
	Fill   int // blocks that a sequence alone is cut for, in percent of the multiprocessors; 0: as many as they hold
	Tokens int // of the smallest part; 0: max(4 keys of a tile, 256)
}

// Resolve fills in what is 0, as package kernel does.
func (c Cut) Resolve(p Plan) Cut {
	if c.Fill == 0 {
		c.Fill = 200
		if p.Family == SM90 {
			c.Fill = 100 * max(1, p.MinBlocks)
		}
	}
	if c.Tokens == 0 {
		c.Tokens = schedule.LeastPart(p.Keys)
	}
	return c
}

// Estimate is what the cost model says of a plan for a shape. Its terms overlap, so
// that their sum is more than Time.
type Estimate struct {
	Time     time.Duration
	Memory   time.Duration // to read every key and value once, and the partial results
	Products time.Duration // of the busiest multiprocessor
	Rotation time.Duration // of raw keys, and of a prefill's queries, likewise
	Tiles    time.Duration // what the tiles of the busiest multiprocessor cost besides
	Items    time.Duration // the beginnings and ends of its items
	Ahead    time.Duration // the launch that rotates keys ahead
	Merge    time.Duration // the launch behind
	Parts    int           // of a sequence
	Waves    float64       // items for each block that runs at a time
}

// load is what a shape is to a device by a plan: its items, and what the busiest multiprocessor has of them.
type load struct {
	s     spec.Spec // whose keys the plan's kernel reads
	p     Plan
	shape Shape
	c     Ceilings
	k     coefficients

	resident int // blocks that a multiprocessor holds
	tiles    int // of a sequence's query tokens
	parts    int // of a sequence

	items     float64 // blocks' shares of them
	itemKeys  float64
	itemTiles float64 // of keys
	waves     float64 // items for each block that runs at a time
	busiest   float64 // items that the busiest block does, one after the other
	onSM      float64 // items of the busiest multiprocessor: those of a wave share its arithmetic and its copies
}

func loadOf(s spec.Spec, p Plan, cut Cut, shape Shape, c Ceilings) load {
	s = p.Reads(s)
	m := s.Model
	l := load{s: s, p: p, shape: shape, c: c, k: coefficientsOf[body{p.Family, shape.Kind == spec.Decode, p.AlignsQueries}]}
	cut = cut.Resolve(p)
	const rest = 100 // registers of a thread, about, that are no accumulators
	l.resident = max(1, BlocksPerSM(p, p.Targets[0], min(accumulators(m, p)+rest, registerLimit(s, p))))
	if p.Family == SM90 {
		l.resident = min(l.resident, max(1, p.MinBlocks))
	}

	perTile := max(1, p.ItemRows(m.Group())/m.Group()) // query tokens
	l.tiles = ceil(shape.Query, perTile)
	seen := shape.Keys // that a tile of queries walks
	if shape.Kind == spec.Prefill && s.Masks.Causal {
		seen = (seen + perTile) / 2 // in the mean
	}
	if w := s.Masks.Window; w > 0 {
		seen = min(seen, w+perTile)
	}
	l.parts = 1
	if shape.Kind != spec.Prefill {
		o := schedule.Options{Whole: s.Whole(shape.Kind), Cluster: p.Cluster}
		if p.Folds && shape.Kind == spec.Extend { // as kernel.Choice.Schedule
			o.Keys = p.Keys
		}
		l.parts = o.FillBy(cut.Fill*c.Multiprocessors/100/p.Cluster, 0, m.KVHeads, cut.Tokens).Parts(seen, l.tiles)
	}
	l.items = float64(shape.Batch * l.tiles * l.parts * m.KVHeads * p.Cluster)
	l.itemKeys = float64(seen) / float64(l.parts)
	l.itemTiles = max(1, l.itemKeys/float64(p.Keys))

	// Equal items come in whole waves, unequal ones even out.
	l.waves = l.items / float64(l.resident*c.Multiprocessors)
	l.busiest = ceilOf(l.waves)
	if shape.Kind == spec.Prefill && l.waves > 1 {
		l.busiest = l.waves + 0.5
	}
	l.onSM = l.busiest * min(float64(l.resident), max(1, l.items/float64(c.Multiprocessors)))
	return l
}

// blocksOf is how many blocks are at work on each of so many multiprocessors.
func (l load) blocksOf(multiprocessors float64) int {
	return min(l.resident, int(max(1, l.items/multiprocessors)))
}

// dims are the dimensions of a token's key and value.
func (l load) dims() float64 { return float64(l.s.Model.HeadDim + l.s.Model.VHeadDim) }

// chains is how many tiles of keys a block works on at a time.
func (l load) chains() float64 {
	switch {
	case l.shape.Kind != spec.Decode:
		return 1
	case l.p.Family == SM90:
		return float64(DecodeShares(l.s, l.p.Family, l.p.Warps))
	}
	return float64(l.p.Warps)
}

// products is the busiest multiprocessor's time for them, in seconds.
func (l load) products() float64 {
	activeRows := float64(l.p.BlockRows())
	if l.p.Family == SM80 {
		activeRows *= float64(l.blocksOf(float64(l.c.Multiprocessors)))
	}
	if l.shape.Kind == spec.Decode {
		activeRows = 16 * l.chains()
	}
	rate := l.c.Product / float64(l.c.Multiprocessors) * l.k.product
	rate *= activeRows / (activeRows + l.k.halfRows) * float64(l.p.Keys) / (float64(l.p.Keys) + l.k.halfKeys)
	return 2 * float64(l.p.BlockRows()) * l.itemTiles * float64(l.p.Keys) * l.dims() / rate * l.onSM
}

// copies is the busiest multiprocessor's time for its copies of keys and values, in seconds: by what it has in flight over the latency,
// and its share of the L2 cache and the memory.
func (l load) copies() float64 {
	tileBytes := float64(l.p.Keys) * l.dims() * elementSize / float64(l.p.Cluster) // that a block copies
	inFlight := tileBytes * float64(l.p.Stages)
	if l.p.Family == SM80 && l.shape.Kind == spec.Decode {
		inFlight *= float64(l.p.Warps)
	}
	busySMs := min(float64(l.c.Multiprocessors), l.items)
	share := min(inFlight*float64(l.blocksOf(busySMs))/(l.k.latency*nanosecond), l.c.Read*cacheFactor/busySMs)
	return l.itemTiles * tileBytes / share * l.onSM
}

// keysAndQueries are the bytes of memory that every key, value and query is.
func (l load) keysAndQueries() float64 {
	m := l.s.Model
	read := l.shape.Keys // of a sequence, by all its query tokens
	if w := l.s.Masks.Window; w > 0 && l.shape.Kind != spec.Prefill {
		read = min(read, w+l.shape.Query)
	}
	keys := float64(l.shape.Batch*read*m.KVHeads) * l.dims() * elementSize
	if l.p.Family == SM90 && l.p.Cluster == 1 && l.tiles > 1 && l.shape.Kind == spec.Extend {
		keys *= 1 + readTwice
	}
	return keys + float64(l.shape.Batch*l.shape.Query*m.QueryHeads)*l.dims()*elementSize
}

// partials are the bytes of the results of sequences' parts.
func (l load) partials() float64 {
	if l.parts == 1 {
		return 0
	}
	m := l.s.Model
	return float64(l.shape.Batch*l.shape.Query*m.QueryHeads*l.parts) * float64(m.VHeadDim+1) * partialSize
}

// furtherItems is what the busiest block's items but the first take to begin, in nanoseconds.
func (l load) furtherItems() float64 {
	nextItem := l.k.nextItem
	if l.shape.Kind == spec.Prefill && l.p.Cluster > 1 {
		nextItem -= pairSaves * min(1, l.itemTiles-1)
	}
	next := (l.busiest - 1) * nextItem
	if l.p.RotatesOwn() && l.s.Rope.RotaryDim > 0 {
		next += l.busiest * ownRotation
	}
	return next
}

// starts is what the busiest block's items and their runs take to begin and to end, in nanoseconds.
func (l load) starts() float64 {
	runs := l.itemKeys / usualChunk
	if l.shape.Kind == spec.Prefill {
		runs = 0
	}
	item := l.k.item
	if l.p.Cluster > 1 {
		item += clusterStart
		if l.p.AlignsQueries && l.s.Model.HeadDim <= 128 {
			item -= pairAligns
		}
	}
	return item + l.furtherItems() + l.busiest*runs*l.k.run
}

// keyRotation is the busiest multiprocessor's time to rotate raw keys, in seconds.
func (l load) keyRotation() float64 {
	units := l.itemKeys / float64(l.p.Cluster) * float64(l.s.Rope.RotaryDim) / rotationUnit // of a block
	if l.p.Family == SM90 {
		return units * rotatorInstructions * rotatorTime * nanosecond / float64(l.p.Rotators) * l.onSM
	}
	return units * rotationInstructions * instructionTime * nanosecond / schedulers * l.onSM
}

// queryRotation is the time of the busiest multiprocessor's rotators for a prefill's queries, in seconds.
func (l load) queryRotation() float64 {
	m := l.s.Model
	// A thread has sixteen dimensions of a token's heads at a time, and some have none at the end.
	threads, shares := 32*l.p.Rotators, ((l.p.BlockRows()-1)/m.Group()+1)*m.HeadDim/16
	rotated := ceil(shares, threads) * threads * 16 * m.Group()
	return float64(rotated) * queryRotationTime * nanosecond / float64(l.p.Rotators) * l.onSM
}

// Predict estimates the time of a shape by a plan on a device. It takes every chunk to be of
// 512 tokens.
func Predict(s spec.Spec, p Plan, cut Cut, shape Shape, c Ceilings) Estimate {
	l := loadOf(s, p, cut, shape, c)
	seconds := func(x float64) time.Duration { return time.Duration(x * 1e9) }
	e := Estimate{
		Parts:    l.parts,
		Waves:    l.waves,
		Products: seconds(l.products()),
		Memory:   seconds((l.keysAndQueries() + l.partials()) / c.Read),
		Tiles:    seconds(l.itemTiles * l.k.tile * nanosecond / l.chains() * l.onSM),
		Items:    seconds(l.starts() * nanosecond),
	}
	if l.parts > 1 {
		e.Merge = mergeTime + seconds(l.partials()/c.Read)
	}
	if p.KeysAhead {
		bytes := 2 * float64(shape.Batch*shape.Keys*s.Model.KVHeads*s.Model.HeadDim) * elementSize
		e.Ahead = launchTime + seconds(bytes/(aheadRate*c.Read))
	}

	work := e.Products.Seconds() + e.Tiles.Seconds() // of the warps that multiply
	if l.s.RotatesKeys() {
		e.Rotation = seconds(l.keyRotation())
		switch {
		case p.Family == SM80:
			work += e.Rotation.Seconds()
		case p.RotatesApart():
			work += rotationBeside * e.Rotation.Seconds()
		}
	}
	beside := 0.0 // part of e.Items: they go from item to item beside the rotation of a prefill's queries
	if p.Family == SM90 && shape.Kind == spec.Prefill && p.Rotators > 0 {
		beside = l.furtherItems() * nanosecond
		work += beside
		e.Rotation += seconds(l.queryRotation())
	}

	// The slowest of these sets the pace; the others show where little is in flight.
	pace := []float64{work, l.copies(), e.Memory.Seconds()}
	if p.Family == SM90 {
		pace = append(pace, e.Rotation.Seconds())
	}
	slices.SortFunc(pace, func(a, b float64) int { return cmp.Compare(b, a) })
	hidden := l.k.waited / float64(p.Stages)
	if p.Family == SM90 && shape.Kind == spec.Prefill {
		hidden *= promptWaits
	}
	e.Time = launchTime + e.Ahead + seconds(pace[0]+hidden*pace[1]-beside) + e.Items + e.Merge
	return e
}

func ceil(a, b int) int { return (a + b - 1) / b }

func ceilOf(x float64) float64 {
	n := float64(int(x))
	if n < x {
		n++
	}
	return max(1, n)
}

// Rank sorts plans by the time that the model foretells for a shape. It returns the plans'
// indices.
func Rank(s spec.Spec, plans []Plan, shape Shape, c Ceilings) []int {
	times, order := make([]time.Duration, len(plans)), make([]int, len(plans))
	for i, p := range plans {
		times[i], order[i] = Predict(s, p, Cut{}, shape, c).Time, i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(times[a], times[b]) })
	return order
}
