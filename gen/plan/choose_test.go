package plan_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

func wide(t testing.TB, more string) spec.Spec {
	t.Helper()
	if !strings.Contains(more, "rope:") {
		more = "rope: {type: default, theta: 10000}\n" + more
	}
	s, err := spec.Parse("wide.yaml", []byte("name: wide\n"+more))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The defaults for heads of 256 dimensions, each of which ptxas compiles without spills.
func TestChooseHeadDim256(t *testing.T) {
	const (
		equal  = "model: {query_heads: 8, kv_heads: 4, head_dim: 256}\n"
		seven  = "model: {query_heads: 14, kv_heads: 2, head_dim: 256}\n"
		values = "model: {query_heads: 8, kv_heads: 4, head_dim: 256, v_head_dim: 128}\n"
		capped = equal + "masks: {soft_cap: 50}\n"

		cappedWindow = equal + "masks: {soft_cap: 50, window: 4096}\n"
		window       = equal + "masks: {window: 100}\n"
		raw          = equal + "cache: {encoding: raw}\n"
		many         = "model: {query_heads: 64, kv_heads: 1, head_dim: 256, v_head_dim: 64}\n"
	)
	for _, c := range []struct {
		more     string
		kind     spec.Kind
		target   spec.Target
		want     string
		fallback string
	}{
		{equal, spec.Extend, "sm_80", "sm80_r128k64s1w8", ""},
		{equal, spec.Prefill, "sm_89", "sm80_r64k64s1w4", ""},
		{equal, spec.Extend, "sm_90a", "sm90_r128k64s2w16", ""},
		{equal, spec.SharedDecode, "sm_90a", "sm90_r64k64s2w8", ""},
		{equal, spec.Extend, "sm_100a", "sm80_r64k64s1w4", ""}, // two blocks
		{equal, spec.Decode, "sm_80", "sm80_r16k16s2w4", ""},
		{equal, spec.Decode, "sm_89", "sm80_r16k16s2w2", ""},
		{equal, spec.Decode, "sm_90a", "sm90_r16k32s4w6", ""},
		{capped, spec.Extend, "sm_80", "sm80_r128k32s2w8", ""},
		{capped, spec.Extend, "sm_86", "sm80_r64k32s2w4", ""},
		{capped, spec.Extend, "sm_90a", "sm90_r128k64s2w16", ""},
		{capped, spec.Prefill, "sm_90a", "sm90_r128k64s2w16", ""},
		{capped, spec.SharedDecode, "sm_90a", "sm90_r64k64s2w8", ""},
		{cappedWindow, spec.Extend, "sm_90a", "sm90_r128k64s2w12", ""},
		{cappedWindow, spec.Prefill, "sm_90a", "sm90_r128k64s2w16", ""},
		{window, spec.SharedDecode, "sm_80", "sm80_r128k32s2w8", ""},
		{equal, spec.Prefill, "sm_90a", "sm90_r128k64s2w16", ""},
		{raw, spec.Prefill, "sm_90a", "sm90_r64k64s2w8", ""},
		{raw, spec.Extend, "sm_90a", "sm90_r64k64s2w8", ""},
		{raw, spec.Decode, "sm_90a", "sm90_r16k32s4w8", ""},
		{seven, spec.Extend, "sm_90a", "sm90_r128k64s2w16", ""},
		{seven, spec.Decode, "sm_90a", "sm90_r16k32s4w6", ""},
		{values, spec.Extend, "sm_80", "sm80_r128k64s2w4", ""},
		{values, spec.Extend, "sm_90a", "sm90_r128k64s2w12", ""},
		{values, spec.Decode, "sm_90a", "sm90_r16k64s3w7", ""},
		{many, spec.Decode, "sm_80", "sm80_r64k16s2w2", ""},
		{many, spec.Decode, "sm_89", "sm80_r64k16s1w2", ""},
		// Warps go by the rows that are given.
		{window + "cache: {encoding: baked}\ntiles: {extend: {rows: 256}}\n", spec.Extend, "sm_90a", "sm90_r256k64s2w12", ""},
		{equal + "tiles: {extend: {rows: 256}}\n", spec.Extend, "sm_90a", "sm90_r256k64s2w16", ""},
		{equal + "tiles: {extend: {rows: 64}}\n", spec.Extend, "sm_90a", "sm90_r64k64s2w8", ""},
	} {
		p, err := plan.Choose(wide(t, c.more), c.kind, c.target)
		if err != nil {
			t.Errorf("%s on %s of\n%s%v", c.kind, c.target, c.more, err)
			continue
		}
		if p.Layout().String() != c.want || !strings.Contains(p.Fallback, c.fallback) || (p.Fallback == "") != (c.fallback == "") {
			t.Errorf("%s on %s of\n%sis %s (%q), want %s (%q)", c.kind, c.target, c.more, p.Layout(), p.Fallback, c.want, c.fallback)
		}
	}
}

// The defaults of family sm80 for outputs of 128 dimensions: 64 keys spill where a window comes with
// a group that is no power of two.
func TestChooseWindow(t *testing.T) {
	const window = "masks: {window: 200}\n"
	for _, c := range []struct{ more, sm80, sm100 string }{
		{"model: {query_heads: 8, kv_heads: 2, head_dim: 128}\n", "sm80_r128k64s1w4", "sm80_r128k64s2w4"},
		{"model: {query_heads: 8, kv_heads: 2, head_dim: 128}\n" + window, "sm80_r128k64s1w4", "sm80_r128k64s2w4"},
		{"model: {query_heads: 10, kv_heads: 2, head_dim: 128}\n", "sm80_r128k64s1w4", "sm80_r128k64s2w4"},
		{"model: {query_heads: 10, kv_heads: 2, head_dim: 128}\n" + window, "sm80_r128k32s2w4", "sm80_r128k32s2w4"},
		{"model: {query_heads: 10, kv_heads: 2, head_dim: 64}\n" + window, "sm80_r128k64s2w4", "sm80_r128k64s2w4"},
	} {
		for target, want := range map[spec.Target]string{"sm_80": c.sm80, "sm_100a": c.sm100} {
			for _, kind := range []spec.Kind{spec.Prefill, spec.Extend, spec.SharedDecode} {
				p, err := plan.Choose(wide(t, c.more), kind, target)
				if err != nil {
					t.Errorf("%s on %s of\n%s%v", kind, target, c.more, err)
					continue
				}
				if p.Layout().String() != want {
					t.Errorf("%s on %s of\n%sis %s, want %s", kind, target, c.more, p.Layout(), want)
				}
			}
		}
	}
}

// The defaults for raw keys on Hopper, which ptxas compiles without spills too.
func TestChooseRaw(t *testing.T) {
	type want struct {
		layout   string
		rotators int
	}
	apart, beside := want{"sm90_r128k128s2w16", 4}, want{"sm90_r128k128s2w12", 3}
	few := want{"sm90_r64k64s2w8", 3}
	for _, c := range []struct {
		model                  string
		extend, shared, decode want
	}{
		{"model: {query_heads: 9, kv_heads: 3, head_dim: 64}", apart, beside, want{"sm90_r16k64s4w12", 4}},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 128}", apart, beside, want{"sm90_r16k64s4w12", 4}},
		{"model: {query_heads: 64, kv_heads: 2, head_dim: 128}", apart, beside, want{"sm90_r32k32s4w8", 2}},
		{"model: {query_heads: 8, kv_heads: 4, head_dim: 256, v_head_dim: 128}", few, few, want{"sm90_r16k32s4w12", 4}},
		{"cache: {encoding: raw, page_size: 8}\nmodel: {query_heads: 32, kv_heads: 8, head_dim: 128}", apart, beside, want{"sm90_r16k64s4w12", 4}},
		{"cache: {encoding: raw, page_size: 16, layout: hnd}\nmodel: {query_heads: 32, kv_heads: 8, head_dim: 128}", apart, beside, want{"sm90_r16k64s4w12", 4}},
		{"cache: {encoding: raw, page_size: 8, layout: hnd}\nmodel: {query_heads: 32, kv_heads: 8, head_dim: 128}", want{"sm90_r128k64s2w16", 4}, beside, want{"sm90_r16k64s4w12", 4}},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 128}\nrope: {type: default, theta: 10000, rotary_dim: 64}", apart, beside, want{"sm90_r16k64s4w12", 4}},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 128}\nrope: {type: default, theta: 10000, rotary_dim: 32}", beside, beside, want{"sm90_r16k64s4w12", 4}},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 64}\nrope: {type: default, theta: 10000, rotary_dim: 16}", beside, beside, want{"sm90_r16k64s4w12", 4}},
		{"masks: {soft_cap: 30}\nmodel: {query_heads: 8, kv_heads: 2, head_dim: 128}", want{"sm90_r128k64s2w16", 4}, want{"sm90_r128k64s2w16", 4}, want{"sm90_r16k64s4w12", 4}},
	} {
		cache := "\ncache: {encoding: raw}\n"
		if strings.Contains(c.model, "cache:") {
			cache = "\n"
		}
		s := wide(t, c.model+cache)
		for kind, want := range map[spec.Kind]want{spec.Prefill: c.extend, spec.Extend: c.extend, spec.SharedDecode: c.shared, spec.Decode: c.decode} {
			p, err := plan.Choose(s, kind, "sm_90a")
			if err != nil {
				t.Errorf("%s of %s: %v", kind, c.model, err)
				continue
			}
			if p.Layout().String() != want.layout || p.Fallback != "" || p.Rotators != want.rotators {
				t.Errorf("%s of %s is %s with %d rotators (%q), want %s with %d", kind, c.model, p.Layout(), p.Rotators, p.Fallback, want.layout, want.rotators)
			}
		}
	}
}

