package cuda_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Memory is filled on a stream and read back: the same on a GPU (driver.Open), on the
// emulator (emulate.Open) and on the processor.
func Example() {
	sum := func(dev cuda.Device) (total int, err error) {
		p, err := dev.Alloc(16)
		if err != nil {
			return 0, err
		}
		defer dev.Free(p)
		stream, err := dev.NewStream()
		if err != nil {
			return 0, err
		}
		defer dev.DestroyStream(stream)
		if err := dev.Fill(stream, p, 3, 16); err != nil { // queued
			return 0, err
		}
		if err := dev.Synchronize(context.Background(), stream); err != nil {
			return 0, err
		}
		data := make([]byte, 16)
		if err := dev.Download(data, p); err != nil {
			return 0, err
		}
		for _, b := range data {
			total += int(b)
		}
		return total, nil
	}
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	total, err := sum(dev)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(total)
	// Output: 48
}
