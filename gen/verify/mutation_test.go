package verify

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
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
		mustBeFound(t, 7, mutationsAlignedPairs, alignedPairs)
	})
	t.Run("aligned and scaled", func(t *testing.T) {
		t.Parallel()
		s := emulated(t, alignedScaled)
		if p, err := plan.Choose(s, spec.Extend, "sm_90a"); err != nil || !p.AlignsQueries || !p.ScalesQueries(s) {
			t.Fatalf("aligns queries: %v, scales them: %v, %v", p.AlignsQueries, p.ScalesQueries(s), err)
		}
		mustBeFound(t, 10, mutationsAlignedScaled, alignedScaled)
	})
	t.Run("capped", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 10, mutationsCapped, capped)
	})
	t.Run("own queries", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 5, mutationsOwn, own)
	})
	t.Run("one head", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 6, mutationsOneHead, oneHead)
	})
	t.Run("early queries", func(t *testing.T) {
		t.Parallel()
		s := emulated(t, early)
		if p, err := plan.Choose(s, spec.Prefill, "sm_90a"); err != nil || !p.GivesQueriesEarly(s) {
			t.Fatalf("gives queries early: %v, %v", p.GivesQueriesEarly(s), err)
		}
		mustBeFound(t, 6, mutationsEarly, early)
	})
	t.Run("clusters", func(t *testing.T) {
		t.Parallel()
		mustBeFound(t, 6, mutationsClusters, clusters)
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

func TestMutationsOfWindowsAreFound(t *testing.T) {
	t.Parallel()
	for _, target := range []spec.Target{"sm_80", "sm_90a"} {
		t.Run(string(target), func(t *testing.T) {
			t.Parallel()
			mustBeFound(t, 4, mutationsWindow, func(s *spec.Spec) {
				s.Targets = []spec.Target{target}
				s.Masks.Window = 150
			})
		})
	}
}

// Mistakes that few random cases show: of rows of which one has a late key that outweighs all others.
func TestMutationsOfLateKeysAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		mutations []mutation
		change    func(*spec.Spec)
	}{
		{"rotators beside", mutationsLate, beside},
		{"aligned and scaled", mutationsLateAligned, alignedScaled},
		{"own queries", mutationsLateOwn, own},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mustBeFoundIn(t, lateKeyCase, c.mutations, func(s *spec.Spec) {
				c.change(s)
				s.Rope.MaxPosition = 1024 // all six tiles
			})
		})
	}
}

// lateKeyCase has one sequence of a tile of query tokens and six tiles of keys. One row, of the first eight of sixteen in case 1
// and of the others in case 2, is turned to a key of the fourth tile, for a score whose exp is beyond fp32. That key is longer than
// others, so that the row's scores are small for these.
func lateKeyCase(ctx context.Context, b *bench, kind spec.Kind, n int) besideBaked {
	tile := b.kernels[b.spec.Cache.Encoding].Tiles[kind]
	group := b.spec.Model.Group()
	tokens, keys, row := tile.Rows/group, 6*tile.Keys, 16+[]int{3, 11}[(n-1)%2]
	d := b.dice(rand.New(rand.NewPCG(1, uint64(n))))
	c := attendCase{kind: kind, kvHeads: b.spec.Model.KVHeads, queryHeads: b.spec.Model.QueryHeads, tokens: tokens, withLSE: true, alone: -1, sharp: true, layoutSeed: 1}
	s := sequence{positions: make([]int, tokens), segments: []placed{{chunk: d.addChunk(&c, keys)}}}
	for t := range s.positions {
		s.positions[t] = keys + t
	}
	c.sequences = []sequence{s}
	c.q = d.normal(c.tokens*c.queryHeads*b.spec.Model.HeadDim, 1)
	c.qStride, c.outStride = c.queryHeads*b.spec.Model.HeadDim, c.queryHeads*b.spec.Model.VHeadDim
	late, dim := 3*tile.Keys+tile.Keys/2, b.spec.Model.HeadDim
	for i := range dim {
		c.chunks[0].k[late*c.kvHeads*dim+i] *= 4
	}
	d.turn(&c, s, row/group, row%group, s.segments[0], late, 3*sharpScores)
	return tryBaked(ctx, kind, b.trialOf(c))
}

// Mistakes that few random cases show: of rows whose first scores are all far from 0.
func TestMutationsOfFarScoresAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		tile      spec.Tile
		softCap   float64
		mutations []mutation
	}{
		{"rotators apart", spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 16}, 0, slices.Concat(mutationsFar, mutationsFarBehind)},
		{"own queries", spec.Tile{Rows: 192, Keys: 128, Stages: 2, Warps: 16}, 0, mutationsFar},
		{"capped", spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 16}, 200, mutationsFarCapped},
		{"capped low", spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 16}, 4, mutationsFarAboveCap},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mustBeFoundIn(t, farScoresCase, c.mutations, func(s *spec.Spec) {
				sm90(s)
				s.Tiles = map[spec.Kind]spec.Tile{spec.Prefill: c.tile}
				s.Masks.SoftCap = c.softCap
			})
		})
	}
}

