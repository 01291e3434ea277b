package emit

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/rope"
)

// Kernel is one self-contained CUDA source with one entry point.
type Kernel struct {
	Plan   plan.Plan
	Entry  string // name of the entry point
	File   string // name of the source, such as prefill_sm80_r128k64s2w4.cu
	Source []byte
}

// body is the template of a kind: file kernel/<file>.cuh has a function
// template <function> over Config, that takes the parameter struct.
type body struct{ file, function, params string }

var bodies = map[spec.Kind]body{
	spec.Append:       {"append", "append", "AppendParams"},
	spec.Prefill:      {"attend", "attend", "AttendParams"},
	spec.Extend:       {"attend", "attend", "AttendParams"},
	spec.Decode:       {"decode", "decode", "AttendParams"},
	spec.SharedDecode: {"attend", "attend", "AttendParams"},
	spec.Merge:        {"merge", "merge", "MergeParams"},
	spec.Materialise:  {"materialise", "materialise", "MaterialiseParams"},
	spec.Schedule:     {"schedule", "schedule", "ScheduleParams"},
}

// bodyOf is the template of a plan: that of its kind, or the family's own.
func bodyOf(p plan.Plan) (body, bool) {
	b, ok := bodies[p.Kind]
	if p.Family == plan.SM90 {
		b.file += "_sm90"
		b.function += "_sm90"
	}
	return b, ok
}

// ParamsStruct is the name of the struct of package abi that a kind's kernels take.
func ParamsStruct(kind spec.Kind) string { return bodies[kind].params }

// flags are the values that #if KGEN_... in the templates tests.
func flags(s spec.Spec, p plan.Plan) map[string]bool {
	kind := p.Kind
	s = p.Reads(s)
	raw, segment := s.Cache.Encoding == spec.Raw, s.Cache.Encoding == spec.Segment
	f := map[string]bool{
		"KGEN_ENCODING_SEGMENT": segment,
		"KGEN_ENCODING_RAW":     raw,
		"KGEN_ENCODING_BAKED":   s.Cache.Encoding == spec.Baked,
		"KGEN_ROPE":             s.Rope.RotaryDim > 0,
		"KGEN_ONE_HEAD":         s.Model.Group() == 1 && s.Rope.RotaryDim == s.Model.HeadDim && !s.RotatesKeys(), // of a KV head, rotated in all dimensions by warps with registers for it
		"KGEN_ROTATED_KEYS":     s.RotatesKeys(),
		"KGEN_FP16_KEYS":        plan.FP16Keys(s, p.Family),
		"KGEN_PASSED_KEYS":      plan.FP16Keys(s, p.Family) && s.Rope.RotaryDim < s.Model.HeadDim,
		"KGEN_ALIGNED_QUERIES":  p.AlignsQueries,
		"KGEN_ALIGNED_PAIRS":    p.AlignsQueries && plan.AlignsPairs(s),
		"KGEN_ALIGNED_PRODUCTS": p.AlignsQueries && !plan.AlignsPairs(s),
		"KGEN_EARLY_QUERIES":    p.GivesQueriesEarly(s),
		"KGEN_SCALED_QUERIES":   p.ScalesQueries(s),
		"KGEN_KEYS_AHEAD":       p.KeysAhead,
		"KGEN_CLUSTER":          p.Cluster > 1,
		"KGEN_EXCHANGED_KEYS":   p.ExchangesKeys(s),
		"KGEN_WHOLE_TILES":      p.WholeTiles(s),
		"KGEN_INTERLEAVED":      interleaved(s),
		"KGEN_HEAD_MAJOR":       s.Cache.Layout == spec.HND,
		"KGEN_CAUSAL":           s.Masks.Causal,
		"KGEN_WINDOW":           s.Masks.Window > 0,
		"KGEN_SINK_TOKENS":      s.Masks.SinkTokens > 0,
		"KGEN_SINK_LOGITS":      s.Masks.SinkLogits,
		"KGEN_SOFT_CAP":         s.Masks.SoftCap > 0,
	}
	// Queries are rotated anew for each run: where its keys are at positions in the
	// segment. Shared decode rotates raw keys to those, one rotation for all members.
	f["KGEN_ROTATED_PER_RUN"] = segment || raw && kind == spec.SharedDecode
	for _, k := range spec.AllKinds {
		f["KGEN_"+strings.ToUpper(string(k))] = k == kind
	}
	return f
}

