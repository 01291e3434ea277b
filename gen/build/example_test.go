package build_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/runtime/cubincache"
)

func ExampleBuild() {
	ctx := context.Background()
	compiler, err := build.FindCompiler(ctx, build.Auto, toolchain.Find("/var/cache/kgen/toolchain"), "")
	if err != nil {
		log.Fatal(err)
	}
	sources := []build.Source{{
		Name: "twice.cu", Entry: "twice", Target: "sm_90a",
		Text: []byte(`extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }`),
	}}
	cubins, err := build.Build(ctx, compiler, cubincache.Cache{Dir: "/var/cache/kgen/cubins"}, sources, build.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range cubins {
		fmt.Println(c.Source.Name, c.Source.Target, c.Figures.Registers, "registers, from the cache:", c.FromCache)
	}
}