// Prefill of 128 dimensions has a warpgroup that rotates its queries, where that leaves registers: ptxas spills
// nothing of these either.
func TestChoosePrefill(t *testing.T) {
	const dim128 = "model: {query_heads: 32, kv_heads: 8, head_dim: 128}\n"
	for _, c := range []struct {
		more     string
		want     string
		rotators int
	}{
		{dim128, "sm90_r128k128s2w16", 4},
		{dim128 + "cache: {encoding: baked}\n", "sm90_r128k128s2w16", 4},
		{"model: {query_heads: 64, kv_heads: 8, head_dim: 128, dtype: fp16}\n", "sm90_r128k128s2w16", 4},
		{dim128 + "tiles: {prefill: {warps: 12}}\n", "sm90_r128k128s2w12", 2},
		{dim128 + "tiles: {prefill: {rows: 256, warps: 16}}\n", "sm90_r256k128s2w16", 4},
		{"model: {query_heads: 72, kv_heads: 8, head_dim: 128}\n", "sm90_r128k128s2w12", 2},
		{dim128 + "masks: {window: 100}\n", "sm90_r128k128s2w16", 4},
		{dim128 + "masks: {window: 100}\ncache: {page_size: 8}\n", "sm90_r128k128s2w12", 2},
		{dim128 + "masks: {soft_cap: 30}\n", "sm90_r128k128s2w16", 4},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 64}\nmasks: {soft_cap: 30}\n", "sm90_r192k128s3w16", 0},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 64}\nmasks: {soft_cap: 100}\n", "sm90_r128k128s2w16", 4}, // whose scores nothing bounds
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 64}\nmasks: {soft_cap: 30, window: 100}\n", "sm90_r128k128s2w16", 4},
		{dim128 + "cache: {layout: hnd, page_size: 8}\n", "sm90_r128k128s2w12", 2},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 64}\n", "sm90_r192k128s3w16", 0},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 64}\ntiles: {prefill: {rows: 128, keys: 64, stages: 4, warps: 16}}\n", "sm90_r128k64s4w16", 4},
		{"model: {query_heads: 32, kv_heads: 8, head_dim: 256}\n", "sm90_r128k64s2w16", 4},
	} {
		p, err := plan.Choose(wide(t, c.more), spec.Prefill, "sm_90a")
		if err != nil {
			t.Errorf("%s%v", c.more, err)
			continue
		}
		if p.Layout().String() != c.want || p.Rotators != c.rotators || p.AlignsQueries || p.Fallback != "" {
			t.Errorf("%sis %s with %d rotators (%q), want %s with %d", c.more, p.Layout(), p.Rotators, p.Fallback, c.want, c.rotators)
		}
	}
}

