// Package importer turns a Hugging Face config.json into a spec.
//
// It knows by name each field that it reads and each that changes nothing in
// attention. Any other field is an error, as is everything that a spec cannot
// express: nothing is dropped in silence.
package importer

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kgen-project/kgen/gen/spec"
)

// importer carries one import.
type importer struct {
	src        *source
	config     *object
	modelType  string
	family     family
	layerKinds []string // distinct layer_types
	spec       spec.Spec
	notes      []string          // comments on top of the spec
	origin     map[string]origin // which field of the config a field of the spec comes from
}

type origin struct {
	object *object
	name   string
}

// Import reads a config.json and returns the spec that has its attention.
// file is its name, for messages and, where it is in a folder, for the spec's
// name. The error is spec.Errors: all that is wrong, not known, or not to be
// expressed.
func Import(file string, configJSON []byte) ([]byte, error) {
	im := &importer{src: &source{file: file, data: configJSON}, origin: map[string]origin{}}
	if im.config = im.src.parse(); im.config == nil || !im.knownFamily() {
		return nil, im.src.errs
	}
	im.model()
	im.rope()
	im.spec.Masks.Causal = true
	im.readLayerTypes()
	im.spec.Masks.Window = im.family.window(im)
	im.checkLayerTypes(im.spec.Masks.Window)
	im.from("masks.window", im.config, "sliding_window")
	im.spec.Cache = spec.Cache{PageSize: 16, Layout: spec.NHD, Encoding: spec.Segment}
	im.spec.Sharing, im.spec.Batching = spec.Fastest, spec.Bitwise
	im.spec.Kinds, im.spec.Targets = spec.AllKinds, []spec.Target{"sm_80", "sm_90a"}
	im.spec.Name = im.name()
	im.inertFields()
	im.config.refuseRest()

	yaml := append(im.header(), spec.Marshal(im.spec)...)
	if len(im.src.errs) == 0 {
		_, err := spec.Parse(file, yaml)
		im.specErrors(err)
	}
	if len(im.src.errs) > 0 {
		im.src.errs.Sort()
		return nil, im.src.errs
	}
	return yaml, nil
}

// from notes where a field of the spec comes from.
func (im *importer) from(path string, o *object, name string) { im.origin[path] = origin{o, name} }

// specErrors turns what is wrong with the spec into errors of the config.
func (im *importer) specErrors(err error) {
	var errs spec.Errors
	if !errors.As(err, &errs) {
		return
	}
	for _, e := range errs {
		if from, ok := im.origin[e.Field]; ok {
			from.object.fail(from.name, "as %s in a spec: %s", e.Field, e.Msg)
		} else {
			im.src.fail(0, e.Field, "%s", e.Msg)
		}
	}
}

func (im *importer) knownFamily() bool {
	known := strings.Join(slices.Sorted(maps.Keys(families)), ", ")
	var ok bool
	if im.modelType, ok = im.config.text("model_type"); !ok {
		if im.config.fields["model_type"].any == nil {
			im.config.fail("model_type", "missing; kgen import knows %s", known)
		}
		return false
	}
	if im.family, ok = families[im.modelType]; !ok {
		reason := "it is not known to kgen import, which knows " + known
		if r, ok := reasons[im.modelType]; ok {
			reason = r
		} else if _, ok := im.config.fields["text_config"].any.(map[string]any); ok {
			reason += "; where its text_config is of one of those, import that object by itself"
		}
		im.config.fail("model_type", "%.48q: %s", im.modelType, reason)
	}
	return ok
}

