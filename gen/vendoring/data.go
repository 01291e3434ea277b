package vendoring

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/rope"
)

// data is what the templates know.
type data struct {
	Name     string // of the spec: a C and Go identifier
	Digest   string
	Macro    string // begins the header's macros
	Targets  string
	Facts    []emit.Fact
	Kinds    []kind
	Images   []image  // of one kind, the first that runs on a device is the best
	Measured []string // the GPU models that were measured
	Rules    []rule
	Attends  bool // some kind attends
	Maps     bool // some kernels copy through tensor maps
	Rotates  bool
	HighRows int

	Frequencies []float64
	HeadMajor   bool
	Example     example
}

// kind is one launch function.
type kind struct {
	Name, Title string
	About       string
	Params      string // Go name of the struct
	X, Y        dim    // the grid; Y of merge is heads and not blocks
	Attends     bool
}

// dim is a parameter that gives a size of the grid; none gives 1.
type dim struct{ goName, cName string }

// Go is the size, of the parameters p.
func (d dim) Go() string {
	if d.goName == "" {
		return "1"
	}
	return "int(p." + d.goName + ")"
}

// C is the size, of the parameters *p.
func (d dim) C() string {
	if d.cName == "" {
		return "1"
	}
	return "p->" + d.cName
}

var sizes = map[string][2]dim{
	"AppendParams":      {{"Tokens", "tokens"}, {}},
	"AttendParams":      {{"ItemCount", "item_count"}, {"KVHeads", "kv_heads"}},
	"MergeParams":       {{"Tokens", "tokens"}, {"QHeads", "q_heads"}},
	"MaterialiseParams": {{"CopyCount", "copy_count"}, {"KVHeads", "kv_heads"}},
	"ScheduleParams":    {},
}

// target is an architecture taken apart.
type target struct {
	Major, Minor int
	Alone        bool // machine code runs on this compute capability alone, and not on later ones of its major number
}

// image is one kernel's machine code for one target.
type image struct {
	Kind, Title string
	Entry, File string
	target
	Chosen     bool // by a rule alone: it is not the kind's default
	Threads    int
	Shared     int
	Rows, Keys int
	Blocks     int  // of a multiprocessor
	Cluster    int  // blocks that take an item together, and count as one in cuts; 1 or 2
	Persistent bool // the blocks take items in turns, as many as fit on the device, and copy through tensor maps
	BoxTokens  int  // tokens of a box of those maps
}

// rule is a kernel for sequences of up to so many query tokens and tokens of KV, 0 for any
// number, on a GPU model or, where that is "", on the others of a target.
type rule struct {
	GPU string
	target
	Kind, Title, Entry        string
	Query, Keys, Fill, Tokens int
}

// example is the case that the example computes.
type example struct {
	Runs        bool // the spec has the kernels for it, and positions
	Merges      bool
	First       int    // tokens of the first document
	Second      int    // tokens of the second document
	Shares      bool   // the sequences hold the documents' pages at offsets of their own
	Limit       string // largest relative error that is right
	Interleaved bool
	FP16        bool
	StoredAt    string // the position K is stored at: local, absolute, none
	WithLogits  bool
	WithSoftCap bool
	WithWindow  bool
}

var targetPattern = regexp.MustCompile(`^sm_([1-9][0-9]*)([0-9])(a?)$`)