// Variant names what the templates become for a plan: kernels of one kind and variant differ in
// their constants alone.
func Variant(s spec.Spec, p plan.Plan) string {
	f := flags(s, p)
	var set []string
	for _, name := range sortedKeys(f) {
		if f[name] {
			set = append(set, name)
		}
	}
	return string(p.Family) + " " + strings.Join(set, " ")
}

// tiled reports a kind whose plan has a tile of rows and keys.
func tiled(kind spec.Kind) bool { return slices.Contains(spec.TiledKinds, kind) }

func interleaved(s spec.Spec) bool {
	return s.Rope.RotaryDim > 0 && s.Rope.Pairing == rope.Interleaved
}

// emitKernel flattens the templates of one plan.
func emitKernel(s spec.Spec, p plan.Plan, templates fs.FS) (Kernel, error) {
	b, ok := bodyOf(p)
	if !ok {
		return Kernel{}, fmt.Errorf("emit: no template for the kernel kind %q", p.Kind)
	}
	if !slices.Contains(s.Kinds, p.Kind) {
		return Kernel{}, fmt.Errorf("emit: a plan for %s, which the spec %s does not ask for", p.Kind, s.Name)
	}
	stem := fmt.Sprintf("%s_%s", p.Kind, p.Family)
	if tiled(p.Kind) {
		stem = fmt.Sprintf("%s_%s", p.Kind, p.Layout())
	}
	k := Kernel{Plan: p, Entry: fmt.Sprintf("kgen_%s_%s", s.Name, stem), File: stem + ".cu"}

	f := flattener{fs: templates, flags: flags(s, p), done: map[string]bool{"abi.cuh": true}}
	if err := f.file(fmt.Sprintf("ptx/%s.cuh", p.Family), ""); err != nil {
		return Kernel{}, err
	}
	instructions := f.take()
	if err := f.file(fmt.Sprintf("kernel/%s.cuh", b.file), ""); err != nil {
		return Kernel{}, err
	}
	code := f.take()
	names := identifiers(code)
	names[b.params] = true

	var out strings.Builder
	fmt.Fprintf(&out, "// SPDX-License-Identifier: Apache-2.0\n"+
		"// Generated by kgen from spec %s, digest %s; do not edit.\n"+
		"// It needs no header. By hand: nvcc -cubin -arch=%s %s\n",
		s.Name, spec.Digest(s), firstTarget(p), k.File)
	out.WriteString(instructions)
	fmt.Fprintf(&out, "\n// ======== launch parameters ========\n%s\nnamespace kgen {\n\n%s\n}  // namespace kgen\n",
		offsetMacro, writeABI(cudaDialect, func(name string) bool { return names[name] }))
	fmt.Fprintf(&out, "\n// ======== this kernel ========\nnamespace kgen {\n\n%s\n}  // namespace kgen\n", config(s, p))
	out.WriteString(code)
	cluster := ""
	if p.Cluster > 1 {
		cluster = fmt.Sprintf("__cluster_dims__(%d, 1, 1) ", p.Cluster)
	}
	fmt.Fprintf(&out, "\n// ======== entry point ========\n"+
		"extern \"C\" __global__ void %s__launch_bounds__(kgen::Config::threads, kgen::Config::min_blocks)\n"+
		"%s(const __grid_constant__ kgen::%s params) {\n  kgen::%s<kgen::Config>(params);\n}\n",
		cluster, k.Entry, b.params, b.function)
	k.Source = []byte(tidy(out.String()))
	return k, nil
}

// firstTarget is the architecture of the command in a source's first lines.
func firstTarget(p plan.Plan) spec.Target {
	if len(p.Targets) == 0 {
		return "sm_80"
	}
	return p.Targets[0]
}

