package kernel_test

import (
	"context"
	"log"

	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// Kernels for whatever GPU there is: embedded, from the cache of kgen build, or made
// by NVRTC, once.
func ExampleOpen() {
	ctx := context.Background()
	dev, err := driver.Open(ctx, 0)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	kernels, err := kernel.Open(ctx, dev, llama3.Bundle(), kernel.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer kernels.Close()
	if err := kernels.Append(0, abi.AppendParams{ /* addresses, strides and sizes */ }); err != nil {
		log.Fatal(err)
	}
}
