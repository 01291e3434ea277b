package verify

import (
	"bytes"
	"context"
	"fmt"
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
			o := Options{Kinds: []spec.Kind{g.kind}, Encodings: []spec.Encoding{g.encoding}, Cases: 8, Seed: seed}
			dev := unoptimized(t, 1) // most mistakes show in the first case
			r, err := Run(t.Context(), dev, s, Generated(dev, kernel.Options{}), o)
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() {
				t.Fatalf("as it is: %s", r)
			}
			for _, m := range mutations {
				t.Run(m.name, func(t *testing.T) { m.mustBeFound(t, dev, s, o) })
			}
		})
	}
}

// mustBeFound runs case after case until one fails.
func (m mutation) mustBeFound(t *testing.T, dev cuda.Device, s spec.Spec, o Options) {
	o.Cases = 32 // what few cases are such that it matters takes some to be found
	for o.Case = 1; o.Case <= o.Cases; o.Case++ {
		r, err := Run(t.Context(), dev, s, mutated(dev, m), o)
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK() {
			t.Log(r.Failures[0].Message)
			return
		}
	}
	t.Errorf("not found in %d cases", o.Cases)
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
