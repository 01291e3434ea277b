package verify

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/templates"
)

// likeRaw provides kernels with the tiles of raw keys', of which decode shares out an item's
// keys as it does raw keys: for the same bits. By themselves they have other tiles.
func likeRaw(t *testing.T, provide Provider) Provider {
	return func(ctx context.Context, s spec.Spec, kinds []spec.Kind) (Kernels, error) {
		raw := spec.WithEncoding(s, spec.Raw)
		s.Tiles = map[spec.Kind]spec.Tile{}
		for _, kind := range spec.TiledKinds {
			p, err := plan.Choose(raw, kind, s.Targets[0])
			if err != nil {
				t.Fatal(err)
			}
			tile := spec.Tile{Rows: p.Rows, Keys: p.Keys, Stages: p.Stages, Warps: p.Warps}
			if kind == spec.Decode {
				helpers := -plan.DecodeShares(s, p.Family, 0)
				tile.Warps = plan.DecodeShares(raw, p.Family, p.Warps) + helpers
			}
			s.Tiles[kind] = tile
		}
		return provide(ctx, s, kinds)
	}
}

// The same for what family sm90 makes of the attending kinds.
func TestGeneratedKernelsSM90(t *testing.T) {
	t.Parallel()
	dev := emulator(t, 2)
	s := emulated(t, func(s *spec.Spec) { s.Targets = []spec.Target{"sm_90a"} })
	encodings := []spec.Encoding{spec.Segment, spec.Raw}
	for _, e := range encodings {
		s := spec.WithEncoding(s, e)
		out, err := generate(s)
		if err != nil {
			t.Fatal(err)
		}
		b := out.Bundle(s)
		for _, a := range b.Kernels {
			if slices.Contains(spec.TiledKinds, spec.Kind(a.Kind)) && a.Family != string(plan.SM90) {
				t.Errorf("%s of %s is of family %s", a.Kind, e, a.Family)
			}
		}
	}
	verified(t, dev, s, Options{Kinds: spec.TiledKinds, Encodings: encodings, Cases: 4, Seed: 1})
	s.Batching = spec.Fastest
	verified(t, dev, s, Options{Kinds: []spec.Kind{spec.Extend}, Encodings: encodings, Cases: 3, Seed: 2})
	s.Model.DType = spec.FP16 // raw keys are then held to the bits of baked ones
	verified(t, unoptimized(t, 3), s, Options{Kinds: []spec.Kind{spec.Extend}, Encodings: []spec.Encoding{spec.Raw}, Cases: 3, Seed: 2})
}

// Pages of one block of a tile and of several tiles, and heads that have pages of their own.
func TestGeneratedKernelsPagesSM90(t *testing.T) {
	t.Parallel()
	for _, c := range []spec.Cache{{PageSize: 8, Layout: spec.HND}, {PageSize: 256, Layout: spec.HND}, {PageSize: 256, Layout: spec.NHD}} {
		t.Run(fmt.Sprintf("%s %d", c.Layout, c.PageSize), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 5)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.HeadDim = 128 // of two blocks, where values have one
				s.Cache.PageSize, s.Cache.Layout = c.PageSize, c.Layout
				s.Targets = []spec.Target{"sm_90a"}
			})
			p, err := plan.Choose(s, spec.Decode, "sm_90a")
			if err != nil || p.Family != plan.SM90 {
				t.Fatalf("decode is of family %s, %v", p.Family, err)
			}
			verified(t, dev, s, Options{
				Kinds: []spec.Kind{spec.Extend, spec.Decode}, Encodings: []spec.Encoding{spec.Raw}, Cases: 2, Seed: 1,
			})
		})
	}
}

