package nvrtc_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/runtime/nvrtc"
)

func Example() {
	path, err := nvrtc.Find("")
	if err != nil {
		log.Fatal(err)
	}
	library, err := nvrtc.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	made, err := library.Compile(context.Background(), nvrtc.Program{
		Name: "twice.cu", Target: "sm_90a", Flags: []string{"--std=c++17"},
		Source: []byte(`extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }`),
	})
	var refused *nvrtc.CompileError
	if errors.As(err, &refused) {
		log.Fatal(refused.Log)
	} else if err != nil {
		log.Fatal(err)
	}
	fmt.Println(library.Version(), len(made.Cubin), "bytes")
}
