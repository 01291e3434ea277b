// Package toy drives an engine of runtime/serve with a model whose every output
// is known, and holds what it gives to the oracle: on any device.
package toy

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/serve"
)

// weights are a model of attention alone: a layer's Q, K and V of a token depend on
// the token and the layer, and its output goes nowhere. So what a sequence must
// give is known from its tokens.
type weights struct {
	Model serve.Model
	rows  [][3][][]float64 // [layers] of Q, K and V: [tokens of the vocabulary][elements]
	bound float64          // of a row's relative error
}

const vocabulary = 64

func newWeights(m serve.Model) *weights {
	t := &weights{Model: m, rows: make([][3][][]float64, m.Layers)}
	rng := rand.New(rand.NewPCG(1, 1))
	norms := [3]float64{}
	for layer := range t.rows {
		for i, elements := range []int{m.KVHeads * m.Group * m.HeadDim, m.KVHeads * m.HeadDim, m.KVHeads * m.VHeadDim} {
			for range vocabulary {
				row := make([]float64, elements)
				for j := range row {
					row[j] = numeric.BF16.Round(rng.NormFloat64())
				}
				t.rows[layer][i] = append(t.rows[layer][i], row)
				for ; len(row) >= m.HeadDim; row = row[m.HeadDim:] {
					norms[i] = max(norms[i], norm(row[:m.HeadDim]))
				}
			}
		}
	}
	// As gen/verify's: 4 epsilon sqrt(1 + sigma^2), sigma the size of a score.
	sigma := float64(m.Scale) * norms[0] * norms[1] / math.Sqrt(float64(m.HeadDim))
	t.bound = 4 * numeric.BF16.Epsilon() * math.Sqrt(1+sigma*sigma)
	return t
}

func norm(x []float64) float64 {
	sum := 0.0
	for _, e := range x {
		sum += e * e
	}
	return math.Sqrt(sum)
}

// Small is the shape of a small model for the CPU.
func Small() serve.Model {
	variant, err := rope.Rule{Type: "default", Theta: 100, Pairing: rope.Half, RotaryDim: 8, MaxPosition: 4096}.Resolve()
	if err != nil {
		panic(err)
	}
	return serve.Model{
		Name: "toy", SpecDigest: "digest", Layers: 2, KVHeads: 2, Group: 2, HeadDim: 8, VHeadDim: 8, PageSize: 4,
		Encoding: "segment", Rope: variant, Scale: float32(1 / math.Sqrt(8)), RopeScale: 1, Causal: true,
	}
}

// Bench is an engine and its model.
type Bench struct {
	*weights
	Engine   *serve.Engine
	Trusting bool // the outputs of encodes are not looked at
	device   cuda.Device

	mu   sync.Mutex
	free []*tensors
}

// New returns a bench of an engine for the model on a device; an engine of nil
// is set later.
func New(dev cuda.Device, e *serve.Engine, m serve.Model) *Bench {
	return &Bench{weights: newWeights(m), device: dev, Engine: e}
}

// tensors is device memory for a step's tensors.
type tensors struct {
	dev    cuda.Device
	tokens int
	io     serve.IO
}

func newTensors(dev cuda.Device, m serve.Model, tokens int) (*tensors, error) {
	t := &tensors{dev: dev, tokens: tokens}
	for _, part := range []struct {
		ptr      *abi.DevicePtr
		elements int
	}{
		{&t.io.Q, m.KVHeads * m.Group * m.HeadDim}, {&t.io.K, m.KVHeads * m.HeadDim},
		{&t.io.V, m.KVHeads * m.VHeadDim}, {&t.io.Out, m.KVHeads * m.Group * m.VHeadDim},
	} {
		ptr, err := dev.Alloc(int64(2 * tokens * part.elements))
		if err != nil {
			t.free()
			return nil, err
		}
		*part.ptr = ptr
	}
	return t, nil
}

func (t *tensors) free() {
	for _, p := range []abi.DevicePtr{t.io.Q, t.io.K, t.io.V, t.io.Out} {
		if p != 0 {
			_ = t.dev.Free(p)
		}
	}
}

// put uploads a layer's Q, K and V of the tokens.
func (t *weights) put(b *tensors, layer int, tokens []int32) error {
	for i, ptr := range []abi.DevicePtr{b.io.Q, b.io.K, b.io.V} {
		var data []byte
		for _, token := range tokens {
			data = numeric.BF16.Encode(data, t.rows[layer][i][token]...)
		}
		if err := b.dev.Upload(ptr, data); err != nil {
			return err
		}
	}
	return nil
}

