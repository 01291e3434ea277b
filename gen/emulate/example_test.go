package emulate_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// A kernel that doubles 32 numbers.
const double = `
struct Params { float* x; };

extern "C" __global__ void double_it(const __grid_constant__ Params p) {
  p.x[ptx::thread_index()] *= 2;
}
`

func Example() {
	if err := run(); err != nil {
		fmt.Println(err)
	}
	// Output: [2 4 6 8]
}

func run() error {
	cache, err := os.MkdirTemp("", "example")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	device, err := emulate.Open(context.Background(), emulate.Options{CacheDir: cache})
	if err != nil {
		return err
	}
	defer device.Close()

	module, err := device.Load(cuda.Image{Name: "double", Source: []byte(double)})
	if err != nil {
		return err
	}
	kernel, err := module.Kernel("double_it")
	if err != nil {
		return err
	}
	numbers := make([]float32, 32)
	for i := range numbers {
		numbers[i] = float32(i + 1)
	}
	bytes, err := binary.Append(nil, binary.LittleEndian, numbers)
	if err != nil {
		return err
	}
	x, err := device.Alloc(int64(len(bytes)))
	if err != nil {
		return err
	}
	if err := device.Upload(x, bytes); err != nil {
		return err
	}
	params := binary.LittleEndian.AppendUint64(nil, uint64(x))
	if err := kernel.Launch(0, cuda.LaunchConfig{GridX: 1, GridY: 1, GridZ: 1, Threads: 32}, params); err != nil {
		return err
	}
	if err := device.Download(bytes, x); err != nil {
		return err
	}
	if _, err := binary.Decode(bytes, binary.LittleEndian, numbers); err != nil {
		return err
	}
	fmt.Println(numbers[:4])
	return nil
}
