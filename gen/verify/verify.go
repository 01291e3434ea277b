// Package verify judges kernels: it makes random ragged cases from a seed,
// runs them on a device, and compares what comes back with attention in
// float64 (tests/oracle).
//
// A case is the same logical data for every encoding: chunks, offsets, query
// positions, lengths around every tile edge, shuffled pages, unused ones full of
// NaN. Each is run twice and must give the same bits; the `baked` kernel runs
// on the same data, and the other encodings are held to its error (see
// tolerance.go for every bound and where it comes from).
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/kgen-project/kgen/gen/parallel"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/numeric"
)

// Launcher launches one spec's kernels.
type Launcher interface {
	Append(s cuda.Stream, p abi.AppendParams) error
	Prefill(s cuda.Stream, p abi.AttendParams) error
	Extend(s cuda.Stream, p abi.AttendParams) error
	Decode(s cuda.Stream, p abi.AttendParams) error
	SharedDecode(s cuda.Stream, p abi.AttendParams) error
	Merge(s cuda.Stream, p abi.MergeParams) error
	Materialise(s cuda.Stream, p abi.MaterialiseParams) error
	Schedule(s cuda.Stream, p abi.ScheduleParams) error
}

// CacheMapper is a Launcher whose kernels may need tensor maps of the caches.
type CacheMapper interface {
	MapCache(kind abi.Kind, keys, values abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
}

// KeyMapper is a Launcher whose kernels may read keys that are rotated ahead of them.
type KeyMapper interface {
	Choose(kind abi.Kind, query, keys int) kernel.Choice
	MapKeys(c kernel.Choice, keys abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
}

// Kernels are the loaded kernels of one spec.
type Kernels struct {
	Launcher
	Tiles map[spec.Kind]spec.Tile // of the kinds that attend

	// Arithmetic names what, besides a kind's tile, the bits of its results follow from: the order
	// of its additions, and what it rounds to.
	Arithmetic map[spec.Kind]string

	Folds     map[spec.Kind]bool // kinds that take items of several parts
	KeysAhead map[spec.Kind]bool // kinds, by a KeyMapper, that read raw keys rotated ahead of them
}

// Provider builds a spec's kernels and loads those of the kinds, as far as the spec has them; it may
// load others too. A Launcher that is an io.Closer is closed when they are done with.
type Provider func(ctx context.Context, s spec.Spec, kinds []spec.Kind) (Kernels, error)

// Options say what is verified. The zero value of a field is its default.
type Options struct {
	Kinds     []spec.Kind     // default: the spec's
	Encodings []spec.Encoding // default: the spec's
	Cases     int             // cases of each kind and encoding; default 100
	Seed      uint64
	Case      int // only this case, counted from 1; 0: all
	Work      int // multiply-adds of one case's scores, about; default by the device. Part of what a seed means

	// Progress, where set, is called after each case of a kind, one call at a time.
	Progress func(kind spec.Kind, done, total int)
}

// Run verifies s on dev. Wrong results are in the report; the error is about
// what kept Run from judging: a build that failed, memory, the context's end.
func Run(ctx context.Context, dev cuda.Device, s spec.Spec, provide Provider, o Options) (report Report, err error) {
	if len(o.Kinds) == 0 {
		o.Kinds = s.Kinds
	}
	if len(o.Encodings) == 0 {
		o.Encodings = []spec.Encoding{s.Cache.Encoding}
	}
	if o.Cases == 0 {
		o.Cases = 100
	}
	report = Report{Rows: []Row{}, Failures: []Failure{}, Spec: s.Name, Device: dev.Info().Name, Seed: o.Seed}
	if err := o.check(s); err != nil {
		return report, fmt.Errorf("verify %s: %w", s.Name, err)
	}
	b, err := newBench(ctx, dev, s, provide, o)
	if err != nil {
		return report, fmt.Errorf("verify %s: %w", s.Name, err)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, kind := range spec.AllKinds {
		if !slices.Contains(o.Kinds, kind) {
			continue
		}
		rows, failures, err := b.kind(ctx, kind, o)
		report.Rows = append(report.Rows, rows...)
		report.Failures = append(report.Failures, failures...)
		if err != nil {
			return report, fmt.Errorf("verify %s: %s: %w", s.Name, kind, err)
		}
	}
	return report, nil
}

func (o Options) check(s spec.Spec) error {
	for _, k := range o.Kinds {
		if !slices.Contains(s.Kinds, k) {
			return fmt.Errorf("the spec has no kind %q; it has %v", k, s.Kinds)
		}
	}
	for _, e := range o.Encodings {
		if !slices.Contains(spec.AllEncodings, e) {
			return fmt.Errorf("no encoding %q", e)
		}
	}
	if o.Cases < 0 || o.Case < 0 || o.Case > o.Cases {
		return fmt.Errorf("case %d of %d", o.Case, o.Cases)
	}
	if o.Work < 0 {
		return fmt.Errorf("work of %d multiply-adds", o.Work)
	}
	return nil
}

// bench is what all cases of a spec share.
type bench struct {
	dev     cuda.Device
	spec    spec.Spec
	format  numeric.Format
	size    size
	kernels map[spec.Encoding]Kernels
	rope    *buffer // the table, or nil
	memory  *arena  // of rope
}

func newBench(ctx context.Context, dev cuda.Device, s spec.Spec, provide Provider, o Options) (*bench, error) {
	b := &bench{
		dev: dev, spec: s, format: numeric.BF16, size: deviceSize,
		kernels: map[spec.Encoding]Kernels{}, memory: newArena(dev),
	}
	if s.Model.DType == spec.FP16 {
		b.format = numeric.FP16
	}
	if dev.Info().EmulatesSource {
		b.size = emulatorSize
	}
	if o.Work != 0 {
		b.size.work = o.Work
	}
	encodings := append([]spec.Encoding{spec.Baked}, o.Encodings...)
	raw := slices.Contains(encodings, spec.Raw)
	if raw && slices.Contains(o.Kinds, spec.SharedDecode) {
		encodings = append(encodings, rotatedAs(spec.SharedDecode))
	}
	for _, e := range encodings {
		if _, ok := b.kernels[e]; ok {
			continue
		}
		sibling := plan.WithEncoding(s, e)
		if e != spec.Raw && raw && !slices.Contains(s.Kinds, spec.Append) {
			sibling.Kinds = append([]spec.Kind{spec.Append}, s.Kinds...) // see rawBits
		}
		k, err := provide(ctx, sibling, launched(o.Kinds))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("encoding %s: %w", e, err), b.close())
		}
		b.kernels[e] = k
	}
	var err error
	if b.rope, err = b.memory.table(s.Rope); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// launched are the kinds that cases of the chosen ones launch: these, what makes their inputs, and what merges
// their results.
func launched(chosen []spec.Kind) []spec.Kind {
	kinds := append(slices.Clone(chosen), spec.Append, spec.Merge)
	for _, kind := range chosen {
		switch kind {
		case spec.Prefill, spec.Extend:
			kinds = append(kinds, spec.Materialise) // of keys that are rotated ahead
		case spec.SharedDecode:
			kinds = append(kinds, spec.Decode) // beside it
		case spec.Schedule:
			kinds = append(kinds, spec.Decode, spec.SharedDecode) // which it makes the lists of
		}
	}
	return kinds
}

func (b *bench) close() error {
	errs := []error{b.memory.free()}
	for _, k := range b.kernels {
		if c, ok := k.Launcher.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// trial is one case of one kind, to be run in each encoding. It returns a
// *wrong where the kernel is to blame.
type trial func(ctx context.Context, e spec.Encoding) (measure, error)

// outcome is one case in one encoding, beside baked on the same data.
type outcome struct {
	measure, baked measure
	err            error // the kernel's mistake
}

// kind runs all cases of one kind, several at a time: most of a case's time is
// the oracle's. An emulator gets one at a time, so that its launches come in order.
func (b *bench) kind(ctx context.Context, kind spec.Kind, o Options) ([]Row, []Failure, error) {
	first, last := 1, o.Cases
	if o.Case != 0 {
		first, last = o.Case, o.Case
	}
	workers := runtime.GOMAXPROCS(0)
	if b.dev.Info().EmulatesSource {
		workers = 1
	}
	outcomes := make([][]outcome, last-first+1)
	err := parallel.Each(ctx, workers, len(outcomes), func(ctx context.Context, i int) (err error) {
		outcomes[i], err = b.encodings(ctx, kind, o, first+i)
		return err
	}, func(_, done int) {
		if o.Progress != nil {
			o.Progress(kind, done, len(outcomes))
		}
	})
	if err != nil {
		return nil, nil, err
	}

	var rows []Row
	var failures []Failure
	for i, e := range o.Encodings {
		var t tally
		for n, outcome := range outcomes {
			t.add(first+n, outcome[i])
		}
		row, fs := t.row(kind, e, o.Seed)
		rows = append(rows, row)
		failures = append(failures, fs...)
	}
	return rows, failures, nil
}

// encodings runs case n in each encoding.
func (b *bench) encodings(ctx context.Context, kind spec.Kind, o Options, n int) ([]outcome, error) {
	c := b.besideBaked(ctx, kind, o.Seed, n)
	var outcomes []outcome
	for _, e := range o.Encodings {
		outcome, err := c.run(ctx, e)
		if err != nil {
			return nil, fmt.Errorf("%s, seed %d, case %d: %w", e, o.Seed, n, err)
		}
		outcomes = append(outcomes, outcome)
	}
	return outcomes, nil
}

// besideBaked is a case and what the baked kernel makes of it.
type besideBaked struct {
	kind  spec.Kind
	try   trial
	baked measure
	err   error
}

func (b *bench) besideBaked(ctx context.Context, kind spec.Kind, seed uint64, n int) besideBaked {
	return tryBaked(ctx, kind, b.trial(kind, seed, n))
}

// tryBaked is a trial with what baked makes of it.
func tryBaked(ctx context.Context, kind spec.Kind, try trial) besideBaked {
	c := besideBaked{kind: kind, try: try}
	c.baked, c.err = c.try(ctx, spec.Baked)
	return c
}

// run judges an encoding's kernel. The error is about what kept it from that.
func (c besideBaked) run(ctx context.Context, e spec.Encoding) (outcome, error) {
	m, err := c.baked, c.err
	if e != spec.Baked {
		m, err = c.try(ctx, e)
	}
	if err := errors.Join(ctx.Err(), fatal(c.err), fatal(err)); err != nil {
		return outcome{}, err
	}
	if err == nil && c.err != nil {
		err = wrongf("the baked kernel, which it is held to: %w", c.err)
	}
	twin := c.baked
	if c.kind == spec.Materialise {
		twin = m // baked is only copied, which sets no measure
	}
	if err == nil {
		err = m.check(twin)
	}
	return outcome{m, twin, err}, nil
}

// trial makes case n. Its randomness depends on the seed, the kind and n
// alone, so a case can be run again by itself.
func (b *bench) trial(kind spec.Kind, seed uint64, n int) trial {
	rng := rand.New(rand.NewPCG(seed, uint64(n)<<8|uint64(slices.Index(spec.AllKinds, kind))))
	switch kind {
	case spec.Append:
		return b.appendTrial(rng)
	case spec.Merge:
		return b.mergeTrial(rng)
	case spec.Materialise:
		return b.materialiseTrial(rng)
	case spec.Schedule:
		return b.scheduleTrial(rng)
	default:
		return b.attendTrial(rng, kind)
	}
}