// take returns tensors for a step; give takes them back.
func (b *Bench) take(tokens int) (*tensors, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, t := range b.free {
		if t.tokens >= tokens {
			b.free = slices.Delete(b.free, i, i+1)
			return t, nil
		}
	}
	return newTensors(b.device, b.Model, max(tokens, 64))
}

func (b *Bench) give(t *tensors) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = append(b.free, t)
}

// Forward runs a step's layers and returns their outputs, [layers][tokens][query heads][v head dim].
func (b *Bench) Forward(ctx context.Context, s *serve.Step, tokens []int32) ([][]byte, error) {
	t, err := b.take(len(tokens))
	if err != nil {
		return nil, err
	}
	defer b.give(t)
	outs := make([][]byte, b.Model.Layers)
	for layer := range outs {
		if err := b.put(t, layer, tokens); err != nil {
			return nil, err
		}
		if err := s.Attend(ctx, layer, t.io); err != nil {
			return nil, err
		}
		if err := s.Wait(ctx); err != nil {
			return nil, err
		}
		outs[layer] = make([]byte, 2*len(tokens)*b.Model.KVHeads*b.Model.Group*b.Model.VHeadDim)
		if err := b.device.Download(outs[layer], t.io.Out); err != nil {
			return nil, err
		}
	}
	return outs, nil
}

// Encode is the callback that registers a document of the tokens.
func (b *Bench) Encode(tokens []int32) serve.Encode {
	return func(ctx context.Context, s *serve.Step) error {
		if s.Tokens() != len(tokens) {
			return fmt.Errorf("a step of %d tokens for a document of %d", s.Tokens(), len(tokens))
		}
		outs, err := b.Forward(ctx, s, tokens)
		if err != nil || b.Trusting {
			return err
		}
		return b.Compare(&Request{Own: tokens}, len(tokens), outs, 0)
	}
}

// Register returns a document's chunk.
func (b *Bench) Register(tb testing.TB, tokens []int32) *kvcache.Chunk {
	tb.Helper()
	c, err := b.Engine.Register(tb.Context(), tokens, b.Encode(tokens))
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// Document is n tokens.
func Document(seed uint64, n int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 9))
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = rng.Int32N(vocabulary)
	}
	return tokens
}

// Step runs one step of the batch with its new tokens, and returns its outputs.
func (b *Bench) Step(ctx context.Context, batch []serve.Entry, tokens []int32) ([][]byte, error) {
	s, err := b.Engine.Schedule(ctx, batch)
	if err != nil {
		return nil, err
	}
	defer s.Abort()
	outs, err := b.Forward(ctx, s, tokens)
	if err != nil {
		return nil, err
	}
	return outs, s.Commit()
}

// Ahead runs steps one behind the other and waits for the device once all are
// queued. It returns each step's outputs.
func (b *Bench) Ahead(ctx context.Context, batches [][]serve.Entry, tokens [][]int32) ([][][]byte, error) {
	all := make([][]*tensors, len(batches)) // [steps][layers]
	for i := range all {
		for layer := range b.Model.Layers {
			t, err := newTensors(b.device, b.Model, len(tokens[i]))
			if err != nil {
				return nil, err
			}
			defer t.free()
			if err := b.put(t, layer, tokens[i]); err != nil {
				return nil, err
			}
			all[i] = append(all[i], t)
		}
	}
	for i, batch := range batches {
		s, err := b.Engine.Schedule(ctx, batch)
		if err != nil {
			return nil, err
		}
		defer s.Abort()
		for layer, t := range all[i] {
			if err := s.Attend(ctx, layer, t.io); err != nil {
				return nil, err
			}
		}
		if err := s.Commit(); err != nil {
			return nil, err
		}
	}
	if err := b.device.Synchronize(ctx, b.Engine.Stream()); err != nil {
		return nil, err
	}
	outs := make([][][]byte, len(batches))
	for i, layers := range all {
		for _, t := range layers {
			out := make([]byte, 2*len(tokens[i])*b.Model.KVHeads*b.Model.Group*b.Model.VHeadDim)
			if err := b.device.Download(out, t.io.Out); err != nil {
				return nil, err
			}
			outs[i] = append(outs[i], out)
		}
	}
	return outs, nil
}
