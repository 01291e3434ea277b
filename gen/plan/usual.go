package plan

import (
	"math/bits"

	"github.com/kgen-project/kgen/gen/spec"
)

// usualTiles are a kind's tiles, the preferred one first; nil for kinds without tiles.
func usualTiles(s spec.Spec, kind spec.Kind, family Family) []spec.Tile {
	switch {
	case family == SM90 && manyRows(kind) && s.Model.HeadDim > 128:
		return wideSM90Tiles(s, kind)
	case family == SM90 && manyRows(kind):
		return sm90Tiles(s, kind)
	case family == SM90 && kind == spec.Decode:
		return sm90DecodeTiles(s)
	case manyRows(kind):
		return sm80Tiles(s)
	case kind == spec.Decode:
		return sm80DecodeTiles(s)
	}
	return nil
}

// wideSM90Tiles are those of family sm90's kinds of many rows with more than 128 dimensions.
func wideSM90Tiles(s spec.Spec, kind spec.Kind) []spec.Tile {
	m := s.Model
	// Of 128 rows there is room for one tile of queries, so that a further rotation waits for
	// the use of the one before: it must be short, and that of aligned queries is. Otherwise
	// too, but for shared decode's, twice the rows gain more. A window takes
	// registers, and so do the heads of a token (and capped scores: see roomToCap). Prefill's queries are rotated under the item
	// before: by a warpgroup it takes a third less for prompts of up to 512 tokens.
	small := spec.Tile{Rows: 64, Keys: 64, Stages: 2, Warps: 8}
	beside := spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 12}
	if canAlign(s, kind) {
		return []spec.Tile{apartTile(64), beside, small}
	}
	heads := 8
	if s.Masks.Window > 0 && m.VHeadDim > 128 {
		if heads = 6; s.Cache.Encoding == spec.Baked {
			heads = 0 // spills 16 bytes
		}
	}
	var tiles []spec.Tile
	if rotatesWholeItems(s, kind) {
		tiles = append(tiles, apartTile(64))
	}
	if kind != spec.SharedDecode && !s.RotatesKeys() && m.Group() <= heads {
		tiles = append(tiles, beside)
	}
	return append(tiles, small)
}

// sm90Tiles are those of family sm90's kinds of many rows with up to 128 dimensions.
func sm90Tiles(s spec.Spec, kind spec.Kind) []spec.Tile {
	m := s.Model
	small := spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 12}
	tiles := []spec.Tile{{Rows: 128, Keys: 128, Stages: 2, Warps: 12}, small}
	if s.Masks.SoftCap > 0 {
		tiles = []spec.Tile{tiles[0], apartTile(64), small, {Rows: 64, Keys: 64, Stages: 2, Warps: 8}} // see roomToCap
	}
	if kind == spec.Extend && !s.RotatesKeys() && shortWindow(s) {
		// What a tile of query tokens sees then ends early in its second tile of 128 keys: of 64 keys extend takes up to 22 percent
		// less, and 1 more at most (H100, 2026-11-27, window 128, head dims 64 and 128).
		return append([]spec.Tile{{Rows: 128, Keys: 64, Stages: 3, Warps: 12}, small}, tiles...)
	}
	if m.HeadDim == 64 && !s.RotatesKeys() {
		if kind == spec.Prefill {
			// Exponentials then take as long as products: two warpgroups do them while a third multiplies.
			return append([]spec.Tile{{Rows: ownRows, Keys: ownKeys, Stages: 3, Warps: attendWarps(ownRows)}, apartTile(128)}, tiles...)
		}
		tiles[0].Stages = 3 // for which there is room; extend takes 2 to 5 percent less time
		// Products take half as long as of 128 dimensions, and by arithmetic rotations show more beside them.
		// But an item begins later, by an alignment: with a window of 512, 12 warps take 1 to 7 percent less (H100, 2026-11-27).
		// Capped scores take longer than products, and leave nothing to save: 12 warps take 2 to 6 percent less (H200, 2026-11-28).
		if canAlign(s, kind) && !manyCopies(s) && s.Masks.SoftCap == 0 && (s.Masks.Window == 0 || s.Masks.Window > fewKeys) {
			apart := tiles[0]
			apart.Warps += apartWarps
			return append([]spec.Tile{apart}, tiles...)
		}
	}
	if rotatesWholeItems(s, kind) || kind != spec.SharedDecode && m.VHeadDim <= 128 && FP16Keys(s, SM90) && s.Rope.RotaryDim >= fewRotated {
		if manyCopies(s) {
			return append([]spec.Tile{apartTile(64)}, tiles...)
		}
		return append([]spec.Tile{apartTile(128), apartTile(64)}, tiles...)
	}
	return tiles
}

