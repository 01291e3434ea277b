package generated

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/templates"
	"github.com/kgen-project/kgen/tests/toy"
)

// manyClusters are kernels for which sequences are cut as on a larger device than the
// emulator is, into parts of a page.
type manyClusters struct{ *kernel.Set }

func cutFiner(c kernel.Choice) kernel.Choice {
	if c.Cluster > 1 {
		c.Blocks, c.Tokens = 64*kvHeads, 16
	}
	return c
}

func (k manyClusters) Choose(kind abi.Kind, query, keys int) kernel.Choice {
	return cutFiner(k.Set.Choose(kind, query, keys))
}

func (k manyClusters) Choices(kind abi.Kind) []kernel.Choice {
	all := k.Set.Choices(kind)
	for i, c := range all {
		all[i] = cutFiner(c)
	}
	return all
}

// An engine lists an extend's work for the kernel's clusters, which merge it.
func TestEngineClusters(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip("the emulator needs a C++ compiler")
	}
	const path = "../../specs/smollm2_135m.yaml"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spec.Parse(path, append(data, "\ntiles: {extend: {cluster: 8}}\n"...))
	if err != nil {
		t.Fatal(err)
	}
	s.Targets = []spec.Target{"sm_90a"}
	plans, err := plan.All(s)
	if err != nil {
		t.Fatal(err)
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	dev, err := emulate.Open(ctx, emulate.Options{CacheDir: t.TempDir(), Seed: 1, Major: 9})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	kernels, err := kernel.Open(ctx, dev, out.Bundle(s), kernel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer kernels.Close()
	m := serve.ModelOf(out.Bundle(s), "toy", 1)
	e, err := serve.New(dev, manyClusters{kernels}, m, serve.Options{Pages: 64})
	if err != nil {
		t.Fatal(err)
	}
	b := toy.New(dev, e, m)
	document := toy.Document(1, 270)
	seq, err := e.Open([]kvcache.Placement{{Chunk: b.Register(t, document), Offset: 70_000}}, kvcache.Packed)
	if err != nil {
		t.Fatal(err)
	}
	r := &toy.Request{Segments: []toy.Placed{{Tokens: document, Offset: 70_000}}, Offset: 70_270}
	dev.TakeCounters()
	for _, n := range []int{60, 20} {
		tokens := toy.Document(uint64(n), n)
		outs, err := b.Step(ctx, []serve.Entry{{Sequence: seq, Tokens: n}}, tokens)
		if err != nil {
			t.Fatal(err)
		}
		r.Own = append(r.Own, tokens...)
		if err := b.Compare(r, n, outs, 0); err != nil {
			t.Errorf("%d tokens: %v", n, err)
		}
		if dev.TakeCounters().PeerStoreBytes == 0 {
			t.Errorf("%d tokens: no block sent anything to a peer", n)
		}
	}
	if err := errors.Join(seq.Close(), e.Close()); err != nil {
		t.Error(err)
	}
}
