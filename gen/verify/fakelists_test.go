package verify_test

import (
	"encoding/binary"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/schedule"
)

func (g goKernels) Schedule(_ cuda.Stream, p abi.ScheduleParams) error {
	return guarded(func() {
		n := structs[int32](g.dev, p.Counts, 2)
		sequences, segments := structs[abi.Sequence](g.dev, p.Sequences, int(n[0])), structs[abi.Segment](g.dev, p.Segments, int(n[1]))
		switch g.fault {
		case "never two sequences of a chunk":
			p.Bitwise, p.SharedBlocks = 0, math.MaxInt32
		case "more tokens than are read once":
			p.OnceTokens = 1
		case "parts of an item":
			p.PartsPerItem = 2
		}
		lists, err := new(schedule.Maker).Make(&p, sequences, segments)
		if err != nil {
			panic(err)
		}
		if g.fault == "slots of the first token" {
			for i := range lists.Members {
				lists.Members[i].Slot = lists.Members[0].Slot
			}
		}
		g.put(p.Items, lists.Decode.Items)
		g.put(p.Runs, lists.Decode.Runs)
		g.put(p.SlotBegin, lists.Decode.SlotBegin)
		if p.SharedItems == 0 {
			return
		}
		g.put(p.SharedItems, lists.Items)
		g.put(p.SharedRuns, lists.Runs)
		g.put(p.Members, lists.Members)
		g.put(p.MemberOffsets, lists.Offsets)
		if g.fault != "nothing spared" {
			g.put(p.Spared, structs[int64](g.dev, p.Spared, 1)[0]+int64(lists.Saved))
		}
	})
}

// put writes a list to memory.
func (g goKernels) put(to abi.DevicePtr, list any) {
	if n := binary.Size(list); n > 0 {
		if _, err := binary.Encode(g.dev.bytes(to, n), binary.LittleEndian, list); err != nil {
			panic(err)
		}
	}
}
