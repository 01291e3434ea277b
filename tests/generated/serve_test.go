package generated

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/testutil"
	"github.com/kgen-project/kgen/tests/toy"
)

// manyBlocks are kernels as on a larger device than the emulator is, where a short sequence is cut.
type manyBlocks struct{ *kernel.Set }

func (k manyBlocks) Choose(kind abi.Kind, queries, keys int) kernel.Choice {
	return onManyBlocks(k.Set.Choose(kind, queries, keys))
}

func (k manyBlocks) Choices(kind abi.Kind) []kernel.Choice {
	choices := slices.Clone(k.Set.Choices(kind))
	for i, c := range choices {
		choices[i] = onManyBlocks(c)
	}
	return choices
}

func onManyBlocks(c kernel.Choice) kernel.Choice {
	c.Blocks, c.Resident, c.Tokens = 4*llama3.KVHeads, 4*llama3.KVHeads, 128
	return c
}

// TestEngine serves a request with the generated kernels on the emulator, of the sm80 and of the
// sm90 family, by tiles that two blocks share, and by kernels ahead of which raw keys are rotated.
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
		if err := serveRequest(t, c.major, c.bundle, c.model, c.question); err != nil {
			t.Errorf("compute capability %d.0: %v", c.major, err)
		}
	}
}

// TestKernelsWaitForTheOneAhead takes each wait for what the kernel ahead on the stream writes
// out of the kernels, which must show in what is served.
func TestKernelsWaitForTheOneAhead(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip("the emulator needs a C++ compiler")
	}
	const wait = "  ptx::wait_for_previous_kernel();"
	ahead := toy.KeysAhead(t, "llama3", "kgen emulator")
	for _, c := range []struct {
		name     string
		bundle   kernel.Bundle
		model    serve.Model
		kind     abi.Kind
		old, new string
	}{
		{"append", llama3.Bundle(), toy.Llama3(1), abi.KindAppend, wait, ""},
		{"copies of prefill", llama3.Bundle(), toy.Llama3(1), abi.KindPrefill, wait + "  // the lists are", "  //"},
		{"copies of extend", llama3.Bundle(), toy.Llama3(1), abi.KindExtend, wait + "  // the lists are", "  //"},
		{"copies of decode", llama3.Bundle(), toy.Llama3(1), abi.KindDecode, wait + "  // the lists are", "  //"},
		{"keys rotated ahead", ahead, serve.ModelOf(ahead, "toy", 1), abi.KindPrefill, wait + "  // the lists are", "  //"},
		{"rotation ahead", ahead, serve.ModelOf(ahead, "toy", 1), abi.KindMaterialise, wait, ""},
		{"merge", llama3.Bundle(), toy.Llama3(1), abi.KindMerge, wait + "\n  for", "  for"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			changed := false
			kernels := slices.Clone(c.bundle.Kernels)
			for i := range kernels {
				if k := &kernels[i]; k.Kind == c.kind {
					without := bytes.ReplaceAll(k.Source, []byte(c.old), []byte(c.new))
					changed = changed || len(without) < len(k.Source)
					k.Source = without
				}
			}
			if c.bundle.Kernels = kernels; !changed {
				t.Fatalf("no kernel of the kind has %q", c.old)
			}
			if err := serveRequest(t, 9, c.bundle, c.model, 40); err == nil {
				t.Error("what is served is right all the same")
			}
		})
	}
}

// serveRequest serves two requests on the emulator: a question over two documents, then a token,
// and after a further document another; and a question alone, then a token. Keys of the first are
// split and merged; the second has none but those that append writes ahead of each kernel.
func serveRequest(t *testing.T, major int, bundle kernel.Bundle, m serve.Model, question int) (err error) {
	ctx := t.Context()
	dev, err := emulate.Open(ctx, emulate.Options{CacheDir: testutil.Emulator(), Unoptimized: true, Seed: 1, Major: major})
	if err != nil {
		return err
	}
	defer dev.Close()
	kernels, err := kernel.Open(ctx, dev, bundle, kernel.Options{})
	if err != nil {
		return err
	}
	defer kernels.Close()
	e, err := serve.New(dev, manyBlocks{kernels}, m, serve.Options{Pages: 64})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	b := toy.New(dev, e, m)
	first, second := toy.Document(1, 520), toy.Document(2, 21)
	var chunks [2]*kvcache.Chunk
	for i, document := range [][]int32{first, second} {
		if chunks[i], err = e.Register(ctx, document, b.Encode(document)); err != nil {
			return err
		}
	}
	served := 0
	step := func(s *serve.Sequence, r *toy.Request, n int) error {
		tokens := toy.Document(uint64(20+served), n)
		served++
		outs, err := b.Step(ctx, []serve.Entry{{Sequence: s, Tokens: n}}, tokens)
		if err != nil {
			return err
		}
		r.Own = append(r.Own, tokens...)
		if err := b.Compare(r, n, outs, 0); err != nil {
			return fmt.Errorf("step %d, of %d tokens: %w", served, n, err)
		}
		return nil
	}

	s, err := e.Open([]kvcache.Placement{{Chunk: chunks[1], Offset: 70_000}, {Chunk: chunks[0], Offset: kvcache.Packed}}, kvcache.Packed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	own := 70_021 + len(first)
	r := &toy.Request{Segments: []toy.Placed{{Tokens: second, Offset: 70_000}, {Tokens: first, Offset: 70_021}}, Offset: own}
	if err := errors.Join(step(s, r, question), step(s, r, 1)); err != nil {
		return err
	}
	if err := s.Place(kvcache.Pack(chunks[1]), kvcache.Packed); err != nil {
		return err
	}
	behind := own + question + 1
	r.Place(toy.Placed{Tokens: second, Offset: behind})
	r.Offset = behind + len(second)
	if err := step(s, r, 1); err != nil {
		return err
	}

	alone, err := e.Open(nil, kvcache.Packed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.Close()) }()
	r = &toy.Request{}
	return errors.Join(step(alone, r, question), step(alone, r, 1))
}