// Four warps more than a tile's rows have, and only those, rotate aligned queries.
func TestChooseAlignsQueries(t *testing.T) {
	const (
		dim64  = "model: {query_heads: 9, kv_heads: 3, head_dim: 64}\n"
		dim128 = "model: {query_heads: 32, kv_heads: 8, head_dim: 128}\n"
		masked = dim128 + "masks: {window: 1000, sink_tokens: 4, sink_logits: true}\n"
	)
	for _, c := range []struct {
		more, tile string
		want       string
		aligns     bool
	}{
		{dim64, "auto", "sm90_r128k128s3w16", true},
		{dim64 + "cache: {layout: hnd, page_size: 8}\n", "auto", "sm90_r128k128s3w12", false},
		{dim64, "{warps: 12}", "sm90_r128k128s3w12", false},
		{dim64, "{warps: 16}", "sm90_r128k128s3w16", true},
		{dim64, "{keys: 64, warps: 16}", "sm90_r128k64s3w16", true},
		{dim128, "auto", "sm90_r128k128s2w12", false},
		{dim128, "{warps: 16}", "sm90_r128k128s2w16", true},
		{masked, "{warps: 16}", "sm90_r128k128s2w16", true},
	} {
		p, err := plan.Choose(wide(t, c.more+"tiles: {extend: "+c.tile+"}\n"), spec.Extend, "sm_90a")
		if err != nil {
			t.Errorf("%s of\n%s%v", c.tile, c.more, err)
			continue
		}
		rotators := 3
		if c.aligns {
			rotators = 4
		}
		if p.Layout().String() != c.want || p.AlignsQueries != c.aligns || p.Rotators != rotators || p.Queries != 2 || p.Fallback != "" {
			t.Errorf("%s of\n%sis %s, aligns queries %v, %d rotators (%q), want %s, %v, %d", c.tile, c.more, p.Layout(), p.AlignsQueries, p.Rotators, p.Fallback, c.want, c.aligns, rotators)
		}
	}
}

