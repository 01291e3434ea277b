package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/templates"
)

// Ceilings are what a device does at most: by kernels that only read, or only
// multiply.
type Ceilings struct {
	Read    Rate `json:"read"`    // bytes a second
	Product Rate `json:"product"` // floating-point operations a second, of products of the spec's type
}

// Rate is something a second.
type Rate struct {
	Median float64 `json:"median"`
	Low    float64 `json:"p10"` // a tenth of the launches were slower
	High   float64 `json:"p90"`
	Given  bool    `json:"given,omitempty"` // by hand, not measured
}

// Given is a rate that was not measured here.
func Given(rate float64) Rate { return Rate{Median: rate, Low: rate, High: rate, Given: true} }

// Compiler makes machine code; see [kernel.Options].
type Compiler func(ctx context.Context, s kernel.Source) ([]byte, error)

// MeasureCeilings measures those of dev, with a cold L2 cache. It takes half a second of the
// device.
func MeasureCeilings(ctx context.Context, dev cuda.GraphDevice, dtype spec.DType, compile Compiler, repeats int) (c Ceilings, err error) {
	t, err := newTimer(dev, repeats)
	if err != nil {
		return Ceilings{}, fmt.Errorf("bench: ceilings: %w", err)
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if c.Product, err = productRate(ctx, t, dtype, compile); err != nil {
		return c, fmt.Errorf("bench: the rate of matrix products: %w", err)
	}
	if c.Read, err = readRate(ctx, t, compile); err != nil {
		return c, fmt.Errorf("bench: the read bandwidth: %w", err)
	}
	return c, nil
}

func rate(work float64, t Times) Rate {
	return Rate{Median: work / t.Median.Seconds(), Low: work / t.High.Seconds(), High: work / t.Low.Seconds()}
}

func readRate(ctx context.Context, t *timer, compile Compiler) (Rate, error) {
	const most = 2 << 30 // bytes: half a millisecond of the fastest memory there is
	r, err := NewReader(ctx, t.dev, compile, min(most, t.dev.Info().MemoryBytes/8))
	if err != nil {
		return Rate{}, err
	}
	defer r.Close()
	times, err := t.measure(ctx, r.Read)
	return rate(float64(r.bytes), times), err
}

// Reader reads some memory of its own, again and again.
type Reader struct {
	memory memory
	probe  probe
	blocks int
	params emit.ReadParams
	bytes  int64
}

// NewReader makes a reader of about so many bytes.
func NewReader(ctx context.Context, dev cuda.Device, compile Compiler, bytes int64) (*Reader, error) {
	source, err := emit.Read(templates.FS)
	if err != nil {
		return nil, err
	}
	turns := max(1, bytes/int64(16*source.Words))
	r := &Reader{memory: memory{dev: dev}, blocks: dev.Info().Multiprocessors * source.Blocks, bytes: turns * int64(16*source.Words)}
	if r.probe, err = loadProbe(ctx, dev, source, compile); err != nil {
		return nil, err
	}
	r.params = emit.ReadParams{
		Words: r.memory.random(rand.New(rand.NewPCG(1, 1)), r.bytes/2, formatOf(spec.BF16)),
		Sums:  r.memory.alloc(int64(r.blocks) * int64(4*source.Threads())),
		Turns: int32(turns),
	}
	if r.memory.err == nil {
		r.memory.err = dev.Synchronize(ctx, 0)
	}
	if err := r.memory.err; err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Read queues one reading of all of it.
func (r *Reader) Read(s cuda.Stream) error { return r.probe.launch(s, r.blocks, r.params) }

// Close gives the memory back.
func (r *Reader) Close() {
	r.memory.free()
	r.probe.unload()
}

func productRate(ctx context.Context, t *timer, dtype spec.DType, compile Compiler) (Rate, error) {
	const (
		warmUp   = 300 * time.Millisecond
		duration = 2 * time.Millisecond // of a launch
	)
	info := t.dev.Info()
	family := plan.SM80
	if info.Major == 9 && info.Minor == 0 {
		family = plan.SM90
	}
	probe, err := emit.Product(family, dtype, templates.FS)
	if err != nil {
		return Rate{}, err
	}
	product, err := loadProbe(ctx, t.dev, probe, compile)
	if err != nil {
		return Rate{}, err
	}
	defer product.unload()
	m := memory{dev: t.dev}
	defer m.free()
	rng := rand.New(rand.NewPCG(1, 2))
	blocks := info.Multiprocessors * probe.Blocks
	params := emit.ProductParams{
		A:        m.random(rng, int64(probe.Rows*probe.Inner), formatOf(dtype)),
		B:        m.random(rng, int64(probe.Columns*probe.Inner), formatOf(dtype)),
		Products: m.alloc(int64(blocks) * int64(4*probe.Rows*probe.Columns)),
		Rounds:   256,
	}
	if m.err != nil {
		return Rate{}, m.err
	}
	launch := func(s cuda.Stream) error { return product.launch(s, blocks, params) }
	times, err := t.repeating(3).measure(ctx, launch)
	if err != nil {
		return Rate{}, err
	}
	params.Rounds = int32(max(1, float64(params.Rounds)*float64(duration)/float64(max(times.Median, 1))))
	for warm := time.Duration(0); warm < warmUp; { // a device that was idle has low clocks, a busy one those that its power allows
		took, err := t.dev.Time(ctx, t.stream, func() error { return launch(t.stream) })
		if err != nil {
			return Rate{}, err
		}
		warm += max(took, time.Millisecond)
	}
	if times, err = t.measure(ctx, launch); err != nil {
		return Rate{}, err
	}
	return rate(float64(blocks)*float64(params.Rounds)*2*float64(probe.Rows*probe.Columns*probe.Inner), times), nil
}

// probe is a loaded kernel that measures a ceiling.
type probe struct {
	emit.Ceiling
	module cuda.Module
	kernel cuda.Kernel
}

func loadProbe(ctx context.Context, dev cuda.Device, c emit.Ceiling, compile Compiler) (probe, error) {
	image := cuda.Image{Name: strings.TrimSuffix(c.File, ".cu"), Source: c.Source}
	if info := dev.Info(); !info.EmulatesSource {
		target := fmt.Sprintf("sm_%d%d", info.Major, info.Minor)
		if c.Plan.Family == plan.SM90 {
			target += "a"
		}
		var err error
		if image.Cubin, err = compile(ctx, kernel.Source{Name: c.File, Text: c.Source, Target: target}); err != nil {
			return probe{}, err
		}
	}
	module, err := dev.Load(image)
	if err != nil {
		return probe{}, err
	}
	k, err := module.Kernel(c.Entry)
	if err != nil {
		return probe{}, errors.Join(err, module.Unload())
	}
	return probe{c, module, k}, nil
}

func (p probe) unload() { _ = p.module.Unload() }

// launch passes one of emit's parameter structs.
func (p probe) launch(s cuda.Stream, blocks int, params any) error {
	var raw bytes.Buffer
	if err := binary.Write(&raw, binary.LittleEndian, params); err != nil {
		return err
	}
	return p.kernel.Launch(s, cuda.LaunchConfig{
		GridX: blocks, GridY: 1, GridZ: 1, Threads: p.Threads(), SharedBytes: p.SharedBytes,
	}, raw.Bytes())
}
