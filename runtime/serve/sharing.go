package serve

import (
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// sharedDecoder is Kernels of which one reads a chunk once for all sequences of a
// decode step that hold it, where Tile says that there is one.
type sharedDecoder interface {
	SharedDecode(s cuda.Stream, p abi.AttendParams) error
}

// sharingOptions says how shared decode's work is listed; nil where there is no
// kernel for it.
func sharingOptions(m Model, k Kernels, device cuda.Info) *schedule.SharedOptions {
	rows, keys := k.Tile(abi.KindSharedDecode)
	if _, ok := k.(sharedDecoder); !ok || rows < m.Group {
		return nil
	}
	return &schedule.SharedOptions{
		Rows: rows, Keys: keys, Blocks: blocksOf(k, abi.KindSharedDecode, device), KVHeads: m.KVHeads, Bitwise: m.Sharing == bitwise,
	}
}

// fixedShared is the capacity of a graph's lists of shared decode.
type fixedShared struct {
	items, runs, members, offsets int
}

// shares is whether steps in the workspace have shared decode.
func (w *workspace) shares(e *Engine) bool {
	return e.sharing != nil && (w.fixed == nil || w.fixed.shared.items > 0)
}

// fixedShared is what steps of the size may take. A query token takes a member for
// each chunk that it reads and, where those are cut by their lengths alone, one
// for each cut. Where the builder may choose it makes do with what there is.
func (e *Engine) fixedShared(size GraphSize) fixedShared {
	o := e.sharing
	if o == nil || size.Tokens == 1 && !o.Bitwise { // one query token has nobody to share with
		return fixedShared{}
	}
	f := fixedShared{offsets: size.Segments, members: size.Segments}
	if o.Bitwise {
		cut := o.BitwiseCut(e.routes.options(decode).PageSize)
		parts := max(1, o.Blocks/o.KVHeads)
		if size.Context > 0 {
			parts = (size.Context + cut - 1) / cut
		}
		f.members += size.Tokens * parts
		f.items = f.members
	} else {
		// Two share an item, at least, but for the last tile of a chunk; few items
		// are cut only where there are few.
		f.items = max(size.Segments/2, 4*o.Blocks/o.KVHeads)
	}
	f.runs = f.items + size.Segments
	return f
}
