package spec

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/kgen-project/kgen/runtime/rope"
)

// Limits of this version.
const (
	maxHeads      = 1024
	maxGroup      = 64
	maxPageSize   = 256
	maxWindow     = 1 << 30
	maxTileRows   = 512
	maxTileKeys   = 512
	maxTileStages = 8
	maxTileWarps  = 16
	vectorDims    = 8 // dimensions that a kernel moves at a time
)

var headDims = []int{64, 128, 256}

// Parse reads a spec. file is its name for messages alone. The error is
// Errors: everything that is wrong, in the file's order.
func Parse(file string, data []byte) (Spec, error) {
	root, err := document.Parse(file, data)
	if err != nil {
		return Spec{}, err
	}
	r := &reader{file: file, bad: map[string]bool{}, positions: map[string]Position{"": {file, root.Line, root.Column}}}
	s := r.spec(root)
	if r.errs != nil {
		r.errs.Sort()
		return Spec{}, r.errs
	}
	s.Positions = r.positions
	return s, nil
}

func (r *reader) spec(root *yaml.Node) Spec {
	s := Spec{
		Model:    Model{DType: BF16},
		Rule:     rope.Rule{Pairing: rope.Half},
		Cache:    Cache{PageSize: 16, Layout: NHD, Encoding: Segment},
		Masks:    Masks{Causal: true},
		Sharing:  Fastest,
		Batching: Bitwise,
		Kinds:    slices.Clone(AllKinds),
		Targets:  []Target{"sm_80", "sm_90a"},
	}
	r.section(root, "", []field{
		{"name", true, r.name(&s.Name)},
		{"model", true, r.model(&s.Model)},
		{"rope", true, r.rope(&s.Rule)},
		{"cache", false, r.cache(&s.Cache)},
		{"masks", false, r.masks(&s.Masks)},
		{"scale", false, r.positive(&s.Scale)},
		{"sharing", false, word(r, &s.Sharing, []Mode{Fastest, Bitwise}, nil)},
		{"batching", false, word(r, &s.Batching, []Mode{Bitwise, Fastest}, nil)},
		{"kernels", false, words(r, &s.Kinds, AllKinds)},
		{"targets", false, words(r, &s.Targets, AllTargets)},
		{"tiles", false, r.tiles(&s.Tiles)},
	}, nil)
	r.resolve(&s)
	return s
}

// resolve fills in the defaults that follow from other fields and checks the
// fields against each other.
func (r *reader) resolve(s *Spec) {
	m := &s.Model
	if m.VHeadDim == 0 {
		m.VHeadDim = m.HeadDim
	}
	switch {
	case !r.ok("model.query_heads", "model.kv_heads"):
	case m.QueryHeads%m.KVHeads != 0:
		r.fail("model.kv_heads", "%d does not divide query_heads, %d", m.KVHeads, m.QueryHeads)
	case m.Group() > maxGroup:
		r.fail("model.kv_heads", "%d query heads share one KV head; at most %d can", m.Group(), maxGroup)
	}
	if r.ok("model.head_dim", "model.v_head_dim") && m.VHeadDim > m.HeadDim {
		r.fail("model.v_head_dim", "%d is more than model.head_dim, %d", m.VHeadDim, m.HeadDim)
	}
	if s.Scale != 0 && (s.Scale < 1e-6 || s.Scale > 1e3) {
		r.fail("scale", "%v is not from 1e-6 to 1000", s.Scale)
	}
	if s.Scale == 0 && r.ok("model.head_dim") {
		s.Scale = defaultScale(*m)
	}
	if r.ok("rope.type") {
		r.resolveRope(s)
	}
	if s.Masks.SinkTokens > 0 && s.Masks.Window == 0 && r.ok("masks.window") {
		r.fail("masks.sink_tokens", "it has no effect without masks.window")
	}
	if s.Masks.Window > 0 && !s.Masks.Causal {
		r.fail("masks.window", "a window without causal is not in this version")
	}
	for _, k := range TiledKinds {
		if path := "tiles." + string(k); r.given(path) && r.ok("kernels") && !slices.Contains(s.Kinds, k) {
			r.fail(path, "kernels does not list %s", k)
		}
	}
	shares := slices.Contains(s.Kinds, SharedDecode)
	switch {
	case !r.ok("kernels"):
	case shares && !slices.Contains(s.Kinds, Merge):
		r.fail("kernels", "shared_decode needs merge too: its results are partial, always")
	case !shares && r.given("sharing"):
		r.fail("sharing", "kernels does not list shared_decode")
	}
	if r.ok("kernels") && r.given("batching") && !slices.Contains(s.Kinds, Extend) {
		r.fail("batching", "kernels does not list extend")
	}
}

