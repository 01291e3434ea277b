// Package plan chooses how a kernel is laid out on a target: its family,
// tile, stages, warps and shared memory.
package plan

import "github.com/kgen-project/kgen/gen/spec"

// Plan is the compile-time choice for one kernel on one or more targets.
type Plan struct {
	Kind    spec.Kind
	Family  Family
	Targets []spec.Target // targets that share this plan, in the spec's order
	Tuned   []spec.Target // those of Targets for which it is not the default: a tuned table chooses it
	Rows    int           // rows of a tile (query tokens x heads of one KV head); of sm90's clusters, of all blocks' together
	Keys    int           // keys of a tile
	Stages  int           // K/V tiles in flight
	Warps   int           // of a block
	Shared  int           // dynamic shared memory of a block, bytes
	Results int           // sm90's decode: items whose warps' results there is room for at a time; else 0

	// KeptLevels is how many of the levels that an item's parts fold by (see abi.Item) sm90's
	// decode has room for in shared memory; the others are in the item's scratch.
	KeptLevels int

	// Queries is how many tiles of rotated queries sm90 has room for: with one, queries are
	// rotated for the next item, or run, only when those of the one before are done with.
	Queries int

	// KeyStages is how many tiles of keys sm90's kinds of many rows have in flight: more than of values, as keys are held
	// until their weights are known to be right, and raw ones are rotated first.
	KeyStages int

	// AlignsQueries says that sm90 rotates queries in fp32 once an item, and from there for each of
	// its runs by the same angles for all rows. It takes a warpgroup more.
	AlignsQueries bool

	// KeysAhead says that the kernel of a raw spec reads keys that a launch of materialise ahead of
	// it has rotated, to pages of their own. It is then what it would be for baked keys.
	KeysAhead bool

	// Rotators is how many of the warps rotate queries or raw keys and do nothing else; 0 where each
	// that attends rotates its own queries.
	Rotators int

	// Folds says that the kernel takes items of several parts: see abi.Item.
	Folds bool

	// Cluster is how many blocks share a tile's rows and walk its keys together, each copying a
	// share of them for all: 1, or 2.
	Cluster int

	// MinBlocks is the number of blocks that a multiprocessor must be able to
	// hold, which bounds the registers of a thread; 0 is 1.
	MinBlocks int

	// Fallback says why the plan is not of the family that suits its targets best;
	// "" where it is.
	Fallback string
}

// RotatesApart reports plans of sm90 whose rotators are a warpgroup of their own, which gives
// registers to those that attend.
func (p Plan) RotatesApart() bool {
	return p.Family == SM90 && manyRows(p.Kind) && p.Rotators == apartWarps
}

// RotatesOwn reports plans of sm90 by three warpgroups, each of which rotates its own queries.
func (p Plan) RotatesOwn() bool {
	return p.Family == SM90 && manyRows(p.Kind) && p.Rotators == 0
}

// ExchangesKeys reports plans of two blocks for raw keys: each rotates its share of a tile's keys and gives it to the other.
func (p Plan) ExchangesKeys(s spec.Spec) bool { return p.Cluster > 1 && p.Reads(s).RotatesKeys() }

// WholeTiles reports plans with a loop of its own, without branches, for the tiles of keys that no mask cuts. Where scores are capped it is slower,
// and prefill of 128 dimensions takes up to 6 percent longer by it (H200, 2026-11-29).
func (p Plan) WholeTiles(s spec.Spec) bool {
	if s.Masks.SoftCap > 0 || p.Kind == spec.Prefill && s.Model.HeadDim > 64 {
		return false
	}
	return p.ScalesQueries(s) || p.ExchangesKeys(s)
}

// Reads is the spec whose keys the plan's kernel reads: s, or where they are rotated ahead of it, its
// baked sibling.
func (p Plan) Reads(s spec.Spec) spec.Spec {
	if p.KeysAhead {
		s.Cache.Encoding = spec.Baked
	}
	return s
}

// BlockRows are the rows of a tile that are a block's.
func (p Plan) BlockRows() int { return p.Rows / max(1, p.Cluster) }

// BlockKeys are the keys of a tile that a block copies.
func (p Plan) BlockKeys() int { return p.Keys / max(1, p.Cluster) }

// ItemRows are the rows of the most query tokens of an item, each with a row for every query
// head of a KV head. A block of a cluster takes whole tokens.
func (p Plan) ItemRows(group int) int {
	if p.Cluster > 1 {
		return p.Cluster * (p.BlockRows() / group * group)
	}
	return p.Rows
}

// Threads is the number of threads of a block.
func (p Plan) Threads() int { return 32 * p.Warps }

// Family is a code path for a range of targets.
type Family string

const (
	SM80 Family = "sm80" // mma.sync + cp.async
	SM90 Family = "sm90" // wgmma + TMA, on Hopper
)
