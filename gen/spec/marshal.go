package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/runtime/rope"
)

// Marshal writes a spec that parses back to one of the same digest. It writes
// out most defaults, and leaves out what other fields already say. It reads the
// RoPE rule, not the variant that it resolves to.
func Marshal(s Spec) []byte {
	var w writer
	w.line("name", s.Name)
	w.section("model")
	w.line("query_heads", s.Model.QueryHeads)
	w.line("kv_heads", s.Model.KVHeads)
	w.line("head_dim", s.Model.HeadDim)
	if s.Model.VHeadDim != s.Model.HeadDim {
		w.line("v_head_dim", s.Model.VHeadDim)
	}
	w.line("dtype", s.Model.DType)
	w.rope(s)
	w.section("cache")
	w.line("page_size", s.Cache.PageSize)
	w.line("layout", s.Cache.Layout)
	w.line("encoding", s.Cache.Encoding)
	w.masks(s.Masks)
	w.indent = ""
	if s.Scale != defaultScale(s.Model) {
		w.b.WriteByte('\n')
		w.line("scale", number64(s.Scale))
	}
	w.b.WriteByte('\n')
	if s.Sharing == Bitwise {
		w.line("sharing", s.Sharing)
	}
	if s.Batching == Fastest {
		w.line("batching", s.Batching)
	}
	if !slices.Equal(s.Kinds, AllKinds) {
		w.line("kernels", "["+join(s.Kinds)+"]")
	}
	w.line("targets", "["+join(s.Targets)+"]")
	w.tiles(s.Tiles)
	return []byte(w.b.String())
}

type writer struct {
	b      strings.Builder
	indent string
}

func (w *writer) line(name string, value any) { fmt.Fprintf(&w.b, "%s%s: %v\n", w.indent, name, value) }

// optional writes a value that is not zero.
func (w *writer) optional(name string, value float64) {
	if value != 0 {
		w.line(name, number64(value))
	}
}

func (w *writer) section(name string) {
	w.indent = ""
	fmt.Fprintf(&w.b, "\n%s:\n", name)
	w.indent = "  "
}

func (w *writer) rope(s Spec) {
	r := s.Rule
	w.section("rope")
	w.line("type", r.Type)
	if r.Type == rope.None {
		return
	}
	w.line("theta", number64(r.Theta))
	w.line("pairing", r.Pairing)
	if r.RotaryDim != s.Model.HeadDim {
		w.line("rotary_dim", r.RotaryDim)
	}
	w.optional("max_position", float64(r.MaxPosition))
	w.optional("factor", r.Factor)
	w.optional("low_freq_factor", r.LowFreqFactor)
	w.optional("high_freq_factor", r.HighFreqFactor)
	w.optional("original_max_position", float64(r.OriginalMaxPosition))
	w.optional("beta_fast", r.BetaFast)
	w.optional("beta_slow", r.BetaSlow)
	if r.NoTruncate {
		w.line("truncate", false)
	}
	w.optional("attention_factor", r.AttentionFactor)
	w.optional("mscale", r.MScale)
	w.optional("mscale_all_dim", r.MScaleAllDim)
	if r.Type == rope.LongRoPE {
		w.line("short_factor", numbers(r.ShortFactor))
		w.line("long_factor", numbers(r.LongFactor))
	}
}

func (w *writer) masks(m Masks) {
	if m == (Masks{Causal: true}) {
		return
	}
	w.section("masks")
	if !m.Causal {
		w.line("causal", false)
	}
	w.optional("window", float64(m.Window))
	w.optional("sink_tokens", float64(m.SinkTokens))
	if m.SinkLogits {
		w.line("sink_logits", true)
	}
	w.optional("soft_cap", m.SoftCap)
}

func (w *writer) tiles(tiles map[Kind]Tile) {
	if len(tiles) == 0 {
		return
	}
	w.section("tiles")
	for _, k := range TiledKinds {
		t, ok := tiles[k]
		if !ok {
			continue
		}
		var given []string
		for _, f := range []struct {
			name  string
			value int
		}{{"rows", t.Rows}, {"keys", t.Keys}, {"stages", t.Stages}, {"warps", t.Warps}} {
			if f.value != 0 {
				given = append(given, fmt.Sprintf("%s: %d", f.name, f.value))
			}
		}
		w.line(string(k), "{"+strings.Join(given, ", ")+"}")
	}
}

// number64 writes the shortest number that reads back the same.
func number64(x float64) string {
	if x >= 1e-5 && x < 1e15 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

func numbers(values []float64) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = number64(v)
	}
	return "[" + strings.Join(words, ", ") + "]"
}