// farScoresCase has one prompt of four tiles of query tokens. All scores of one row of the last, which sees several tiles of keys, have exps that fp32 has no numbers for: too
// small ones in cases 1 and 2, too large ones in 3 and 4. It is of the first eight of sixteen rows in odd cases, of the others in even
// ones. All keys have a component in the pair of dimensions that is turned the least, for that.
func farScoresCase(ctx context.Context, b *bench, kind spec.Kind, n int) besideBaked {
	const far, component = 150, 8
	m, tile := b.spec.Model, b.kernels[b.spec.Cache.Encoding].Tiles[kind]
	tokens, row := 4*tile.Rows/m.Group(), 3*tile.Rows+16+[]int{3, 11}[(n-1)%2]
	d := b.dice(rand.New(rand.NewPCG(1, uint64(n))))
	c := attendCase{kind: kind, kvHeads: m.KVHeads, queryHeads: m.QueryHeads, tokens: tokens, withLSE: true, alone: -1, sharp: true, layoutSeed: 1}
	s := sequence{positions: make([]int, tokens), segments: []placed{{chunk: d.addChunk(&c, tokens), own: true}}}
	for t := range s.positions {
		s.positions[t] = t
	}
	c.sequences = []sequence{s}
	c.q = d.normal(c.tokens*c.queryHeads*m.HeadDim, 1)
	c.qStride, c.outStride = c.queryHeads*m.HeadDim, c.queryHeads*m.VHeadDim
	least := m.HeadDim/2 - 1
	for key := range tokens * c.kvHeads {
		c.chunks[0].k[key*m.HeadDim+least] = component
	}
	score := float64(far)
	if n <= 2 {
		score = -far
	}
	query := row/m.Group()*c.queryHeads + row%m.Group()
	c.q[query*m.HeadDim+least] = score / (b.spec.Scale * component)
	return tryBaked(ctx, kind, b.trialOf(c))
}

func mustBeFound(t *testing.T, seed uint64, mutations []mutation, change func(*spec.Spec)) {
	t.Helper()
	t.Logf("cases of seed %d", seed)
	draw := func(ctx context.Context, b *bench, kind spec.Kind, n int) besideBaked {
		return b.besideBaked(ctx, kind, seed, n)
	}
	mustBeFoundIn(t, draw, mutations, change)
}

// drawer makes case n of a kind, counted from 1, with what baked makes of it.
type drawer func(ctx context.Context, b *bench, kind spec.Kind, n int) besideBaked

// mustBeFoundIn tries the cases that draw makes.
func mustBeFoundIn(t *testing.T, draw drawer, mutations []mutation, change func(*spec.Spec)) {
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
			o := Options{Kinds: []spec.Kind{g.kind}, Encodings: []spec.Encoding{g.encoding}}
			b, err := newBench(t.Context(), dev, s, Generated(dev, kernel.Options{}), o)
			if err != nil {
				t.Fatal(err)
			}
			defer b.close()
			cases := &trialCases{bench: b, kind: g.kind, encoding: g.encoding, draw: draw}
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
	draw     drawer
	made     []besideBaked
}

// make makes case n, counted from 1, where it is not made yet. The kernels as they are must pass it.
func (c *trialCases) make(t *testing.T, n int) {
	t.Helper()
	if n <= len(c.made) {
		return
	}
	c.made = append(c.made, c.draw(t.Context(), c.bench, c.kind, n))
	if failures := c.failures(t, n, c.bench.kernels[c.encoding]); len(failures) > 0 {
		t.Fatalf("case %d, as it is: %s", n, failures[0].Message)
	}
}

// failures are those of kernels in case n.
func (c *trialCases) failures(t *testing.T, n int, kernels Kernels) []Failure {
	t.Helper()
	right := c.bench.kernels[c.encoding]
	c.bench.kernels[c.encoding] = kernels
	defer func() { c.bench.kernels[c.encoding] = right }()
	one := c.made[n-1]
	if c.encoding == spec.Baked { // which is held to itself
		one.baked, one.err = one.try(t.Context(), spec.Baked)
	}
	o, err := one.run(t.Context(), c.encoding)
	if err != nil {
		t.Fatal(err)
	}
	var all tally
	all.add(n, o)
	_, failures := all.row(c.kind, c.encoding, 0)
	return failures
}

// mustBeFound runs case after case until one fails.
func (m mutation) mustBeFound(t *testing.T, cases *trialCases) {
	b := cases.bench
	wrong, err := mutated(b.dev, m)(t.Context(), plan.WithEncoding(b.spec, m.encoding), b.spec.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := wrong.Launcher.(io.Closer).Close(); err != nil {
			t.Error(err)
		}
	}()
	const most = 32 // what few cases are such that it matters takes some to be found
	for n := 1; n <= most; n++ {
		cases.make(t, n)
		if failures := cases.failures(t, n, wrong); len(failures) > 0 {
			t.Log(failures[0].Message)
			return
		}
	}
	t.Errorf("not found in %d cases", most)
}

// mutated is Generated, with a mistake in the kernel of one kind and encoding.
func mutated(dev cuda.Device, m mutation) Provider {
	return func(ctx context.Context, s spec.Spec, kinds []spec.Kind) (Kernels, error) {
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
		return open(ctx, dev, s, b, kinds, kernel.Options{})
	}
}
