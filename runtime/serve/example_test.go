package serve_test

import (
	"context"
	"fmt"
	"log"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/serve"
)

// A server without a GPU: two documents, encoded once, answer two requests that
// hold them in different orders.
func Example() {
	ctx := context.Background()
	variant, err := rope.Rule{Type: "default", Theta: 10000, Pairing: rope.Half, RotaryDim: 64, MaxPosition: 1 << 17}.Resolve()
	check(err)
	model := serve.Model{
		Name: "example", Layers: 2, KVHeads: 2, Group: 4, HeadDim: 64, VHeadDim: 64, PageSize: 16,
		Encoding: "segment", Rope: variant, Scale: float32(1 / math.Sqrt(64)), RopeScale: 1, Causal: true,
	}
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	kernels, err := cpu.NewKernels(dev, cpu.Config{
		Group: 4, HeadDim: 64, VHeadDim: 64, Element: cpu.BF16, Rope: variant, PageSize: 16, Encoding: cpu.Segment,
	})
	check(err)
	engine, err := serve.New(dev, kernels, model, serve.Options{Pages: 256})
	check(err)
	defer engine.Close()

	// The tensors of a step. The rest of the model would write q, k and v, and
	// read out; here they stay zero.
	const tokens, heads, kvHeads, dim = 512, 8, 2, 64
	alloc := func(elements int64) abi.DevicePtr {
		p, err := dev.Alloc(2 * elements)
		check(err)
		check(dev.Fill(engine.Stream(), p, 0, 2*elements))
		return p
	}
	io := serve.IO{Q: alloc(tokens * heads * dim), K: alloc(tokens * kvHeads * dim), V: alloc(tokens * kvHeads * dim), Out: alloc(tokens * heads * dim)}
	forward := func(_ context.Context, step *serve.Step) error {
		for layer := range model.Layers {
			if err := step.Attend(ctx, layer, io); err != nil {
				return err
			}
		}
		return nil
	}

	manual, err := engine.Register(ctx, make([]int32, 300), forward)
	check(err)
	article, err := engine.Register(ctx, make([]int32, 100), forward)
	check(err)
	first, err := engine.Open(kvcache.Pack(manual, article), kvcache.Packed)
	check(err)
	second, err := engine.Open(kvcache.Pack(article, manual), kvcache.Packed)
	check(err)
	for _, n := range []int{20, 1, 1} { // a question of 20 tokens, then two more tokens
		step, err := engine.Schedule(ctx, []serve.Entry{{Sequence: first, Tokens: n}, {Sequence: second, Tokens: n}})
		check(err)
		check(forward(ctx, step))
		check(step.Wait(ctx)) // the logits can be read, and the next token chosen
		check(step.Commit())
	}
	s := engine.Cache().Stats()
	fmt.Printf("%d encodes, %d pages used, next tokens at %d and %d\n", s.Encodes, s.PagesUsed, first.Next(), second.Next())
	// Output:
	// 2 encodes, 30 pages used, next tokens at 422 and 422
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