// Prefill by three warpgroups, which raw keys have not.
func TestGeneratedKernelsThreeWarpgroups(t *testing.T) {
	t.Parallel()
	dev := unoptimized(t, 4)
	s := emulated(t, func(s *spec.Spec) { s.Targets = []spec.Target{"sm_90a"} })
	p, err := plan.Choose(s, spec.Prefill, "sm_90a")
	if err != nil || p.Rows != 192 {
		t.Fatalf("%d rows, %v", p.Rows, err)
	}
	verified(t, dev, s, Options{
		Kinds: []spec.Kind{spec.Prefill}, Encodings: []spec.Encoding{spec.Segment, spec.Baked}, Cases: 4, Seed: 1,
	})
}

// Queries that are aligned once an item, by a tile with a warpgroup more.
func TestGeneratedKernelsAlignedQueries(t *testing.T) {
	t.Parallel()
	masks := spec.Masks{Causal: true, Window: 40, SinkTokens: 4, SinkLogits: true}
	tile := spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 16}
	for _, c := range []struct {
		group, headDim, rotaryDim int
		pairing                   rope.Pairing
		masks                     spec.Masks
		tile                      spec.Tile
	}{
		{1, 128, 128, rope.Half, spec.Masks{Causal: true}, spec.Tile{Rows: 128, Keys: 128, Stages: 2, Warps: 16}},
		{3, 64, 64, rope.Interleaved, spec.Masks{Causal: true}, tile},
		{3, 64, 64, rope.Half, masks, tile},
		{4, 128, 64, rope.Half, spec.Masks{Causal: true}, tile},
		{8, 128, 64, rope.Interleaved, masks, tile},
		{4, 64, 32, rope.Interleaved, spec.Masks{Causal: true}, tile},
		{3, 256, 256, rope.Half, spec.Masks{Causal: true}, tile},
		{8, 256, 96, rope.Interleaved, masks, tile},
		{4, 128, 128, rope.Half, spec.Masks{Causal: true}, spec.Tile{Rows: 128, Keys: 64, Stages: 5, Warps: 16}}, // with room for one tile of queries
	} {
		name := fmt.Sprintf("groups of %d, %d of %d dimensions, %s, %d keys, %d stages, masks %v", c.group, c.rotaryDim, c.headDim, c.pairing, c.tile.Keys, c.tile.Stages, c.masks.Window > 0)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 6)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.QueryHeads, s.Model.HeadDim, s.Model.VHeadDim = c.group*s.Model.KVHeads, c.headDim, c.headDim
				rule := rope.Rule{Type: rope.Default, Pairing: c.pairing, Theta: 10000, RotaryDim: c.rotaryDim, MaxPosition: 1 << 20}
				var err error
				if s.Rope, err = rule.Resolve(); err != nil {
					t.Fatal(err)
				}
				s.Rope.AttentionFactor = 1.3
				s.Masks = c.masks
				s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: c.tile}
				s.Kinds = []spec.Kind{spec.Extend, spec.Merge}
				s.Targets = []spec.Target{"sm_90a"}
			})
			p, err := plan.Choose(s, spec.Extend, "sm_90a")
			if err != nil || !p.AlignsQueries {
				t.Fatalf("aligns queries: %v, %v", p.AlignsQueries, err)
			}
			verified(t, dev, s, Options{Kinds: []spec.Kind{spec.Extend}, Cases: 2, Seed: 1})
		})
	}
}