// With a short window items have few keys: extend by tiles of fewer, and not by aligned queries, decode of 64 dimensions by two blocks
// a multiprocessor. A tile by hand is the spec's.
func TestChooseShortWindow(t *testing.T) {
	const (
		dim64  = "model: {query_heads: 64, kv_heads: 8, head_dim: 64}\n"
		dim128 = "model: {query_heads: 32, kv_heads: 8, head_dim: 128}\n"
	)
	for _, c := range []struct {
		more           string
		extend, decode string
	}{
		{dim64, "sm90_r128k128s3w16", "sm90_r16k128s3w7"},
		{dim64 + "masks: {window: 128}\n", "sm90_r128k64s3w12", "sm90_r16k32s4w8b2"},
		{dim64 + "masks: {window: 128}\ncache: {encoding: raw}\n", "sm90_r128k128s2w16", "sm90_r16k64s4w12"},
		{dim64 + "masks: {window: 128, soft_cap: 30}\n", "sm90_r128k64s3w12", "sm90_r16k128s3w7"},
		{dim64 + "masks: {window: 128}\ntiles: {extend: {warps: 16}, decode: {keys: 64}}\n", "sm90_r128k64s3w16", "sm90_r16k64s4w8"},
		{dim64 + "masks: {window: 512}\n", "sm90_r128k128s3w12", "sm90_r16k128s3w7"},
		{dim64 + "masks: {window: 513}\n", "sm90_r128k128s3w16", "sm90_r16k128s3w7"},
		{dim128 + "masks: {window: 128}\n", "sm90_r128k64s3w12", "sm90_r16k64s3w7"},
		{dim128 + "masks: {window: 129}\n", "sm90_r128k128s2w12", "sm90_r16k64s3w7"},
	} {
		for kind, want := range map[spec.Kind]string{spec.Extend: c.extend, spec.Decode: c.decode} {
			p, err := plan.Choose(wide(t, c.more), kind, "sm_90a")
			if err != nil {
				t.Errorf("%s%v", c.more, err)
				continue
			}
			if p.Layout().String() != want || p.Fallback != "" {
				t.Errorf("%s%s is %s (%q), want %s", c.more, kind, p.Layout(), p.Fallback, want)
			}
		}
	}
}

