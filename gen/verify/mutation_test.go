package verify

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// A mutation is one mistake in the text of a generated kernel.
type mutation struct {
	name     string
	kind     spec.Kind
	encoding spec.Encoding
	old, new string // each occurrence of old becomes new; there must be one
	masks    bool   // for the spec with a window, sink tokens, a sink logit and a soft cap
}

// remove is the new text of a mutation that leaves something out.
const remove = ""

// Each mistake in a kernel's source is found on the emulator, by cases that the
// source passes as it is.
func TestMutationsAreFound(t *testing.T) {
	t.Parallel()
	mustBeFound(t, 4, mutations, func(*spec.Spec) {})
}

func TestMutationsOfListsAreFound(t *testing.T) {
	t.Parallel()
	mustBeFound(t, 2, mutationsLists, func(*spec.Spec) {})
}

func TestMutationsSM90AreFound(t *testing.T) {
	t.Parallel()
	t.Run("usual tiles", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 10, mutationsSM90, sm90)
	})
	t.Run("rotators beside", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 10, mutationsBeside, beside)
	})
	t.Run("late maxima", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 0, mutationsLate, beside)
	})
	t.Run("aligned queries", func(t *testing.T) {
		t.Parallel()
		if p, err := plan.Choose(emulated(t, aligned), spec.Extend, "sm_90a"); err != nil || !p.AlignsQueries {
			t.Fatalf("aligns queries: %v, %v", p.AlignsQueries, err)
		}
		mustBeFound(t, 10, mutationsAligned, aligned)
	})
	t.Run("aligned pairs", func(t *testing.T) {
		t.Parallel()
		if p, err := plan.Choose(emulated(t, alignedPairs), spec.Extend, "sm_90a"); err != nil || !p.AlignsQueries || p.Queries != 1 {
			t.Fatalf("aligns queries: %v, of which there is room for %d tiles, %v", p.AlignsQueries, p.Queries, err)
		}
		mustBeFound(t, 6, mutationsAlignedPairs, alignedPairs)
	})
	t.Run("aligned and scaled", func(t *testing.T) {
		t.Parallel()
		s := emulated(t, alignedScaled)
		if p, err := plan.Choose(s, spec.Extend, "sm_90a"); err != nil || !p.AlignsQueries || !p.ScalesQueries(s) {
			t.Fatalf("aligns queries: %v, scales them: %v, %v", p.AlignsQueries, p.ScalesQueries(s), err)
		}
		mustBeFound(t, 10, mutationsAlignedScaled, alignedScaled)
	})
	t.Run("own queries", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 10, mutationsOwn, own)
	})
	t.Run("clusters", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 10, mutationsClusters, clusters)
	})
	t.Run("exchanged keys", func(t *testing.T) {
		t.Parallel()
		s := spec.WithEncoding(emulated(t, exchanged), spec.Raw)
		if p, err := plan.Choose(s, spec.Extend, "sm_90a"); err != nil || !p.ExchangesKeys(s) {
			t.Fatalf("exchanges keys: %v, %v", p.ExchangesKeys(s), err)
		}
		mustBeFound(t, 6, mutationsExchanged, exchanged)
	})
	t.Run("units", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 10, mutationsUnits, units)
	})
}

