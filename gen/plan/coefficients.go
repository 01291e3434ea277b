package plan

import "time"

// What the cost model (cost.go) was fitted or set to.

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
	pairAligns   = 600 // nanoseconds of an item's alignment that the start of two blocks hides, of up to 128 dimensions (H200 and H100, 2026-11-29, the tuned tables: extend of 16 to 64 tokens over 1k to 8k)
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

// queryRotationTime is a rotator's time, in nanoseconds, for a dimension of a row of an item's queries, above all that of their reads
// (H100, 2026-11-27, traces of prefill of 64 prompts of 128 tokens).
const queryRotationTime = 0.85

// ownRotation is the time, in nanoseconds, for which an item of three warpgroups waits for the rotation of its own queries (H200,
// 2026-11-28: what prefill of 64 dimensions takes less without it, by the item, of 64 prompts of 128 tokens to 4 of 4096).
const ownRotation = 1180

// Of prefill of family sm90: the time, in nanoseconds, by which a further item of several tiles of keys is sooner at work by two blocks, each
// of which copies half of its keys, and the part of `waited` that its prompts have, of which more are on their way (H200, 2026-11-28, by
// one block and by two with eight numbers of heads: tests/device/README.md, "Prompts without a table").
const pairSaves, promptWaits = 350, 0.5