func TestChooseHeadDim256Refuses(t *testing.T) {
	s := wide(t, "model: {query_heads: 32, kv_heads: 1, head_dim: 256}\n")
	if _, err := plan.Choose(s, spec.Decode, "sm_90a"); err == nil || !strings.Contains(err.Error(), "model: family sm80 has no decode of this shape: rows: 32 rows a warp") {
		t.Errorf("decode with 32 query heads a KV head: %v", err)
	}
	s = wide(t, "model: {query_heads: 8, kv_heads: 4, head_dim: 256}\n")
	layout := plan.Layout{Family: plan.SM90, Tile: spec.Tile{Rows: 64, Keys: 128, Stages: 1, Warps: 8}, Blocks: 1}
	if _, misfit := plan.Make(s, spec.Extend, "sm_90a", layout); misfit == nil || misfit.Field != "keys" || !strings.Contains(misfit.Msg, "224 registers") {
		t.Errorf("%s: %v", layout, misfit)
	}
}

// A sibling has a tile given by hand with its own warps, with the spec's, or not at all.
func TestWithEncoding(t *testing.T) {
	const model = "model: {query_heads: 8, kv_heads: 4, head_dim: 128}\n"
	for _, c := range []struct {
		more     string
		encoding spec.Encoding
		want     map[spec.Kind]spec.Tile
	}{
		{"targets: [sm_90a]\ntiles: {extend: {rows: 128, warps: 16}}\n", spec.Baked, map[spec.Kind]spec.Tile{spec.Extend: {Rows: 128}}},
		{"targets: [sm_80]\ntiles: {extend: {rows: 256, warps: 8}}\n", spec.Baked, map[spec.Kind]spec.Tile{spec.Extend: {Rows: 256, Warps: 8}}},
		{"tiles: {prefill: {rows: 64, warps: 2}, decode: {keys: 32}}\n", spec.Raw, map[spec.Kind]spec.Tile{spec.Prefill: {Rows: 64}, spec.Decode: {Keys: 32}}},
		{"targets: [sm_90a]\ntiles: {prefill: {rows: 256, warps: 12}}\n", spec.Raw, map[spec.Kind]spec.Tile{spec.Prefill: {Rows: 256}}},
		{"targets: [sm_90a]\ntiles: {prefill: {rows: 256, warps: 12}}\n", spec.Segment, map[spec.Kind]spec.Tile{spec.Prefill: {Rows: 256, Warps: 12}}},
	} {
		s := wide(t, model+c.more)
		if _, err := plan.All(s); err != nil {
			t.Errorf("%s%v", c.more, err)
		}
		sibling := plan.WithEncoding(s, c.encoding)
		if !maps.Equal(sibling.Tiles, c.want) || sibling.Cache.Encoding != c.encoding {
			t.Errorf("%s in %s has %v, want %v", c.more, sibling.Cache.Encoding, sibling.Tiles, c.want)
		}
		if _, err := plan.All(sibling); err != nil {
			t.Errorf("%s in %s: %v", c.more, c.encoding, err)
		}
	}
}

// Extend of raw keys has room for one more tile of keys than others, for which it gives up a tile of queries where it must.
func TestChooseKeyStages(t *testing.T) {
	const narrow, usual, tall = "head_dim: 64", "head_dim: 128", "head_dim: 256"
	const twoBlocks = usual + "}\ntiles: {extend: {rows: 256}"
	for _, c := range []struct {
		dim           string
		encoding      spec.Encoding
		kind          spec.Kind
		more, queries int // tiles of keys beyond those of values, and of queries
	}{
		{twoBlocks, spec.Raw, spec.Extend, 2, 1},
		{usual, spec.Raw, spec.Extend, 2, 1},
		{narrow, spec.Raw, spec.Extend, 2, 2},
		{usual, spec.Raw, spec.Prefill, 1, 2},
		{usual, spec.Raw, spec.SharedDecode, 1, 2},
		{usual, spec.Segment, spec.Extend, 1, 2},
		{tall, spec.Segment, spec.Extend, 1, 1},
	} {
		s := spec.WithEncoding(wide(t, "model: {query_heads: 8, kv_heads: 4, "+c.dim+"}\n"), c.encoding)
		p, err := plan.Choose(s, c.kind, "sm_90a")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.KeyStages - p.Stages; got != c.more || p.Queries != c.queries {
			t.Errorf("%s of %s keys, %s: %s has %d more tiles of keys and %d of queries, want %d and %d", c.kind, c.encoding, c.dim, p.Layout(), got, p.Queries, c.more, c.queries)
		}
	}
}