// Scales as far from the usual as a spec's may be, of queries that are scaled as they are rotated where that has the range for it.
func TestGeneratedKernelsFarScales(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scale         float64
		warps         int
		headDim       int
		encoding      spec.Encoding
		scalesQueries bool
	}{
		{1e-6, 12, 64, spec.Segment, true}, {1e-6, 16, 64, spec.Segment, false}, {1e-6, 16, 128, spec.Segment, false},
		{1000, 12, 64, spec.Segment, true}, {1000, 16, 64, spec.Segment, false}, {1000, 16, 128, spec.Segment, false},
		{300, 16, 64, spec.Segment, true}, {1e-4, 16, 64, spec.Segment, true},
		{1e-6, 16, 64, spec.Raw, false}, {0.022, 16, 64, spec.Raw, true}, {0.34, 16, 64, spec.Raw, true}, {1000, 16, 64, spec.Raw, false},
	} {
		t.Run(fmt.Sprintf("%g, %d warps, %d dimensions, %s", c.scale, c.warps, c.headDim, c.encoding), func(t *testing.T) {
			t.Parallel()
			s := emulated(t, func(s *spec.Spec) {
				s.Scale = c.scale
				s.Model.HeadDim, s.Model.VHeadDim = c.headDim, c.headDim
				s.Rope = rotaryOf(c.headDim)
				s.Cache.Encoding = c.encoding
				s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Rows: 128, Keys: 64, Stages: 2, Warps: c.warps}}
				s.Kinds = []spec.Kind{spec.Extend, spec.Merge}
				s.Targets = []spec.Target{"sm_90a"}
			})
			p, err := plan.Choose(s, spec.Extend, "sm_90a")
			if err != nil || p.AlignsQueries != (c.warps == 16 && c.encoding == spec.Segment) || p.ScalesQueries(s) != c.scalesQueries {
				t.Fatalf("aligns queries: %v, scales them: %v, %v", p.AlignsQueries, p.ScalesQueries(s), err)
			}
			verified(t, unoptimized(t, 7), s, Options{Kinds: []spec.Kind{spec.Extend}, Encodings: []spec.Encoding{c.encoding}, Cases: 3, Seed: 3})
		})
	}
}

// Items that two blocks share: with pages smaller and larger than a block's share of a tile,
// with groups that leave rows of a block unused, and with queries rotated in each way.
func TestGeneratedKernelsClusters(t *testing.T) {
	t.Parallel()
	windowed := spec.Masks{Causal: true, Window: 40, SinkTokens: 4, SinkLogits: true}
	for _, c := range []struct {
		group, headDim int
		cache          spec.Cache
		masks          spec.Masks
		tile           spec.Tile // of extend
		encodings      []spec.Encoding
	}{
		{3, 64, spec.Cache{PageSize: 8, Layout: spec.HND}, spec.Masks{Causal: true}, spec.Tile{Rows: 256, Keys: 64, Stages: 2, Warps: 12}, []spec.Encoding{spec.Segment, spec.Baked}},
		{4, 128, spec.Cache{PageSize: 256, Layout: spec.NHD}, spec.Masks{Causal: true}, spec.Tile{Rows: 256, Keys: 128, Stages: 2, Warps: 16}, []spec.Encoding{spec.Segment}},
		{7, 64, spec.Cache{PageSize: 16, Layout: spec.NHD}, windowed, spec.Tile{Rows: 256, Keys: 128, Stages: 3, Warps: 12}, []spec.Encoding{spec.Segment}},
		{2, 256, spec.Cache{PageSize: 16, Layout: spec.NHD}, windowed, spec.Tile{Rows: 256, Keys: 64, Stages: 2, Warps: 16}, []spec.Encoding{spec.Segment}},
	} {
		t.Run(fmt.Sprintf("groups of %d, %s pages of %d, %d warps", c.group, c.cache.Layout, c.cache.PageSize, c.tile.Warps), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 8)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.QueryHeads, s.Model.HeadDim, s.Model.VHeadDim = c.group*s.Model.KVHeads, c.headDim, c.headDim
				s.Rope = rotaryOf(c.headDim)
				s.Cache.PageSize, s.Cache.Layout, s.Masks = c.cache.PageSize, c.cache.Layout, c.masks
				prefill := c.tile
				prefill.Warps = 12
				s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: c.tile, spec.Prefill: prefill}
				s.Targets = []spec.Target{"sm_90a"}
			})
			for kind := range s.Tiles {
				if p, err := plan.Choose(s, kind, "sm_90a"); err != nil || p.Cluster != 2 {
					t.Fatalf("%s by %d blocks, %v", kind, p.Cluster, err)
				}
			}
			verified(t, dev, s, Options{Kinds: []spec.Kind{spec.Prefill, spec.Extend}, Encodings: c.encodings, Cases: 2, Seed: 1})
		})
	}
}

