package cpu_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/numeric"
)

// Two tokens' K and V go to a page, and one query attends to them: it is
// orthogonal to both keys, so that it sees the mean of the values.
func Example() {
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	kernels, err := cpu.NewKernels(dev, cpu.Config{
		Name: "tiny", Group: 1, HeadDim: 2, VHeadDim: 2, Element: cpu.BF16, PageSize: 4, Encoding: cpu.Baked,
	})
	if err != nil {
		log.Fatal(err)
	}
	upload := func(data any) abi.DevicePtr {
		raw, err := binary.Append(nil, binary.LittleEndian, data)
		if err != nil {
			log.Fatal(err)
		}
		p, err := dev.Alloc(int64(len(raw)))
		if err != nil {
			log.Fatal(err)
		}
		if err := dev.Upload(p, raw); err != nil {
			log.Fatal(err)
		}
		return p
	}
	bf16 := numeric.BF16
	const pageBytes = 4 * 2 * 2 // tokens, elements, bytes
	pageK, pageV, out := upload(make([]byte, pageBytes)), upload(make([]byte, pageBytes)), upload(make([]byte, 4))

	err = kernels.Append(0, abi.AppendParams{
		K: upload(bf16.Encode(nil, 1, 0, -1, 0)), V: upload(bf16.Encode(nil, 10, 1, 20, 2)),
		KCache: pageK, VCache: pageV, Slots: upload([]int32{0, 1}), Positions: upload([]int32{0, 1}),
		KTokenStride: 2, VTokenStride: 2, KVHeads: 1, Tokens: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	err = kernels.Decode(0, abi.AttendParams{
		Q: upload(bf16.Encode(nil, 0, 1)), KCache: pageK, VCache: pageV, Out: out,
		Items:     upload([]abi.Item{{QCount: 1, RunEnd: 1, Slot: abi.Final}}),
		Runs:      upload([]abi.Run{{End: 2, Causal: abi.Visible}}),
		PageTable: upload([]int32{0}), Positions: upload([]int32{1}),
		KVHeads: 1, ItemCount: 1, Scale: 1, RopeScale: 1,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := dev.Synchronize(context.Background(), 0); err != nil {
		log.Fatal(err)
	}
	result := make([]byte, 4)
	if err := dev.Download(result, out); err != nil {
		log.Fatal(err)
	}
	fmt.Println(bf16.Decode(result))
	// Output: [15 1.5]
}