func (r *reader) resolveRope(s *Spec) {
	rule := &s.Rule
	if rule.Type != rope.None {
		r.resolveRotaryDim(rule, s.Model.HeadDim)
	}
	var err error
	s.Rope, err = rule.Resolve()
	for _, e := range fieldErrors(err) {
		if path := "rope." + e.Field; r.ok(path) {
			r.fail(path, "%s", e.Msg)
		}
	}
}

func (r *reader) resolveRotaryDim(rule *rope.Rule, headDim int) {
	const path = "rope.rotary_dim"
	if rule.RotaryDim == 0 {
		rule.RotaryDim = headDim
		// A wrong number here is an error of the head dim, or has been told.
		r.bad[path] = r.bad[path] || !r.ok("model.head_dim")
	}
	if r.bad[path] {
		// How many factors there must be is not known.
		r.bad["rope.short_factor"], r.bad["rope.long_factor"] = true, true
		return
	}
	const step = 2 * vectorDims // eight pairs, however they are paired
	switch {
	case r.ok("model.head_dim") && rule.RotaryDim > headDim:
		r.fail(path, "%d is more than model.head_dim, %d", rule.RotaryDim, headDim)
	case rule.RotaryDim%step != 0:
		r.fail(path, "%d is not a multiple of %d", rule.RotaryDim, step)
	}
}

func fieldErrors(err error) (out []*rope.FieldError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			out = append(out, fieldErrors(e)...)
		}
		return out
	}
	var e *rope.FieldError
	if errors.As(err, &e) {
		out = append(out, e)
	}
	return out
}

func defaultScale(m Model) float64 { return 1 / math.Sqrt(float64(m.HeadDim)) }

func (r *reader) model(m *Model) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		r.section(n, path, []field{
			{"query_heads", true, r.integer(&m.QueryHeads, 1, maxHeads)},
			{"kv_heads", true, r.integer(&m.KVHeads, 1, maxHeads)},
			{"head_dim", true, r.integerOf(&m.HeadDim, headDims...)},
			{"v_head_dim", false, r.integerOf(&m.VHeadDim, headDims...)},
			{"dtype", false, word(r, &m.DType, []DType{BF16, FP16}, nil)},
		}, nil)
	}
}

func (r *reader) rope(rule *rope.Rule) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		truncate := true
		readers := []field{
			{"type", true, word(r, &rule.Type, rope.Types(), refuseRope)},
			{"theta", false, r.positive(&rule.Theta)},
			{"pairing", false, word(r, &rule.Pairing, []rope.Pairing{rope.Half, rope.Interleaved}, nil)},
			{"rotary_dim", false, r.integer(&rule.RotaryDim, 2, headDims[len(headDims)-1])},
			{"max_position", false, r.integer(&rule.MaxPosition, 1, rope.LimitMaxPosition)},
			{"factor", false, r.positive(&rule.Factor)},
			{"original_max_position", false, r.integer(&rule.OriginalMaxPosition, 2, 1<<30)},
			{"low_freq_factor", false, r.positive(&rule.LowFreqFactor)},
			{"high_freq_factor", false, r.positive(&rule.HighFreqFactor)},
			{"beta_fast", false, r.positive(&rule.BetaFast)},
			{"beta_slow", false, r.positive(&rule.BetaSlow)},
			{"truncate", false, r.boolean(&truncate)},
			{"attention_factor", false, r.positive(&rule.AttentionFactor)},
			{"mscale", false, r.positive(&rule.MScale)},
			{"mscale_all_dim", false, r.positive(&rule.MScaleAllDim)},
			{"short_factor", false, r.positives(&rule.ShortFactor)},
			{"long_factor", false, r.positives(&rule.LongFactor)},
		}
		fields := readers
		if typ := valueOf(n, "type"); slices.Contains(rope.Types(), typ) {
			required, optional := rope.Fields(typ)
			fields = []field{readers[0]}
			for _, f := range readers[1:] {
				f.required = slices.Contains(required, f.name)
				if f.required || slices.Contains(optional, f.name) {
					fields = append(fields, f)
				}
			}
		}
		r.section(n, path, fields, func(name string) string {
			if find(readers, name) == nil {
				return ""
			}
			return fmt.Sprintf("the rule %s takes no such field; its fields are %s", valueOf(n, "type"), join(names(fields)))
		})
		rule.NoTruncate = !truncate
	}
}