func mustBeFound(t *testing.T, seed uint64, mutations []mutation, change func(*spec.Spec)) {
	type group struct {
		kind     spec.Kind
		encoding spec.Encoding
		masks    bool
	}
	groups := map[group][]mutation{}
	for _, m := range mutations {
		g := group{m.kind, m.encoding, m.masks}
		groups[g] = append(groups[g], m)
	}
	for g, mutations := range groups {
		t.Run(fmt.Sprintf("%s %s, masks %v", g.kind, g.encoding, g.masks), func(t *testing.T) {
			t.Parallel()
			s := emulated(t, func(s *spec.Spec) {
				change(s)
				s.Kinds = []spec.Kind{g.kind}
				if slices.Contains(spec.TiledKinds, g.kind) {
					s.Kinds = append(s.Kinds, spec.Merge)
				}
				if g.masks {
					s.Masks = spec.Masks{Causal: true, Window: 40, SinkTokens: 4, SinkLogits: true, SoftCap: 3}
				}
			})
			dev := unoptimized(t, 1) // most mistakes show in the first case
			o := Options{Kinds: []spec.Kind{g.kind}, Encodings: []spec.Encoding{g.encoding}, Cases: 8, Seed: seed}
			b, err := newBench(t.Context(), dev, s, Generated(dev, kernel.Options{}), o)
			if err != nil {
				t.Fatal(err)
			}
			defer b.close()
			rows, failures, err := b.kind(t.Context(), g.kind, o)
			if err != nil {
				t.Fatal(err)
			}
			if r := (Report{Rows: rows, Failures: failures}); !r.OK() {
				t.Fatalf("as it is: %s", r)
			}
			cases := &trialCases{bench: b, kind: g.kind, encoding: g.encoding, seed: seed}
			for _, m := range mutations {
				t.Run(m.name, func(t *testing.T) { m.mustBeFound(t, cases) })
			}
		})
	}
}

// trialCases are cases that one mutation after the other is tried in. Each is made once, with what baked makes of it.
type trialCases struct {
	bench    *bench
	kind     spec.Kind
	encoding spec.Encoding
	seed     uint64
	made     []besideBaked
}

// failures are those of the bench's kernels in case n, counted from 1.
func (c *trialCases) failures(ctx context.Context, n int) ([]Failure, error) {
	if n > len(c.made) || c.encoding == spec.Baked { // which is held to itself
		c.made = append(c.made[:n-1], c.bench.besideBaked(ctx, c.kind, c.seed, n))
	}
	o, err := c.made[n-1].run(ctx, c.encoding)
	if err != nil {
		return nil, err
	}
	var t tally
	t.add(n, o)
	_, failures := t.row(c.kind, c.encoding, c.seed)
	return failures, nil
}

// mustBeFound runs case after case until one fails.
func (m mutation) mustBeFound(t *testing.T, cases *trialCases) {
	b := cases.bench
	right := b.kernels[m.encoding]
	wrong, err := mutated(b.dev, m)(t.Context(), plan.WithEncoding(b.spec, m.encoding))
	if err != nil {
		t.Fatal(err)
	}
	b.kernels[m.encoding] = wrong
	defer func() {
		b.kernels[m.encoding] = right
		if err := wrong.Launcher.(io.Closer).Close(); err != nil {
			t.Error(err)
		}
	}()
	const most = 32 // what few cases are such that it matters takes some to be found
	for n := 1; n <= most; n++ {
		failures, err := cases.failures(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if len(failures) > 0 {
			t.Log(failures[0].Message)
			return
		}
	}
	t.Errorf("not found in %d cases", most)
}

// mutated is Generated, with a mistake in the kernel of one kind and encoding.
func mutated(dev cuda.Device, m mutation) Provider {
	return func(ctx context.Context, s spec.Spec) (Kernels, error) {
		out, err := generate(s)
		if err != nil {
			return Kernels{}, err
		}
		b := out.Bundle(s)
		for i, a := range b.Kernels {
			if a.Kind != abi.Kind(m.kind) || s.Cache.Encoding != m.encoding {
				continue
			}
			if n := bytes.Count(a.Source, []byte(m.old)); n != 1 {
				return Kernels{}, fmt.Errorf("mutation %q: %d occurrences of %q in %s, want 1", m.name, n, m.old, a.File)
			}
			b.Kernels[i].Source = bytes.Replace(a.Source, []byte(m.old), []byte(m.new), 1)
		}
		return open(ctx, dev, s, b, kernel.Options{})
	}
}
