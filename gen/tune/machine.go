package tune

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/templates"
)

// Machine is what candidates are built, checked and timed on.
type Machine struct {
	Device cuda.Device
	// Compile compiles one kernel. Nil: the device runs sources.
	Compile func(ctx context.Context, s build.Source) (build.Cubin, error)
	// Count returns what launches since the last call cost, in the place of a time.
	// Nil: the device has a clock.
	Count func() time.Duration
}

// compiled keeps machine code by a hash of its source.
type compiled map[[sha256.Size]byte][]byte

// set is a candidate's kernels, loaded. Whatever the lengths, it gives the candidate.
type set struct {
	*kernel.Set
	choice kernel.Choice
}

func (s set) Choose(kind abi.Kind, query, keys int) kernel.Choice {
	if kind == s.choice.Kind {
		return s.choice
	}
	return s.Set.Choose(kind, query, keys)
}

// timedWith are the kinds, besides merge, that a candidate is timed with: decode does
// what shared decode leaves, and materialise rotates keys ahead.
func timedWith(p plan.Plan) []spec.Kind {
	switch {
	case p.Kind == spec.SharedDecode:
		return []spec.Kind{spec.Decode}
	case p.KeysAhead:
		return []spec.Kind{spec.Materialise}
	}
	return nil
}

// checkedWith are those that it is checked with.
func checkedWith(p plan.Plan) []spec.Kind { return append(timedWith(p), spec.Append) }

// with is the set cut in another way.
func (s set) with(c plan.Cut, multiprocessors int) set {
	if c.Fill > 0 {
		s.choice.Blocks = max(1, c.Fill*multiprocessors/100/max(1, s.choice.Cluster))
	}
	if c.Tokens > 0 {
		s.choice.Tokens = c.Tokens
	}
	return s
}

// emitFor is the kernels that a candidate is timed by: itself, and merge; with the
// other kinds, of those that the spec has, also what it is checked by.
func emitFor(s spec.Spec, p plan.Plan, target spec.Target, others ...spec.Kind) (emit.Output, error) {
	plans := []plan.Plan{p}
	for _, kind := range append(others, spec.Merge) {
		if !slices.Contains(s.Kinds, kind) {
			continue
		}
		other, err := plan.Choose(s, kind, target)
		if err != nil {
			return emit.Output{}, err
		}
		plans = append(plans, other)
	}
	return emit.Emit(s, plans, templates.FS)
}

// source is a kernel for the compiler.
func source(k emit.Kernel, t spec.Target) build.Source {
	return build.Source{Name: k.File, Entry: k.Entry, Text: k.Source, Target: t}
}

// options opens kernels with the machine code that is there already.
func (c compiled) options(t spec.Target) kernel.Options {
	return kernel.Options{Target: string(t), Compile: func(_ context.Context, s kernel.Source) ([]byte, error) {
		cubin, ok := c[sha256.Sum256(s.Text)]
		if !ok {
			return nil, fmt.Errorf("%s was not compiled", s.Name)
		}
		return cubin, nil
	}}
}

func (r *run) open(ctx context.Context, p plan.Plan) (set, error) {
	out, err := emitFor(r.spec, p, r.o.Target, timedWith(p)...)
	if err != nil {
		return set{}, err
	}
	opened, err := kernel.Open(ctx, r.m.Device, out.Bundle(r.spec), r.cubins.options(r.o.Target))
	if err != nil {
		return set{}, err
	}
	return set{opened, opened.Choose(abi.Kind(p.Kind), 1, 1)}, nil
}

// provide gives verify the candidate, and the default as what it is held to.
func (r *run) provide(c *candidate) verify.Provider {
	return verify.Emitted(r.m.Device, func(s spec.Spec) (emit.Output, error) {
		if s.Cache.Encoding == r.spec.Cache.Encoding {
			return emitFor(s, c.plan, r.o.Target, checkedWith(c.plan)...)
		}
		usual, err := plan.Choose(s, c.plan.Kind, r.o.Target)
		if err != nil {
			return emit.Output{}, err
		}
		return emitFor(s, usual, r.o.Target, checkedWith(usual)...)
	}, r.cubins.options(r.o.Target))
}

// sample times a problem by a set, or counts.
func (f *field) sample(ctx context.Context, p *bench.Problem, s set, repeats int) ([]int64, error) {
	k := bench.Kernels{Launcher: s}
	if s.choice.Kind == abi.KindSharedDecode {
		k.Tiles = map[spec.Kind]spec.Tile{spec.SharedDecode: {Rows: s.choice.Rows, Keys: s.choice.Keys}}
	}
	if f.m.Count != nil {
		f.m.Count()
		if err := p.Launch(ctx, k); err != nil {
			return nil, err
		}
		return []int64{int64(f.m.Count())}, nil
	}
	times, err := p.Time(ctx, f.timer, k, repeats)
	if err != nil {
		return nil, err
	}
	ns := make([]int64, len(times))
	for i, d := range times {
		ns[i] = int64(d)
	}
	return ns, nil
}
