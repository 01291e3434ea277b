package toy

import (
	"context"

	"github.com/kgen-project/kgen/runtime/serve"
)

// Recording is a graph of the model with its tensors.
type Recording struct {
	*serve.Graph
	bench   *Bench
	tensors []*tensors // [layers]
}

// Record records the model's decode step.
func (b *Bench) Record(ctx context.Context, size serve.GraphSize) (_ *Recording, err error) {
	r := &Recording{bench: b}
	defer func() {
		if err != nil {
			r.Free()
		}
	}()
	for range b.Model.Layers {
		t, err := newTensors(b.device, b.Model, size.Tokens)
		if err != nil {
			return nil, err
		}
		r.tensors = append(r.tensors, t)
	}
	r.Graph, err = b.Engine.Capture(ctx, size, func(s *serve.Step) error {
		for layer, t := range r.tensors {
			if err := s.Attend(ctx, layer, t.io); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Free frees the tensors; the graph is closed on its own.
func (r *Recording) Free() {
	for _, t := range r.tensors {
		t.free()
	}
}

// Step replays the graph for a batch.
func (r *Recording) Step(ctx context.Context, batch []serve.Entry, tokens []int32) ([][]byte, error) {
	s, err := r.Schedule(ctx, batch)
	if err != nil {
		return nil, err
	}
	defer s.Abort()
	for layer, t := range r.tensors {
		if err := r.bench.put(t, layer, tokens); err != nil {
			return nil, err
		}
	}
	if err := s.Launch(ctx); err != nil {
		return nil, err
	}
	if err := s.Wait(ctx); err != nil {
		return nil, err
	}
	m := r.bench.Model
	outs := make([][]byte, m.Layers)
	for layer, t := range r.tensors {
		outs[layer] = make([]byte, 2*len(tokens)*m.KVHeads*m.Group*m.VHeadDim)
		if err := t.dev.Download(outs[layer], t.io.Out); err != nil {
			return nil, err
		}
	}
	return outs, s.Commit()
}