// Capped scores beside a warpgroup that rotates or copiers that do, of warpgroups that rotate their own queries, of two blocks that exchange raw keys, and of items of several parts with
// baked keys where raw ones have none.
func TestGeneratedKernelsCapped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dtype    spec.DType
		headDim  int
		kind     spec.Kind
		encoding spec.Encoding
		tile     spec.Tile
	}{
		{spec.BF16, 64, spec.Prefill, spec.Segment, spec.Tile{Rows: 128, Keys: 128, Stages: 2, Warps: 16}},
		{spec.BF16, 64, spec.Prefill, spec.Segment, spec.Tile{Rows: 192, Keys: 128, Stages: 3, Warps: 16}},
		{spec.BF16, 128, spec.Extend, spec.Segment, spec.Tile{Rows: 128, Keys: 128, Stages: 2, Warps: 12}},
		{spec.BF16, 128, spec.Extend, spec.Segment, spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 16}},
		{spec.BF16, 128, spec.Extend, spec.Raw, spec.Tile{Rows: 256, Keys: 64, Stages: 2, Warps: 16}},
		{spec.BF16, 256, spec.Extend, spec.Segment, spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 16}},
		{spec.FP16, 64, spec.Extend, spec.Raw, spec.Tile{Rows: 64, Keys: 64, Stages: 2, Warps: 8}},
	} {
		t.Run(fmt.Sprintf("%s %s, %s, head dim %d, %+v", c.kind, c.encoding, c.dtype, c.headDim, c.tile), func(t *testing.T) {
			t.Parallel()
			s := emulated(t, func(s *spec.Spec) {
				s.Model.DType, s.Model.QueryHeads, s.Model.HeadDim, s.Model.VHeadDim = c.dtype, 4*s.Model.KVHeads, c.headDim, c.headDim
				s.Rope = rotaryOf(c.headDim)
				s.Masks = spec.Masks{Causal: true, SoftCap: 3}
				s.Tiles = map[spec.Kind]spec.Tile{c.kind: c.tile}
				s.Targets = []spec.Target{"sm_90a"}
			})
			verified(t, unoptimized(t, 8), s, Options{Kinds: []spec.Kind{c.kind}, Encodings: []spec.Encoding{c.encoding}, Cases: 3, Seed: 1})
		})
	}
}

// Sink tokens that fill whole tiles, of which members of shared decode see each their own.
func TestGeneratedKernelsManySinks(t *testing.T) {
	t.Parallel()
	s := emulated(t, func(s *spec.Spec) {
		s.Model.QueryHeads, s.Model.KVHeads, s.Model.HeadDim, s.Model.VHeadDim = 4, 1, 64, 64
		s.Rope = rotaryOf(64)
		s.Masks = spec.Masks{Causal: true, Window: 150, SinkTokens: 300}
		s.Targets = []spec.Target{"sm_90a"}
	})
	o := Options{Kinds: []spec.Kind{spec.Extend, spec.SharedDecode}, Encodings: []spec.Encoding{spec.Segment}, Cases: 5, Seed: 4}
	verified(t, unoptimized(t, 8), s, o)
}