func sm90DecodeTiles(s spec.Spec) []spec.Tile {
	m := s.Model
	rows, helpers := decodeRows(m), sm90DecodeHelpers(s)
	small := spec.Tile{Rows: rows, Keys: 32, Stages: 4, Warps: helpers + 2} // fewer results to merge
	if s.RotatesKeys() && wideDecode(m) {
		return []spec.Tile{small}
	}
	tiles := []spec.Tile{
		{Rows: rows, Keys: 64, Stages: 4, Warps: helpers + 4},
		{Rows: rows, Keys: 32, Stages: 4, Warps: helpers + 4},
		small,
	}
	if s.RotatesKeys() {
		return tiles
	}
	if byTwoBlocks(s, spec.Decode, SM90) {
		return append([]spec.Tile{{Rows: rows, Keys: 32, Stages: 4, Warps: helpers + 4}}, tiles...)
	}
	// Memory gives three tiles of 32 KB in flight as fast as four, or faster. More rows
	// have registers for the scores of fewer keys at a time.
	wide := rows / 16
	keys := max(1, 4/wide) * 16
	if m.HeadDim+m.VHeadDim <= 128 && wide < 4 {
		keys *= 2
	}
	return append([]spec.Tile{{Rows: rows, Keys: keys, Stages: 3 * wide, Warps: helpers + 3}}, tiles...)
}

// sm80Tiles are those of family sm80's kinds of many rows.
func sm80Tiles(s spec.Spec) []spec.Tile {
	m := s.Model
	if m.VHeadDim > 128 {
		// One block of rows a warp: the outputs of two take more registers than there are.
		keys, stages := 64, 1
		if s.Masks.SoftCap > 0 || s.Masks.Window > 0 {
			keys, stages = 32, 2 // capping and a window take registers too
		}
		return []spec.Tile{
			{Rows: 128, Keys: keys, Stages: stages, Warps: 8},
			{Rows: 64, Keys: keys, Stages: stages, Warps: 4},
		}
	}
	// Two m16 blocks of rows a warp: each fragment of K and V that is read from
	// shared memory then feeds two products, without which shared memory is
	// slower than the matrix units.
	if m.VHeadDim == 128 && s.Masks.Window > 0 && bits.OnesCount(uint(m.Group())) > 1 {
		// A window needs each row's token, and a division by the group for that takes registers.
		return []spec.Tile{
			{Rows: 128, Keys: 32, Stages: 2, Warps: 4},
			{Rows: 128, Keys: 32, Stages: 1, Warps: 4},
		}
	}
	return []spec.Tile{
		{Rows: 128, Keys: 64, Stages: 2, Warps: 4},
		{Rows: 128, Keys: 64, Stages: 1, Warps: 4},
		{Rows: 128, Keys: 32, Stages: 1, Warps: 4},
	}
}

func sm80DecodeTiles(s spec.Spec) []spec.Tile {
	// Small tiles, many in flight: a warp's copies are what hides the latency.
	rows := decodeRows(s.Model)
	return []spec.Tile{
		{Rows: rows, Keys: 16, Stages: 2, Warps: 4},
		{Rows: rows, Keys: 16, Stages: 2, Warps: 2},
		{Rows: rows, Keys: 16, Stages: 1, Warps: 2}, // all that 64 rows of 256 dimensions leave on a target of 99 KiB
	}
}

// apartTile is one of so many keys for which a warpgroup of its own rotates.
func apartTile(keys int) spec.Tile {
	return spec.Tile{Rows: apartRows, Keys: keys, Stages: 2, Warps: attendWarps(apartRows) + apartWarps}
}

// shortWindow reports windows that leave an item little more than a tile of keys.
func shortWindow(s spec.Spec) bool { return s.Masks.Window > 0 && s.Masks.Window <= 128 }

// byTwoBlocks reports decode whose usual tile is for two blocks a multiprocessor: an item mostly waits for its first keys,
// under which the other block's item is at work. (H100, 2026-11-27, window 128, head dim 64: 8 to 27 percent less time. Head dim 128 takes
// as long by one block, and 64 with a window of 512.)
func byTwoBlocks(s spec.Spec, kind spec.Kind, family Family) bool {
	m := s.Model
	return family == SM90 && kind == spec.Decode && shortWindow(s) && m.HeadDim+m.VHeadDim <= 128 && decodeRows(m) == 16 && !s.RotatesKeys() && s.Masks.SoftCap == 0
}

// manyCopies reports caches of which a tile of 128 keys takes sixteen pages, each with its heads' places or beside
// the look for where a window cuts: more registers than copiers beside four rotators have.
func manyCopies(s spec.Spec) bool {
	return s.Cache.PageSize <= smallestPage && (s.Cache.Layout == spec.HND || s.Masks.Window > 0)
}

// decodeRows is the fewest rows that hold one token's heads.
func decodeRows(m spec.Model) int { return roundUp(m.Group(), 16) }
