package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/rope"
)

// device is the kernels and the memory of all methods but for their pages.
type device struct {
	dev     cuda.Device
	spec    spec.Spec
	kernels map[spec.Encoding]verify.Kernels
	buffers map[string]buffer
	rope    abi.DevicePtr
}

// buffer is device memory that is kept from step to step.
type buffer struct {
	p     abi.DevicePtr
	bytes int64
}

func newDevice(ctx context.Context, dev cuda.Device, s spec.Spec, provide verify.Provider) (*device, error) {
	d := &device{dev: dev, spec: s, kernels: map[spec.Encoding]verify.Kernels{}, buffers: map[string]buffer{}}
	var err error
	for _, e := range []spec.Encoding{spec.Segment, spec.Baked} {
		if d.kernels[e], err = provide(ctx, spec.WithEncoding(s, e)); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	if s.Rope.RotaryDim > 0 {
		if d.rope, err = d.upload("rope table", rope.Table(s.Rope)); err != nil {
			return nil, errors.Join(err, d.close())
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
		if c, ok := k.Launcher.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

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
	if err != nil || len(raw) == 0 {
		return p, err
	}
	if err := d.dev.Upload(p, raw); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}