// Raw keys with more units than a rotator has and with fewer than rotators, some that are not
// rotated, as fp16 by a warpgroup and by three warps, and in fp32.
func TestGeneratedKernelsRawKeys(t *testing.T) {
	t.Parallel()
	masks := spec.Masks{Causal: true, Window: 40, SinkTokens: 4, SinkLogits: true}
	for _, c := range []struct {
		dtype              spec.DType
		headDim, rotaryDim int
		pairing            rope.Pairing
		masks              spec.Masks
		rotators           int
		tile               spec.Tile
	}{
		{spec.BF16, 128, 96, rope.Interleaved, spec.Masks{Causal: true}, 4, spec.Tile{}},
		{spec.BF16, 64, 32, rope.Half, spec.Masks{Causal: true}, 4, spec.Tile{Warps: 16}},
		{spec.BF16, 64, 32, rope.Interleaved, masks, 3, spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 12}},
		{spec.FP16, 128, 96, rope.Interleaved, masks, 3, spec.Tile{}},
	} {
		t.Run(fmt.Sprintf("%s, %d of %d dimensions, %s, %d rotators", c.dtype, c.rotaryDim, c.headDim, c.pairing, c.rotators), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 7)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.DType, s.Model.HeadDim, s.Model.VHeadDim = c.dtype, c.headDim, c.headDim
				s.Rope = rotaryOf(c.rotaryDim)
				s.Rope.Pairing, s.Rope.AttentionFactor = c.pairing, 1.3
				s.Masks = c.masks
				s.Cache.Encoding = spec.Raw
				if c.tile != (spec.Tile{}) {
					s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: c.tile}
				}
				s.Targets = []spec.Target{"sm_90a"}
			})
			if p, err := plan.Choose(s, spec.Extend, "sm_90a"); err != nil || p.Rotators != c.rotators {
				t.Fatalf("%d rotators, %v", p.Rotators, err)
			}
			provide, kinds := Generated(dev, kernel.Options{}), []spec.Kind{spec.Extend, spec.Decode}
			if c.dtype == spec.FP16 { // rotated as append does, to the same bits
				provide, kinds = likeRaw(t, provide), spec.TiledKinds
			}
			r, err := Run(t.Context(), dev, s, provide, Options{
				Kinds: kinds, Encodings: []spec.Encoding{spec.Raw}, Cases: 2, Seed: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() {
				t.Error(r)
			}
			for _, row := range r.Rows {
				if c.dtype == spec.FP16 && row.SameBits != row.Cases {
					t.Errorf("%s: the bits of %d of %d raw cases were compared with baked's", row.Kind, row.SameBits, row.Cases)
				}
			}
		})
	}
}

// Raw keys of which each of two blocks rotates half of a tile and gives it to the other: with pages smaller than a half and as
// large, with a half of one round of keys and of two, and with rotators that have no units and some that have two.
func TestGeneratedKernelsExchangedKeys(t *testing.T) {
	t.Parallel()
	windowed := spec.Masks{Causal: true, Window: 40, SinkTokens: 4, SinkLogits: true}
	for _, c := range []struct {
		group, headDim, rotaryDim int
		pairing                   rope.Pairing
		cache                     spec.Cache
		masks                     spec.Masks
		tile                      spec.Tile
	}{
		{4, 128, 64, rope.Interleaved, spec.Cache{PageSize: 8, Layout: spec.HND}, spec.Masks{Causal: true}, spec.Tile{Rows: 256, Keys: 128, Stages: 2, Warps: 16}},
		{4, 128, 128, rope.Half, spec.Cache{PageSize: 64, Layout: spec.NHD}, spec.Masks{Causal: true}, spec.Tile{Rows: 256, Keys: 128, Stages: 2, Warps: 16}},
		{3, 64, 32, rope.Half, spec.Cache{PageSize: 64, Layout: spec.HND}, windowed, spec.Tile{Rows: 256, Keys: 64, Stages: 3, Warps: 16}},
	} {
		t.Run(fmt.Sprintf("%d of %d dimensions, %s, %s pages of %d, %d keys", c.rotaryDim, c.headDim, c.pairing, c.cache.Layout, c.cache.PageSize, c.tile.Keys), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 12)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.QueryHeads, s.Model.HeadDim, s.Model.VHeadDim = c.group*s.Model.KVHeads, c.headDim, c.headDim
				s.Rope = rotaryOf(c.rotaryDim)
				s.Rope.Pairing, s.Rope.AttentionFactor = c.pairing, 1.3
				s.Cache, s.Masks = c.cache, c.masks
				s.Cache.Encoding = spec.Raw
				s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: c.tile}
				s.Targets = []spec.Target{"sm_90a"}
			})
			if p, err := plan.Choose(s, spec.Extend, "sm_90a"); err != nil || !p.ExchangesKeys(s) || p.Rotators != 4 {
				t.Fatalf("exchanges keys: %v, %d rotators, %v", p.ExchangesKeys(s), p.Rotators, err)
			}
			verified(t, dev, s, Options{Kinds: []spec.Kind{spec.Extend}, Encodings: []spec.Encoding{spec.Raw}, Cases: 3, Seed: 1})
		})
	}
}

