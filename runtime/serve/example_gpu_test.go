package serve_test

import (
	"context"
	"log"

	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/serve"
)

// An engine of Llama-3-8B on the first GPU, all of its KV heads on it.
func ExampleNew() {
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
	model := serve.ModelOf(llama3.Bundle(), "Meta-Llama-3-8B", 32)             // 32 layers
	engine, err := serve.New(dev, kernels, model, serve.Options{Pages: 16384}) // 32 GiB: 2 MiB a page of 16 tokens
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
}
