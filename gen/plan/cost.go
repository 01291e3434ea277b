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

// coefficients are what the model takes of a code path; times are in nanoseconds.
// They are fitted to the times of the tuning cases, not the held-out ones, of an H200's
// table: `kgen tune --score` says how well they do. Those of the plans that align queries are
// the others' of their family, with products, an item's start and a run set by hand to what
// the two took in the same cases.
type coefficients struct {
	product  float64 // part of the products' ceiling that a full tile reaches
	halfRows float64 // rows of a multiprocessor's tiles at which it is half of that
	halfKeys float64 // keys of a tile, likewise
	tile     float64 // a tile's barriers and bookkeeping
	latency  float64 // from a copy's start to its data
	item     float64 // an item's start, rotations and end
	nextItem float64 // likewise, of one whose start another's end hides
	run      float64 // a further run of an item
	waited   float64 // part of the lesser of products and copies that nothing hides, with one stage; less with more
}

// body is a code path: the kernels that share their coefficients.
type body struct {
	family Family
	decode bool
	aligns bool // see Plan.AlignsQueries
}

var coefficientsOf = map[body]coefficients{
	{SM90, false, false}: {product: 1.09, halfRows: 26, halfKeys: 5.8, tile: 197, latency: 394, item: 8670, nextItem: 2000, run: 132, waited: 0.5},
	{SM90, false, true}:  {product: 1.18, halfRows: 26, halfKeys: 5.8, tile: 197, latency: 394, item: 10500, nextItem: 2000, run: 50, waited: 0.5},
	{SM90, true, false}:  {product: 0.484, halfRows: 30, halfKeys: 19, tile: 171, latency: 1360, item: 7590, nextItem: 125, run: 717, waited: 0.125},
	{SM80, false, false}: {product: 0.536, halfRows: 49, halfKeys: 9.6, tile: 50, latency: 250, item: 7580, nextItem: 8000, run: 3200, waited: 0.125},
	{SM80, true, false}:  {product: 0.904, halfRows: 8.9, halfKeys: 8.2, tile: 72, latency: 1650, item: 8080, nextItem: 1860, run: 3010, waited: 0.125},
}

const (
	launchTime  = 3 * time.Microsecond
	mergeTime   = 3 * time.Microsecond
	usualChunk  = 512 // tokens of a segment
	elementSize = 2
	partialSize = 4
	cacheFactor = 2.0 // the L2 cache's rate over the memory's
	aheadRate   = 0.8 // of the memory's rate that rotating keys ahead reaches (H200, 2026-11-24: 16k tokens in 22 us)
	nanosecond  = 1e-9

	readTwice    = 0.1 // part of keys that blocks of a sequence's tiles, each for itself, have from memory once more (H100: 0.03 to 0.2)
	clusterStart = 300 // nanoseconds by which two blocks that take an item together begin later (H100, extend of 64 tokens over 1k and 2k)
)

// Of raw keys' rotation: the instructions that a warp takes for 32 keys and 16 dimensions, by
// the machine code, and a warp's time for an instruction beside the others of its scheduler,
// in nanoseconds: for a rotator of family sm90 as measured (H100, 2026-11-25, extend of 4x512 over
// 8k tokens), for family sm80, which works an angle's terms out anew, as counted.
const (
	rotatorInstructions  = 76
	rotatorTime          = 3.0
	rotationBeside       = 0.25 // of a rotation by a warpgroup of its own, by which products beside it take longer (that case by two blocks)
	rotationInstructions = 150
	instructionTime      = 1.0
	rotationUnit         = 32 * 16
	schedulers           = 4
)

// queryRotation is a rotator's time, in nanoseconds, for a dimension of a row of an item's queries, above all that of their reads
// (H100, 2026-11-27, traces of prefill of 64 prompts of 128 tokens).
const queryRotation = 0.85