// config writes the constants that the templates are instantiated with.
func config(s spec.Spec, p plan.Plan) string {
	s = p.Reads(s)
	element := "bf16"
	if s.Model.DType == spec.FP16 {
		element = "fp16"
	}
	var b strings.Builder
	line := func(kind, name string, value any, comment string) {
		text := fmt.Sprintf("  static constexpr %s %s = %v;", kind, name, value)
		if comment != "" {
			text = fmt.Sprintf("%-48s  // %s", text, comment)
		}
		b.WriteString(text + "\n")
	}
	ahead := ""
	if p.KeysAhead {
		ahead = " Its raw keys were rotated ahead: it reads them as baked ones."
	}
	fmt.Fprintf(&b, "// %s of spec %s.%s\nstruct Config {\n  using Element = ptx::%s;\n", p.Kind, s.Name, ahead, element)
	if tiled(p.Kind) {
		score, scale := element, 1.
		if plan.FP16Keys(s, p.Family) {
			score = "fp16"
		}
		if p.AlignsQueries || plan.FP16Keys(s, p.Family) && !p.ScalesQueries(s) {
			scale = plan.FP16QueryScale
		}
		fmt.Fprintf(&b, "  using ScoreElement = ptx::%s;\n", score)
		line("float", "query_scale", cFloat(scale), "of queries in their products with keys")
	}
	line("int", "group", s.Model.Group(), "query heads that share one KV head")
	line("int", "head_dim", s.Model.HeadDim, "")
	line("int", "v_head_dim", s.Model.VHeadDim, "")
	line("int", "rotary_dim", s.Rope.RotaryDim, "rotated dimensions")
	line("int", "rope_low_bits", abi.RopeLowBits, "position = high << rope_low_bits + low")
	line("int", "page_size", s.Cache.PageSize, "tokens")
	line("int", "window", s.Masks.Window, "positions; 0: no limit")
	line("int", "sink_tokens", s.Masks.SinkTokens, "")
	line("float", "soft_cap", cFloat(s.Masks.SoftCap), "0: none")
	line("bool", "head_major", s.Cache.Layout == spec.HND, "a page is [KV heads][page size][dim]")
	line("bool", "interleaved", interleaved(s), "dimensions 2t and 2t+1 are a pair")
	line("bool", "causal", s.Masks.Causal, "")
	line("bool", "sink_logits", s.Masks.SinkLogits, "")
	line("bool", "encoding_raw", s.Cache.Encoding == spec.Raw, "stored keys are un-rotated")
	line("bool", "encoding_baked", s.Cache.Encoding == spec.Baked, "stored keys are at their place in the sequence")
	if tiled(p.Kind) {
		line("int", "rows", p.BlockRows(), "query tokens x heads of one KV head in a block's tile")
		line("int", "keys", p.Keys, "keys in a tile")
		line("int", "stages", p.Stages, "tiles of keys in flight")
	}
	if p.KeyStages > 0 {
		line("int", "key_stages", p.KeyStages, "tiles of keys in flight, where stages are of values")
	}
	if p.Results > 0 {
		line("int", "results", p.Results, "items whose warps' results there is room for")
		line("int", "kept_levels", p.KeptLevels, "of an item's parts, whose results shared memory has room for")
	}
	line("int", "warps", p.Warps, "")
	if p.Family == plan.SM90 {
		line("int", "rotators", p.Rotators, "warps that rotate")
		line("int", "queries", p.Queries, "tiles of rotated queries that there is room for")
		line("bool", "folds", p.Folds, "items may have several parts")
		if p.Kind != spec.Decode {
			line("bool", "bounded_scores", plan.BoundsScores(s), "by the soft cap, so that a softmax need not subtract anything")
			if s.Masks.SoftCap > 0 {
				line("bool", "caps_together", plan.CapsTogether(s, p.Kind), "four scores of a row by one reciprocal")
			}
		}
	}
	line("int", "threads", p.Threads(), "")
	line("int", "min_blocks", max(p.MinBlocks, 1), "blocks of a multiprocessor")
	line("int", "shared_bytes", p.Shared, "dynamic shared memory of a block")
	b.WriteString("};\n")
	return b.String()
}

// cFloat writes a C float literal that reads back as the float32 nearest to x.
func cFloat(x float64) string {
	text := strconv.FormatFloat(x, 'g', -1, 32)
	if !strings.ContainsAny(text, ".e") {
		text += "."
	}
	return text + "f"
}

// identifiers is every word of the code that is not in a comment; numbers are among them.
func identifiers(code string) map[string]bool {
	names := map[string]bool{}
	between := func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for line := range strings.Lines(code) {
		line, _, _ = strings.Cut(line, "//")
		for word := range strings.FieldsFuncSeq(line, between) {
			names[word] = true
		}
	}
	return names
}
