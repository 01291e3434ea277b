package generated

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// manyBlocks are kernels for which sequences are cut as on a larger device than
// the emulator is.
type manyBlocks struct{ *kernel.Set }

func (manyBlocks) Blocks(abi.Kind) int { return 2 * kvHeads }

// TestEngine serves a request with the generated kernels on the emulator: a long
// question, so that keys are split and merged, then a token, and after a further
// document another; of the sm80 and of the sm90 family, by tiles that two blocks share, and by
// kernels ahead of which raw keys are rotated.
func TestEngine(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip("the emulator needs a C++ compiler")
	}
	pairs := llama3.Bundle()
	pairs.Tuned = []kernel.Tuned{{Device: "kgen emulator", Rules: []kernel.Rule{{Kind: abi.KindExtend, Entry: "kgen_llama3_extend_sm90_r256k128s2w16"}}}}
	ahead := toy.KeysAhead(t, "llama3", "kgen emulator")
	for _, c := range []struct {
		major    int
		bundle   kernel.Bundle
		model    serve.Model
		question int
	}{
		{8, smollm2_135m.Bundle(), toy.SmolLM2(1), 20},
		{9, smollm2_135m.Bundle(), toy.SmolLM2(1), 20},
		{9, pairs, toy.Llama3(1), 40},
		{9, ahead, serve.ModelOf(ahead, "toy", 1), 40},
	} {
		major, ctx := c.major, t.Context()
		dev, err := emulate.Open(ctx, emulate.Options{CacheDir: cacheDir, Seed: 1, Major: major})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		kernels, err := kernel.Open(ctx, dev, c.bundle, kernel.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer kernels.Close()
		m := c.model
		e, err := serve.New(dev, manyBlocks{kernels}, m, serve.Options{Pages: 64})
		if err != nil {
			t.Fatal(err)
		}
		b := toy.New(dev, e, m)
		first, second := toy.Document(1, 270), toy.Document(2, 21)
		s, err := e.Open([]kvcache.Placement{{Chunk: b.Register(t, second), Offset: 70_000}, {Chunk: b.Register(t, first), Offset: kvcache.Packed}}, kvcache.Packed)
		if err != nil {
			t.Fatal(err)
		}
		r := &toy.Request{Segments: []toy.Placed{{Tokens: second, Offset: 70_000}, {Tokens: first, Offset: 70_021}}, Offset: 70_291}
		for i, n := range []int{c.question, 1, 1} {
			if i == 2 {
				if err := s.Place(kvcache.Pack(b.Register(t, second)), kvcache.Packed); err != nil {
					t.Fatal(err)
				}
				behind := 70_291 + c.question + 1
				r.Place(toy.Placed{Tokens: second, Offset: behind})
				r.Offset = behind + len(second)
			}
			tokens := toy.Document(uint64(20+i), n)
			outs, err := b.Step(ctx, []serve.Entry{{Sequence: s, Tokens: n}}, tokens)
			if err != nil {
				t.Fatal(err)
			}
			r.Own = append(r.Own, tokens...)
			if err := b.Compare(r, n, outs, 0); err != nil {
				t.Errorf("compute capability %d.0, %d tokens: %v", major, n, err)
			}
		}
		if err := errors.Join(s.Close(), e.Close()); err != nil {
			t.Error(err)
		}
	}
}