// valueOf returns the text of a section's field, or "".
func valueOf(n *yaml.Node, name string) string {
	if n.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1].Value
		}
	}
	return ""
}

func refuseRope(word string) string {
	switch strings.ToLower(word) {
	case "dynamic":
		return "a rule that changes its frequencies with the sequence's length cannot serve stored keys; use ntk with a fixed factor"
	case "mrope":
		return "M-RoPE, with several positions a token, is not in this version"
	case "su":
		return "su is the former name of longrope"
	}
	return ""
}

func (r *reader) cache(c *Cache) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		r.section(n, path, []field{
			{"page_size", false, r.pageSize(&c.PageSize)},
			{"layout", false, word(r, &c.Layout, []Layout{NHD, HND}, nil)},
			{"encoding", false, word(r, &c.Encoding, AllEncodings, nil)},
		}, nil)
	}
}

func (r *reader) pageSize(p *int) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		r.integer(p, 1, maxPageSize)(n, path)
		if r.ok(path) && bits.OnesCount(uint(*p)) != 1 {
			r.failAt(n, path, "%d is not a power of two", *p)
		}
	}
}

func (r *reader) masks(m *Masks) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		r.section(n, path, []field{
			{"causal", false, r.boolean(&m.Causal)},
			{"window", false, r.integer(&m.Window, 1, maxWindow)},
			{"sink_tokens", false, r.integer(&m.SinkTokens, 1, maxWindow)},
			{"sink_logits", false, r.boolean(&m.SinkLogits)},
			{"soft_cap", false, r.softCap(&m.SoftCap)},
		}, nil)
	}
}

func (r *reader) softCap(p *float64) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		r.positive(p)(n, path)
		if *p > 1e6 || *p > 0 && *p < 1e-3 {
			r.failAt(n, path, "%v is not from 0.001 to 1e6", *p)
		}
	}
}

func (r *reader) tiles(tiles *map[Kind]Tile) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		*tiles = map[Kind]Tile{}
		var fields []field
		for _, k := range TiledKinds {
			fields = append(fields, field{string(k), false, func(n *yaml.Node, path string) {
				if n.Kind == yaml.ScalarNode && n.Value == "auto" {
					return
				}
				(*tiles)[k] = r.tile(n, path)
			}})
		}
		r.section(n, path, fields, nil)
	}
}

func (r *reader) tile(n *yaml.Node, path string) (t Tile) {
	if n.Kind != yaml.MappingNode {
		r.failAt(n, path, "want auto or fields (rows, keys, stages, warps), found %s", describe(n))
		return t
	}
	if len(n.Content) == 0 {
		r.failAt(n, path, "it is empty; write auto, or one or more of rows, keys, stages, warps")
		return t
	}
	r.section(n, path, []field{
		{"rows", false, r.multipleOf16(&t.Rows, maxTileRows)},
		{"keys", false, r.multipleOf16(&t.Keys, maxTileKeys)},
		{"stages", false, r.integer(&t.Stages, 1, maxTileStages)},
		{"warps", false, r.integer(&t.Warps, 1, maxTileWarps)},
	}, nil)
	return t
}

func (r *reader) multipleOf16(p *int, high int) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		r.integer(p, 16, high)(n, path)
		if *p%16 != 0 {
			r.failAt(n, path, "%d is not a multiple of 16", *p)
		}
	}
}