// Raw keys that are rotated ahead of their kernels: to the bits of baked keys.
func TestGeneratedKernelsKeysAhead(t *testing.T) {
	t.Parallel()
	windowed := spec.Masks{Causal: true, Window: 40, SinkTokens: 4, SinkLogits: true}
	for _, c := range []struct {
		dtype              spec.DType
		headDim, rotaryDim int
		pairing            rope.Pairing
		cache              spec.Cache
		masks              spec.Masks
		tile               spec.Tile
	}{
		{spec.BF16, 128, 96, rope.Interleaved, spec.Cache{PageSize: 16, Layout: spec.NHD}, windowed, spec.Tile{Rows: 128, Keys: 64, Stages: 2, Warps: 12}},
		{spec.BF16, 64, 64, rope.Half, spec.Cache{PageSize: 8, Layout: spec.HND}, spec.Masks{Causal: true}, spec.Tile{Rows: 256, Keys: 128, Stages: 2, Warps: 12}},
		{spec.FP16, 64, 32, rope.Half, spec.Cache{PageSize: 256, Layout: spec.NHD}, spec.Masks{Causal: true}, spec.Tile{Rows: 64, Keys: 64, Stages: 2, Warps: 8}},
	} {
		t.Run(fmt.Sprintf("%s, %d of %d dimensions, %s, %s pages of %d, %d rows", c.dtype, c.rotaryDim, c.headDim, c.pairing, c.cache.Layout, c.cache.PageSize, c.tile.Rows), func(t *testing.T) {
			t.Parallel()
			dev := unoptimized(t, 9)
			s := emulated(t, func(s *spec.Spec) {
				s.Model.DType, s.Model.HeadDim, s.Model.VHeadDim = c.dtype, c.headDim, c.headDim
				s.Rope = rotaryOf(c.rotaryDim)
				s.Rope.Pairing = c.pairing
				s.Cache, s.Masks = c.cache, c.masks
				s.Cache.Encoding = spec.Raw
				s.Targets = []spec.Target{"sm_90a"}
			})
			provide := Emitted(dev, func(s spec.Spec) (emit.Output, error) {
				plans, err := plan.All(s)
				if err != nil {
					return emit.Output{}, err
				}
				for i, p := range plans {
					if p.Kind != spec.Prefill && p.Kind != spec.Extend {
						continue
					}
					layout := plan.Layout{Family: plan.SM90, Tile: c.tile, Blocks: 1, KeysAhead: s.RotatesKeys()}
					var misfit *plan.Misfit
					if plans[i], misfit = plan.Make(s, p.Kind, "sm_90a", layout); misfit != nil {
						return emit.Output{}, misfit
					}
				}
				return emit.Emit(s, plans, templates.FS)
			}, kernel.Options{})
			r, err := Run(t.Context(), dev, s, provide, Options{Kinds: []spec.Kind{spec.Prefill, spec.Extend}, Cases: 2, Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() {
				t.Error(r)
			}
			for _, row := range r.Rows {
				if row.SameBits != row.Cases {
					t.Errorf("%s: the bits of %d of %d cases were compared with baked's", row.Kind, row.SameBits, row.Cases)
				}
			}
		})
	}
}
