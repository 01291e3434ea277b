package spec

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/rope"
)

func read(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t testing.TB, text string) Spec {
	t.Helper()
	s, err := Parse("x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const small = `name: a
model: {query_heads: 8, kv_heads: 2, head_dim: 64}
rope: {type: default, theta: 10000}
`

func TestShippedSpecs(t *testing.T) {
	for name, model := range map[string]Model{
		"llama3":       {32, 8, 128, 128, BF16},
		"llama2_7b":    {32, 32, 128, 128, BF16},
		"smollm2_135m": {9, 3, 64, 64, BF16},
	} {
		file := filepath.Join("..", "..", "specs", name+".yaml")
		s, err := Parse(file, read(t, file))
		if err != nil {
			t.Error(err)
			continue
		}
		if s.Name != name || s.Model != model || len(s.Kinds) != len(AllKinds) || s.Rope.RotaryDim != model.HeadDim {
			t.Errorf("%+v", s)
		}
	}
}

func TestDefaults(t *testing.T) {
	s := parse(t, small)
	s.Positions, s.Rope.Frequencies = nil, nil
	want := Spec{
		Name:  "a",
		Model: Model{8, 2, 64, 64, BF16},
		Rule:  rope.Rule{Type: rope.Default, Pairing: rope.Half, RotaryDim: 64, Theta: 10000},
		Rope: rope.Variant{Type: rope.Default, Pairing: rope.Half, RotaryDim: 64, AttentionFactor: 1,
			MaxPosition: rope.DefaultMaxPosition},
		Cache:    Cache{16, NHD, Segment},
		Masks:    Masks{Causal: true},
		Sharing:  Fastest,
		Batching: Bitwise,
		Scale:    0.125,
		Kinds:    AllKinds,
		Targets:  []Target{"sm_80", "sm_90a"},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestEveryFieldIsRead(t *testing.T) {
	s := parse(t, string(read(t, "testdata/valid/full.yaml")))
	s.Positions, s.Rope.Frequencies = nil, nil
	want := Spec{
		Name:  "full",
		Model: Model{24, 8, 128, 64, FP16},
		Rule: rope.Rule{Type: rope.YaRN, Pairing: rope.Interleaved, RotaryDim: 80, MaxPosition: 65537, Theta: 1e6,
			Factor: 4.5, OriginalMaxPosition: 32768, BetaFast: 16, BetaSlow: 2, NoTruncate: true, MScale: 1, MScaleAllDim: 0.707},
		Rope: rope.Variant{Type: rope.YaRN, Pairing: rope.Interleaved, RotaryDim: 80, MaxPosition: 65537,
			AttentionFactor: (0.1*math.Log(4.5) + 1) / (0.0707*math.Log(4.5) + 1)},
		Cache:    Cache{1, HND, Raw},
		Masks:    Masks{Causal: true, Window: 4096, SinkTokens: 4, SinkLogits: true, SoftCap: 50},
		Scale:    0.0625,
		Sharing:  Bitwise,
		Batching: Fastest,
		Kinds:    []Kind{Append, Extend, Decode, SharedDecode, Merge},
		Targets:  []Target{"sm_80", "sm_120a"},
		Tiles:    map[Kind]Tile{Extend: {128, 64, 2, 8}, Decode: {Stages: 4}, SharedDecode: {Keys: 32}},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestMarshalKeepsTheDigest(t *testing.T) {
	files, err := filepath.Glob("testdata/valid/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		s := parse(t, string(read(t, file)))
		again, err := Parse("again.yaml", Marshal(s))
		if err != nil {
			t.Fatalf("%v\n%s", err, Marshal(s))
		}
		if diff := cmp.Diff(canonical(s), canonical(again)); diff != "" {
			t.Errorf("%s: -first +again\n%s", file, diff)
		}
	}
}

func TestDigestIgnoresHowItIsWritten(t *testing.T) {
	want := Digest(parse(t, small))
	if len(want) != 64 {
		t.Fatalf("digest %q", want)
	}
	for _, text := range []string{
		"# a comment\n" + small,
		"rope: {theta: 1e4, type: \"default\"}\nmodel:\n  head_dim: 64\n  kv_heads: 2\n  query_heads: 8\nname: a\n",
		small + "scale: 0.125\nkernels: [merge, schedule, materialise, append, prefill, extend, shared_decode, decode]\ntargets: [sm_90a, sm_80]\n",
		small + "cache: {page_size: 16, layout: nhd, encoding: segment}\nmasks: {causal: true, sink_logits: false}\n",
		small + "tiles: {decode: auto}\n",
		strings.Replace(small, "10000", "10000, pairing: half, rotary_dim: 64, max_position: 1048576", 1),
		strings.Replace(small, "head_dim: 64", "head_dim: 64, v_head_dim: 64, dtype: bf16", 1),
	} {
		if got := Digest(parse(t, text)); got != want {
			t.Errorf("the digest changes with\n%s", text)
		}
	}
}

func TestDigestSeesEveryField(t *testing.T) {
	seen := map[string]string{Digest(parse(t, small)): small}
	for _, text := range []string{
		strings.Replace(small, "name: a", "name: b", 1),
		strings.Replace(small, "query_heads: 8", "query_heads: 4", 1),
		strings.Replace(small, "kv_heads: 2", "kv_heads: 4", 1),
		strings.Replace(small, "head_dim: 64", "head_dim: 128", 1),
		strings.Replace(small, "head_dim: 64", "head_dim: 128, v_head_dim: 64", 1),
		strings.Replace(small, "head_dim: 64", "head_dim: 64, dtype: fp16", 1),
		strings.Replace(small, "10000", "10000.0001", 1),
		strings.Replace(small, "10000", "10000, pairing: interleaved", 1),
		strings.Replace(small, "10000", "10000, rotary_dim: 32", 1),
		strings.Replace(small, "10000", "10000, max_position: 1000", 1),
		strings.Replace(small, "default, theta: 10000", "yarn, theta: 10000, factor: 2, original_max_position: 4096", 1),
		strings.Replace(small, "default, theta: 10000", "yarn, theta: 10000, factor: 2, original_max_position: 4096, attention_factor: 1", 1),
		small + "cache: {page_size: 32}\n",
		small + "cache: {layout: hnd}\n",
		small + "cache: {encoding: raw}\n",
		small + "masks: {causal: false}\n",
		small + "masks: {window: 100}\n",
		small + "masks: {window: 100, sink_tokens: 1}\n",
		small + "masks: {sink_logits: true}\n",
		small + "masks: {soft_cap: 30}\n",
		small + "scale: 0.126\n",
		small + "kernels: [append]\n",
		small + "targets: [sm_80]\n",
		small + "tiles: {decode: {rows: 16}}\n",
		small + "tiles: {decode: {keys: 16}}\n",
	} {
		d := Digest(parse(t, text))
		if other, ok := seen[d]; ok {
			t.Errorf("one digest for\n%s\nand\n%s", text, other)
		}
		seen[d] = text
	}
}

func TestWithEncoding(t *testing.T) {
	s := parse(t, small)
	if baked := WithEncoding(s, Baked); baked.Cache.Encoding != Baked || s.Cache.Encoding != Segment {
		t.Errorf("got %s beside %s", baked.Cache.Encoding, s.Cache.Encoding)
	}
}

// How many warps a tile has depends on the encoding.
func TestWithEncodingOfTiles(t *testing.T) {
	s := parse(t, small+"tiles: {extend: {rows: 128, keys: 64, stages: 2, warps: 16}, decode: {warps: 8}, prefill: {keys: 64}}\n")
	given := map[Kind]Tile{Extend: {128, 64, 2, 16}, Decode: {Warps: 8}, Prefill: {Keys: 64}}
	for e, want := range map[Encoding]map[Kind]Tile{
		Segment: given,
		Raw:     {Extend: {128, 64, 2, 0}, Decode: {}, Prefill: {Keys: 64}},
		Baked:   {Extend: {128, 64, 2, 0}, Decode: {}, Prefill: {Keys: 64}},
	} {
		if diff := cmp.Diff(want, WithEncoding(s, e).Tiles); diff != "" {
			t.Errorf("%s: -want +got\n%s", e, diff)
		}
	}
	if diff := cmp.Diff(given, s.Tiles); diff != "" {
		t.Errorf("the spec that they are siblings of: -want +got\n%s", diff)
	}
}

// TestDocumentedExamples parses the examples of specs/README.md, and holds the
// first to have every field that is documented for it.
func TestDocumentedExamples(t *testing.T) {
	const file = "../../specs/README.md"
	specs, _, _ := strings.Cut(string(read(t, file)), "\n## Tuned plans\n") // whose example is of another file
	blocks := strings.Split(specs, "```yaml\n")[1:]
	if len(blocks) != 2 {
		t.Fatalf("%d examples", len(blocks))
	}
	for i, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		s, err := Parse(file, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			continue
		}
		if want := 1.1386294361119891; s.Rope.AttentionFactor != want || math.Abs(0.1*math.Log(4)+1-want) > 1e-15 {
			t.Errorf("attention factor %v", s.Rope.AttentionFactor)
		}
		_, optional := rope.Fields(rope.YaRN)
		for _, field := range append(optional, "theta") {
			if field != "mscale" && field != "mscale_all_dim" && s.Positions["rope."+field].Line == 0 {
				t.Errorf("the example has no rope.%s", field)
			}
		}
		for _, field := range []string{"model.v_head_dim", "model.dtype", "cache.page_size", "cache.layout", "cache.encoding",
			"masks.causal", "masks.window", "masks.sink_tokens", "masks.sink_logits", "masks.soft_cap",
			"scale", "sharing", "batching", "kernels", "targets", "tiles.prefill", "tiles.extend.rows", "tiles.extend.keys", "tiles.extend.stages",
			"tiles.extend.warps", "tiles.decode.stages"} {
			if s.Positions[field].Line == 0 {
				t.Errorf("the example has no %s", field)
			}
		}
	}
}
