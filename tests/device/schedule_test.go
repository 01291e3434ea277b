package device

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// BenchmarkLists is the time of the kernel schedule ("device-us") for decode steps of Llama-3-8B: of
// sequences that hold 19 of 50 documents of 512 tokens each and own tokens behind them, with shared
// decode and without; and what package schedule takes for the same on the host ("host-us"), the
// step before unknown to it.
func BenchmarkLists(b *testing.B) { eachBinding(b, benchmarkLists) }

func benchmarkLists(b *testing.B, o opener) {
	d, kernels := openLlama3(b, o)
	for _, sequences := range []int{1, 64, 256, 1024} {
		for _, shared := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dx20/shared=%t", sequences, shared), func(b *testing.B) { benchmarkListing(b, d, kernels, sequences, shared) })
		}
	}
}

func benchmarkListing(b *testing.B, d cuda.Device, kernels *kernel.Set, sequences int, shared bool) {
	const documents, tokens, held, page, heads = 50, 512, 19, 16, 8
	rows, keys := kernels.Tile(abi.KindDecode)
	blocks := kernels.Blocks(abi.KindDecode)
	o := schedule.Options{Rows: rows, Group: 4, Causal: true, MaxPosition: 1 << 20, PageSize: page, Fold: true}.FillBy(blocks, blocks, heads, schedule.LeastPart(keys))
	o.PadTokens = sequences
	next := int32(documents * tokens / page)
	var steps []schedule.Sequence
	for i := range sequences {
		s := schedule.Sequence{QueryBegin: int32(i), Positions: []int32{0}}
		for j := range held {
			s.Segments = append(s.Segments, schedule.Segment{Page: int32((7*i+j)%documents) * tokens / page, Tokens: tokens, Offset: int32(j * tokens)})
		}
		own := int32(1 + 37*i%400)
		s.Segments = append(s.Segments, schedule.Segment{Page: next, Tokens: own, Offset: held * tokens, Own: true})
		next += own/page + 1
		steps = append(steps, s)
	}
	var given schedule.Given
	needs, err := given.List(steps, o)
	if err != nil {
		b.Fatal(err)
	}
	o.PadItems = needs.Results
	var sharing *schedule.SharedOptions
	if shared {
		rows, keys := kernels.Tile(abi.KindSharedDecode)
		sharing = &schedule.SharedOptions{Rows: rows, Keys: keys, Blocks: kernels.Blocks(abi.KindSharedDecode), KVHeads: heads, PadItems: needs.Pairs / 2, MaxMembers: needs.Pairs}
	}
	p := o.Params(sharing)
	p.SequenceRoom, p.SegmentRoom, p.PartRoom = int32(sequences), int32(needs.Pairs), int32(needs.Parts)
	upload := func(list any) abi.DevicePtr {
		data, err := binary.Append(nil, binary.LittleEndian, list)
		if err != nil {
			b.Fatal(err)
		}
		ptr := alloc(b, d, int64(len(data)))
		if err := d.Upload(ptr, data); err != nil {
			b.Fatal(err)
		}
		return ptr
	}
	p.Counts, p.Sequences, p.Segments = upload([]int32{int32(sequences), int32(needs.Pairs)}), upload(given.Sequences), upload(given.Segments)
	p.Items, p.SlotBegin = alloc(b, d, int64(32*o.PadItems)), alloc(b, d, int64(4*(sequences+1)))
	p.Runs = alloc(b, d, int64(32*(needs.Pairs+needs.Results)))
	p.Scratch = alloc(b, d, int64(4*p.ScratchWords()))
	if shared {
		p.SharedItems, p.SharedRuns = alloc(b, d, int64(32*sharing.PadItems)), alloc(b, d, int64(32*(sharing.PadItems+needs.Pairs)))
		p.Members, p.MemberOffsets, p.Spared = alloc(b, d, int64(8*needs.Pairs)), alloc(b, d, int64(4*needs.Pairs)), upload([]int64{0})
	}
	const launches = 50
	least := math.Inf(1)
	var host time.Duration
	n := 0
	for b.Loop() {
		took, err := d.Time(context.Background(), 0, func() error {
			for range launches {
				if err := kernels.Schedule(0, p); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		least = min(least, float64(took.Nanoseconds())/1000/launches)
		start := time.Now()
		if shared {
			_, err = new(schedule.SharedBuilder).Build(steps, o, *sharing)
		} else {
			_, err = schedule.Build(steps, o)
		}
		if err != nil {
			b.Fatal(err)
		}
		host += time.Since(start)
		n++
	}
	b.ReportMetric(least, "device-us")
	b.ReportMetric(float64(host.Nanoseconds())/1000/float64(n), "host-us")
	b.ReportMetric(0, "ns/op")
}