func (im *importer) model() {
	c, m := im.config, &im.spec.Model
	m.QueryHeads = c.required("num_attention_heads")
	im.from("model.query_heads", c, "num_attention_heads")

	im.from("model.kv_heads", c, "num_key_value_heads")
	if _, ok := c.take("num_key_value_heads"); !ok && im.family.kvHeads {
		m.KVHeads = m.QueryHeads
		im.from("model.kv_heads", c, "num_attention_heads")
	} else {
		m.KVHeads = c.required("num_key_value_heads")
	}

	im.from("model.head_dim", c, "head_dim")
	if _, ok := c.take("head_dim"); !ok && im.family.headDim {
		im.from("model.head_dim", c, "hidden_size")
		hidden := c.required("hidden_size")
		if m.QueryHeads > 0 && hidden%m.QueryHeads != 0 {
			c.fail("hidden_size", "%d is not a multiple of num_attention_heads, %d, and there is no head_dim", hidden, m.QueryHeads)
		}
		m.HeadDim = hidden / max(1, m.QueryHeads)
	} else {
		m.HeadDim = c.required("head_dim")
	}
	m.VHeadDim = m.HeadDim
	m.DType = im.dtype()

	im.spec.Scale = 1 / math.Sqrt(float64(m.HeadDim))
	if im.family.softCap {
		if _, ok := c.fields["attn_logit_softcapping"]; !ok {
			c.fail("attn_logit_softcapping", "missing, and the published code has a default; give a number, or null for none")
		}
		im.spec.Masks.SoftCap = c.positive("attn_logit_softcapping")
		im.from("masks.soft_cap", c, "attn_logit_softcapping")
		if c.fields["query_pre_attn_scalar"].any == nil {
			c.fail("query_pre_attn_scalar", "missing")
		}
		im.spec.Scale = 1 / math.Sqrt(c.positive("query_pre_attn_scalar"))
		im.from("scale", c, "query_pre_attn_scalar")
	}
}

// dtype reads torch_dtype, which newer files call dtype.
func (im *importer) dtype() spec.DType {
	c := im.config
	old, hasOld := c.text("torch_dtype")
	name, hasNew := c.text("dtype")
	field := "dtype"
	switch {
	case hasOld && hasNew && old != name:
		c.fail("dtype", "%q differs from torch_dtype, %q", name, old)
		return ""
	case hasOld:
		name, field = old, "torch_dtype"
	}
	switch name {
	case "bfloat16":
		return spec.BF16
	case "float16":
		return spec.FP16
	case "float32":
		c.fail(field, "a spec has bf16 and fp16, not float32; change it to the type that the model shall run in, bfloat16 or float16")
	case "":
		if c.fields["torch_dtype"].any == nil && c.fields["dtype"].any == nil {
			c.fail("torch_dtype", "missing; add the type that the model shall run in, bfloat16 or float16")
		}
	default:
		c.fail(field, "%.48q is neither bfloat16 nor float16", name)
	}
	return ""
}

// inertFields takes the fields that change nothing, and refuses those of
// them that would with the value that they have.
func (im *importer) inertFields() {
	c := im.config
	for _, name := range c.names {
		only, ok := im.family.inert[name]
		if !ok {
			only, ok = inert[name]
		}
		if !ok {
			continue
		}
		if v, given := c.take(name); given && only != "" && !bytes.Equal(v.raw, []byte(only)) {
			c.fail(name, "%s is not to be expressed in a spec; it has to be %s", short(v.raw), only)
		}
	}
	im.architectures()
	if _, ok := c.take("auto_map"); ok && !im.family.ownCode {
		c.fail("auto_map", "the model brings code of its own, which may change attention; delete it if it does not")
	}
	if list, ok := takeAs[map[string]any](c, "quantization_config", "an object"); ok {
		for name, v := range list {
			if strings.HasPrefix(name, "kv_cache") && v != nil {
				c.fail("quantization_config", "%s: a quantised KV cache is not in this version", name)
			}
		}
	}
}

func (im *importer) architectures() {
	list, _ := takeAs[[]any](im.config, "architectures", "a list")
	for _, v := range list {
		if v != im.family.architecture+"ForCausalLM" && v != im.family.architecture+"Model" {
			im.config.fail("architectures", "%v is not %sForCausalLM, which model_type %s stands for",
				v, im.family.architecture, im.modelType)
		}
	}
}

// header is the comment on top of the spec.
func (im *importer) header() []byte {
	text := "Made by kgen import from a config.json of model_type " + im.modelType + "." + strings.Join(im.notes, "")
	return []byte("# " + strings.ReplaceAll(text, "\n", "\n# ") + "\n\n")
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// name makes the spec's name from the model's, from the file's folder, or from
// the family.
func (im *importer) name() string {
	folder := filepath.Base(filepath.Dir(im.src.file))
	candidates := []string{folder, im.modelType}
	if s, ok := im.config.text("_name_or_path"); ok && strings.Count(s, "/") == 1 {
		candidates = append([]string{s[strings.Index(s, "/")+1:]}, candidates...)
	}
	for _, c := range candidates {
		name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(c), "_"), "_")
		if name != "" && name[0] <= '9' {
			name = "model_" + name
		}
		name = strings.TrimRight(name[:min(len(name), 41)], "_")
		if spec.CheckName(name) == "" {
			return name
		}
	}
	return "model"
}