// ownRotation is the time, in nanoseconds, for which an item of three warpgroups waits for the rotation of its own queries (H200,
// 2026-11-28: what prefill of 64 dimensions takes less without it, by the item, of 64 prompts of 128 tokens to 4 of 4096).
const ownRotation = 1180

// Predict estimates the time of a shape by a plan on a device. It takes every chunk to be of
// 512 tokens.
func Predict(s spec.Spec, p Plan, cut Cut, shape Shape, c Ceilings) Estimate {
	s = p.Reads(s)
	m, target, k := s.Model, p.Targets[0], coefficientsOf[body{p.Family, shape.Kind == spec.Decode, p.AlignsQueries}]
	cut = cut.Resolve(p)
	const rest = 100 // registers of a thread, about, that are no accumulators
	resident := max(1, BlocksPerSM(p, target, min(accumulators(m, p)+rest, registerLimit(s, p))))
	if p.Family == SM90 {
		resident = min(resident, max(1, p.MinBlocks))
	}

	perTile := max(1, p.ItemRows(m.Group())/m.Group()) // query tokens
	tiles := ceil(shape.Query, perTile)                // of a sequence
	seen, parts := shape.Keys, 1                       // keys that a tile of queries walks
	if shape.Kind == spec.Prefill && s.Masks.Causal {
		seen = (seen + perTile) / 2 // in the mean
	}
	if w := s.Masks.Window; w > 0 {
		seen = min(seen, w+perTile)
	}
	if shape.Kind != spec.Prefill {
		o := schedule.Options{Whole: s.Whole(shape.Kind), Cluster: p.Cluster}
		if p.Folds && shape.Kind == spec.Extend { // as kernel.Choice.Schedule
			o.Keys = p.Keys
		}
		parts = o.FillBy(cut.Fill*c.Multiprocessors/100/p.Cluster, 0, m.KVHeads, cut.Tokens).Parts(seen, tiles)
	}
	items := float64(shape.Batch * tiles * parts * m.KVHeads * p.Cluster) // blocks' shares of them
	itemKeys := float64(seen) / float64(parts)
	itemTiles := max(1, itemKeys/float64(p.Keys))

	// The busiest multiprocessor: equal items come in whole waves, unequal ones even out.
	slots := float64(resident * c.Multiprocessors) // blocks that run at a time
	waves := items / slots
	busiest := ceilOf(waves)
	if shape.Kind == spec.Prefill && waves > 1 {
		busiest = waves + 0.5
	}
	// Items that it does: those of a wave share its arithmetic and its copies.
	onSM := busiest * min(float64(resident), max(1, items/float64(c.Multiprocessors)))

	var e Estimate
	e.Parts, e.Waves = parts, waves
	seconds := func(x float64) time.Duration { return time.Duration(x * 1e9) }
	dims := float64(m.HeadDim + m.VHeadDim)

	chains := 1.0 // tiles that a block works on at a time
	if shape.Kind == spec.Decode {
		chains = float64(p.Warps)
		if p.Family == SM90 {
			chains = float64(DecodeShares(s, p.Family, p.Warps))
		}
	}
	rate := c.Product / float64(c.Multiprocessors) * k.product
	activeRows := float64(p.BlockRows())
	if p.Family == SM80 {
		activeRows *= float64(min(resident, int(max(1, items/float64(c.Multiprocessors)))))
	}
	if shape.Kind == spec.Decode {
		activeRows = 16 * chains
	}
	rate *= activeRows / (activeRows + k.halfRows) * float64(p.Keys) / (float64(p.Keys) + k.halfKeys)
	products := 2 * float64(p.BlockRows()) * itemTiles * float64(p.Keys) * dims / rate
	e.Products = seconds(products * onSM)

	// Copies: what a multiprocessor has in flight over the latency, and its share of
	// the L2 cache and the memory.
	tileBytes := float64(p.Keys) * dims * elementSize / float64(p.Cluster) // that a block copies
	inFlight := tileBytes * float64(p.Stages)
	if p.Family == SM80 && shape.Kind == spec.Decode {
		inFlight *= float64(p.Warps)
	}
	busySMs := min(float64(c.Multiprocessors), items)
	share := min(inFlight*float64(min(resident, int(max(1, items/busySMs))))/(k.latency*nanosecond), c.Read*cacheFactor/busySMs)
	copies := itemTiles * tileBytes / share * onSM

	read := shape.Keys // of a sequence, by all its query tokens
	if w := s.Masks.Window; w > 0 && shape.Kind != spec.Prefill {
		read = min(read, w+shape.Query)
	}
	keyBytes := float64(shape.Batch*read*m.KVHeads) * dims * elementSize
	if p.Family == SM90 && p.Cluster == 1 && tiles > 1 && shape.Kind == spec.Extend {
		keyBytes *= 1 + readTwice
	}
	queryBytes := float64(shape.Batch*shape.Query*m.QueryHeads) * dims * elementSize
	partialBytes := 0.0
	if parts > 1 {
		partialBytes = float64(shape.Batch*shape.Query*m.QueryHeads*parts) * float64(m.VHeadDim+1) * partialSize
		e.Merge = mergeTime + seconds(partialBytes/c.Read)
	}
	e.Memory = seconds((keyBytes + queryBytes + partialBytes) / c.Read)

	e.Tiles = seconds(itemTiles * k.tile * nanosecond / chains * onSM)
	runs := itemKeys / usualChunk
	if shape.Kind == spec.Prefill {
		runs = 0
	}
	next := (busiest - 1) * k.nextItem
	if p.RotatesOwn() && s.Rope.RotaryDim > 0 {
		next += busiest * ownRotation
	}
	e.Items = seconds((k.item + float64(p.Cluster-1)*clusterStart + next + busiest*runs*k.run) * nanosecond)

	work := e.Products.Seconds() + e.Tiles.Seconds()
	if s.RotatesKeys() {
		units := itemKeys / float64(p.Cluster) * float64(s.Rope.RotaryDim) / rotationUnit // of a block
		if p.Family == SM90 {                                                             // rotators of their own
			e.Rotation = seconds(units * rotatorInstructions * rotatorTime * nanosecond / float64(p.Rotators) * onSM)
			if p.RotatesApart() {
				work += rotationBeside * e.Rotation.Seconds()
			}
		} else { // the warps of the products
			e.Rotation = seconds(units * rotationInstructions * instructionTime * nanosecond / schedulers * onSM)
			work += e.Rotation.Seconds()
		}
	}

	beside := 0.0 // part of e.Items: the products' warps go from item to item beside the rotation of a prefill's queries
	if p.Family == SM90 && shape.Kind == spec.Prefill && p.Rotators > 0 {
		beside = next * nanosecond
		work += beside
		// A thread has sixteen dimensions of a token's heads at a time, and some have none at the end.
		threads, shares := 32*p.Rotators, ((p.BlockRows()-1)/m.Group()+1)*m.HeadDim/16
		rotated := ceil(shares, threads) * threads * 16 * m.Group()
		e.Rotation += seconds(float64(rotated) * queryRotation * nanosecond / float64(p.Rotators) * onSM)
	}

	// The slowest of these sets the pace; the others show where little is in flight.
	pace := []float64{work, copies, e.Memory.Seconds()}
	if p.Family == SM90 {
		pace = append(pace, e.Rotation.Seconds())
	}
	slices.SortFunc(pace, func(a, b float64) int { return cmp.Compare(b, a) })
	hidden := k.waited / float64(p.Stages)
	if p.KeysAhead {
		bytes := 2 * float64(shape.Batch*shape.Keys*m.KVHeads*m.HeadDim) * elementSize
		e.Ahead = launchTime + seconds(bytes/(aheadRate*c.Read))
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
