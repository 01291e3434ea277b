package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/serve"
)

// kernels are a *kernel.Set or a *cpu.Kernels.
type kernels interface {
	serve.Kernels
	Materialise(s cuda.Stream, p abi.MaterialiseParams) error
}

// device is the kernels, and the memory besides that of engines.
type device struct {
	dev     cuda.Device
	spec    spec.Spec
	kernels map[spec.Encoding]kernels
	buffers map[string]buffer
	rope    abi.DevicePtr
	sinks   abi.DevicePtr
}

// buffer is device memory that is kept from step to step.
type buffer struct {
	p     abi.DevicePtr
	bytes int64
}

func newDevice(ctx context.Context, dev cuda.Device, s spec.Spec, provide verify.Provider, sinkLogits []float32) (_ *device, err error) {
	d := &device{dev: dev, spec: s, kernels: map[spec.Encoding]kernels{}, buffers: map[string]buffer{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	for _, e := range []spec.Encoding{spec.Segment, spec.Baked} {
		provided, err := provide(ctx, plan.WithEncoding(s, e), s.Kinds)
		if err != nil {
			return nil, err
		}
		k, ok := provided.Launcher.(kernels)
		if !ok {
			return nil, fmt.Errorf("kernels of type %T have no Tile", provided.Launcher)
		}
		d.kernels[e] = k
	}
	if s.Rope.RotaryDim > 0 {
		if d.rope, err = d.upload("rope table", rope.Table(s.Rope)); err != nil {
			return nil, err
		}
	}
	if sinkLogits != nil {
		if d.sinks, err = d.upload("sink logits", sinkLogits); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *device) close() error {
	var errs []error
	for _, b := range d.buffers {
		errs = append(errs, d.dev.Free(b.p))
	}
	for _, k := range d.kernels {
		if c, ok := k.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// engine serves requests, or documents, with pages for each of the token counts.
func (d *device) engine(e spec.Encoding, tokens []int) (*serve.Engine, error) {
	pages := 0
	for _, n := range tokens {
		pages += (n + d.spec.Cache.PageSize - 1) / d.spec.Cache.PageSize
	}
	facts := emit.Output{}.Bundle(plan.WithEncoding(d.spec, e)) // of no kernels: d has them
	return serve.New(d.dev, d.kernels[e], serve.ModelOf(facts, "demo", 1), serve.Options{Pages: pages})
}

// load puts a step's inputs on the device.
func (d *device) load(in vectors) (serve.IO, error) {
	t := serve.IO{SinkLogits: d.sinks}
	for _, f := range []struct {
		name string
		data []byte
		to   *abi.DevicePtr
	}{{"Q", in.q, &t.Q}, {"K", in.k, &t.K}, {"V", in.v, &t.V}} {
		var err error
		if *f.to, err = d.upload(f.name, f.data); err != nil {
			return serve.IO{}, err
		}
	}
	var err error
	t.Out, err = d.reserve("Out", in.tokens*d.outputBytes())
	return t, err
}

// outputBytes is the size of a token's outputs.
func (d *device) outputBytes() int { return 2 * d.spec.Model.QueryHeads * d.spec.Model.VHeadDim }

// reserve is the buffer of a name, with room for n bytes.
func (d *device) reserve(name string, n int) (abi.DevicePtr, error) {
	b := d.buffers[name]
	if b.p != 0 && b.bytes >= int64(n) {
		return b.p, nil
	}
	if b.p != 0 {
		delete(d.buffers, name)
		if err := d.dev.Free(b.p); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	b.bytes = max(int64(n)+int64(n)/2, 256)
	var err error
	if b.p, err = d.dev.Alloc(b.bytes); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	d.buffers[name] = b
	return b.p, nil
}

// upload fills the buffer of a name with what encoding/binary writes of data.
func (d *device) upload(name string, data any) (abi.DevicePtr, error) {
	raw, err := binary.Append(nil, binary.LittleEndian, data)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	p, err := d.reserve(name, len(raw))
	if err != nil {
		return 0, err
	}
	if err := d.dev.Upload(p, raw); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}