func newData(in Input) (data, error) {
	s, m := in.Spec, in.Output.Manifest
	if m.SpecDigest != spec.Digest(s) {
		return data{}, errors.New("the manifest is of another spec")
	}
	d := data{
		Name: s.Name, Digest: m.SpecDigest, Macro: emit.MacroPrefix(s), Facts: emit.Facts(s),
		Rotates: s.Rope.RotaryDim > 0, HighRows: s.Rope.HighRows(), Frequencies: s.Rope.Frequencies,
		HeadMajor: s.Cache.Layout == spec.HND,
	}
	var targets []string
	for _, k := range m.Kernels {
		for _, t := range k.Targets {
			i, err := newImage(s, k, t)
			if err != nil {
				return data{}, err
			}
			if len(in.Cubins[i.File]) == 0 {
				return data{}, fmt.Errorf("no machine code %s", i.File)
			}
			d.Images = append(d.Images, i)
			d.Maps = d.Maps || i.Persistent
			if !slices.Contains(targets, t.Target) {
				targets = append(targets, t.Target)
			}
		}
	}
	d.Targets = strings.Join(targets, ", ")
	for _, t := range m.Tuned {
		if t.GPU != "" {
			d.Measured = append(d.Measured, t.GPU)
		}
		for _, r := range t.Rules {
			rule := rule{GPU: t.GPU, Kind: string(r.Kind), Title: emit.Title(string(r.Kind)), Entry: r.Entry,
				Query: r.Query, Keys: r.Keys, Fill: r.Fill, Tokens: r.Tokens}
			if t.GPU == "" {
				var err error
				if rule.target, err = parseTarget(t.Target); err != nil {
					return data{}, err
				}
			}
			d.Rules = append(d.Rules, rule)
		}
	}
	slices.SortStableFunc(d.Images, func(a, b image) int { // what is made closest to a device comes first
		return cmp.Or(slices.Index(spec.AllKinds, spec.Kind(a.Kind))-slices.Index(spec.AllKinds, spec.Kind(b.Kind)),
			b.Major-a.Major, b.Minor-a.Minor, boolean(b.Alone)-boolean(a.Alone))
	})
	for _, k := range spec.AllKinds {
		if !slices.ContainsFunc(d.Images, func(i image) bool { return i.Kind == string(k) }) {
			continue
		}
		params := emit.ParamsStruct(k)
		grid, known := sizes[params]
		if !known {
			return data{}, fmt.Errorf("kind %s: nothing says the grid of its %s", k, params)
		}
		d.Kinds = append(d.Kinds, kind{
			Name: string(k), Title: emit.Title(string(k)), About: emit.About(k),
			Params: params, X: grid[0], Y: grid[1], Attends: params == "AttendParams",
		})
		d.Attends = d.Attends || params == "AttendParams"
	}
	d.Example = newExample(s, d.Kinds)
	return d, nil
}

func parseTarget(text string) (target, error) {
	parts := targetPattern.FindStringSubmatch(text)
	if parts == nil {
		return target{}, fmt.Errorf("%s: no target such as sm_80 or sm_90a", text)
	}
	major, err := strconv.Atoi(parts[1])
	return target{Major: major, Minor: int(parts[2][0] - '0'), Alone: parts[3] == "a"}, err
}

func newImage(s spec.Spec, k abi.ManifestKernel, t abi.ManifestTarget) (image, error) {
	i := image{
		Kind: string(k.Kind), Title: emit.Title(string(k.Kind)), Entry: k.Entry, File: emit.CubinFile(k.Source, t.Target), Chosen: t.Tuned,
		Threads: k.Threads, Shared: k.SharedBytes, Rows: k.Plan.Rows, Keys: k.Plan.Keys, Blocks: kernel.SM80Blocks, Cluster: max(1, k.Plan.Cluster),
	}
	if plan.Family(k.Family) == plan.SM90 {
		i.Persistent, i.Blocks, i.BoxTokens = true, max(1, k.Plan.Blocks), min(s.Cache.PageSize, k.Plan.Keys/i.Cluster)
	}
	var err error
	i.target, err = parseTarget(t.Target)
	return i, err
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

func newExample(s spec.Spec, kinds []kind) example {
	has := func(k spec.Kind) bool {
		return slices.ContainsFunc(kinds, func(have kind) bool { return have.Name == string(k) })
	}
	e := example{
		Runs: has(spec.Append) && has(spec.Decode), Merges: has(spec.Merge),
		First: 70, Second: 33,
		Shares: s.Cache.Encoding != spec.Baked, StoredAt: "local",
		Interleaved: s.Rope.Pairing == rope.Interleaved, FP16: s.Model.DType == spec.FP16, Limit: "1e-2",
		WithLogits: s.Masks.SinkLogits, WithSoftCap: s.Masks.SoftCap > 0, WithWindow: s.Masks.Window > 0,
	}
	if s.Rope.RotaryDim > 0 && s.Rope.MaxPosition < 200 {
		e.First, e.Second = s.Rope.MaxPosition/4, s.Rope.MaxPosition/4
		e.Runs = e.Runs && e.First >= 5 // documents as long as a sequence's own tokens, and positions for all
	}
	switch s.Cache.Encoding {
	case spec.Baked:
		e.StoredAt = "absolute"
	case spec.Raw:
		e.StoredAt = "none"
	}
	if e.FP16 {
		e.Limit = "2e-3"
	}
	return e
}
