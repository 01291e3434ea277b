package tune

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// Bucket is sequences of up to so many query tokens and tokens of KV; 0: any number.
// A choice is made for each bucket of a kind. Batch and sharing are no part of it: how
// a sequence is attended depends on itself alone, so a bucket's cases have many
// batches, and its choice must suit all of them.
type Bucket struct{ Query, Keys int }

func (b Bucket) holds(query, keys int) bool {
	return (b.Query == 0 || query <= b.Query) && (b.Keys == 0 || keys <= b.Keys)
}

// Kinds are those whose plans are chosen by measuring.
var Kinds = []spec.Kind{spec.Prefill, spec.Extend, spec.Decode, spec.SharedDecode}

// KindsOf are those of Kinds that a spec has. Shared decode is timed with the kernels
// beside it.
func KindsOf(s spec.Spec) []spec.Kind {
	var kinds []spec.Kind
	for _, k := range s.Kinds {
		alone := k != spec.SharedDecode || slices.Contains(s.Kinds, spec.Decode) && slices.Contains(s.Kinds, spec.Merge)
		if slices.Contains(Kinds, k) && alone {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// Around tells whether b holds all that c holds.
func (b Bucket) Around(c Bucket) bool {
	return (b.Query == 0 || c.Query != 0 && c.Query <= b.Query) && (b.Keys == 0 || c.Keys != 0 && c.Keys <= b.Keys)
}

// Buckets are those of a kind. A sequence belongs to the first that holds it; the
// last holds all. Decode and shared decode have one: the sequences of a step, of many
// lengths, are one launch, which a graph replays whatever their lengths become.
func Buckets(s spec.Spec, kind spec.Kind) []Bucket {
	const k = 1 << 10
	m := s.Model
	switch kind {
	case spec.Prefill:
		buckets := []Bucket{{blockTokens(m), 0}, {2 * blockTokens(m), 0}, {4 * blockTokens(m), 0}, {0, 2 * k}, {0, 8 * k}, {}}
		if s.RotatesKeys() {
			buckets = slices.Insert(buckets, 3, Bucket{aheadTokens, 0})
		}
		return buckets
	case spec.Extend:
		two := 2 * blockTokens(m)
		buckets := []Bucket{{fewTokens(m), 0}, {blockTokens(m), 0}, {two, 2 * k}, {two, 10 * k}}
		if !s.RotatesKeys() {
			buckets = append(buckets, Bucket{two, 64 * k})
		}
		buckets = append(buckets, Bucket{two, 0})
		if two < 128 {
			buckets = append(buckets, Bucket{128, 16 * k})
		}
		if 3*two < aheadTokens/4 { // beyond three tiles of two blocks a fourth is worth it, though it be half empty
			buckets = append(buckets, Bucket{3 * two, 0})
		}
		if s.RotatesKeys() {
			buckets = append(buckets, Bucket{max(aheadTokens/4, two), 0})
		}
		return append(buckets, Bucket{})
	}
	return []Bucket{{}}
}

// aheadTokens is the tokens of a prefill from which on it may pay to rotate raw keys ahead: a launch
// more, for keys that many tiles of queries read. Extend reads the same keys in all of its tiles.
const aheadTokens = 1024

// blockTokens is the query tokens that fill a usual tile of rows: a cluster of two blocks, each
// with such a tile, is for more, and best for twice as many.
func blockTokens(m spec.Model) int { return max(128/m.Group(), fewTokens(m)+1) }

// fewTokens is the query tokens that fill half of a usual tile of rows.
func fewTokens(m spec.Model) int { return min(64, max(8, 64/m.Group())) }

func bucketOf(s spec.Spec, kind spec.Kind, query, keys int) Bucket {
	for _, b := range Buckets(s, kind) {
		if b.holds(query, keys) {
			return b
		}
	}
	return Bucket{}
}

// within are a bucket's cases that choices are made by.
func within(b Bucket, s spec.Spec, kind spec.Kind, cases []Case) []Case {
	var of []Case
	for _, c := range cases {
		if !c.HeldOut && bucketOf(s, kind, c.Query, c.Keys(s)) == b {
			of = append(of, c)
		}
	}
	return of
}

// Case is a shape that is timed.
type Case struct {
	bench.Case
	HeldOut bool // for judging choices and the cost model, not for making them
}

// Cases are the usual ones of a kind: those of `kgen bench`, a few more for the ends of
// the buckets, with one sequence and with many, and held-out ones between them.
func Cases(s spec.Spec, kind spec.Kind) []Case {
	m := s.Model
	var cases []Case
	for _, c := range bench.Usual() {
		if KindOf(c) == kind {
			// Of the Zipf laws the mildest and the steepest are held out.
			cases = append(cases, Case{Case: c, HeldOut: !c.Sharing.Apart && c.Sharing.Documents > 0 && c.Sharing.Zipf != 1.07})
		}
	}
	add := func(heldOut bool, batch, query, context int) {
		cases = append(cases, Case{bench.Case{Kind: kind, Batch: batch, Query: query, Context: context}, heldOut})
	}
	const k = 1 << 10
	switch kind {
	case spec.Prefill:
		block := blockTokens(m)
		add(false, 64, block, block)
		add(false, 128, 2*block, 2*block)
		add(false, 64, 4*block, 4*block)
		add(false, 16, k/2, k/2)
		add(false, 8, k, k)
		if s.RotatesKeys() {
			add(false, 1, aheadTokens, aheadTokens)
			add(false, 2, 2*aheadTokens, 2*aheadTokens)
		}
		add(true, 2, 8*k, 8*k)
		add(true, 3, 2*k, 2*k)
	case spec.Extend:
		few := fewTokens(m)
		add(false, 1, few, 4*k)
		add(false, 4, few, 4*k)
		add(false, 1, few, 32*k)
		block := blockTokens(m)
		add(false, 1, block, 8*k)
		add(false, 4, block, 4*k)
		add(false, 1, 2*block, k)
		add(false, 1, 2*block, 2*k)
		add(false, 8, 2*block, 2*k)
		add(false, 4, 2*block, 12*k)
		add(false, 1, 2*block, 16*k)
		add(false, 1, 3*block, 8*k)
		add(false, 4, 3*block, 8*k)
		add(false, 1, 5*block, 16*k)
		add(true, 2, few-few/4, 12*k)
		add(true, 2, 64, 16*k)
		add(true, 1, 96, 24*k)
		add(true, 2, 256, 6*k)
	case spec.Decode:
		add(false, 1, 1, 2*k)
		add(false, 64, 1, k)
		add(true, 4, 1, 16*k)
		add(true, 16, 1, 4*k)
		add(true, 2, 1, 48*k)
	}
	return cases
}

// KindOf is the kind whose plan a case is timed for.
func KindOf(c bench.Case) spec.Kind {
	if c.Sharing.Documents > 0 {
		return spec.SharedDecode
	}
	return c.Kind
}

// ShapeOf is a case for the cost model. To shared decode, a document is a sequence and
// those that hold it are its query tokens.
func ShapeOf(c bench.Case) plan.Shape {
	if h := c.Sharing; h.Documents > 0 {
		documents := min(h.Documents, c.Batch*h.Held)
		return plan.Shape{Kind: spec.SharedDecode, Batch: documents, Query: max(1, c.Batch*h.Held/documents), Keys: h.Tokens}
	}
	return plan.Shape{Kind: c.Kind, Batch: c.Batch, Query: c.Query, Keys: c.Context}
}

// Setting is what is timed: a plan's layout, and how the schedule cuts for it.
type Setting struct {
	Layout plan.Layout
	Cut    plan.Cut
}

// String is the form that ParseSetting reads: sm90_r16k32s4w8b2+f100t512 is family
// sm90, 16 rows, 32 keys, 4 stages, 8 warps, 2 blocks a multiprocessor, cuts for 100
// percent of the multiprocessors, parts of 512 tokens and more. An a behind the blocks stands for
// keys that are rotated ahead.
func (s Setting) String() string {
	text := s.Layout.String()
	if s.Cut != (plan.Cut{}) {
		text += fmt.Sprintf("+f%dt%d", s.Cut.Fill, s.Cut.Tokens)
	}
	return text
}

var settingPattern = regexp.MustCompile(`^(sm[0-9]+)_r([0-9]{1,4})k([0-9]{1,4})s([0-9]{1,2})w([0-9]{1,2})(?:b([0-9]))?(a)?(?:\+f([0-9]{1,5})t([0-9]{1,7}))?$`)

// ParseSetting reads what [Setting.String] writes.
func ParseSetting(text string) (Setting, error) {
	m := settingPattern.FindStringSubmatch(text)
	if m == nil {
		return Setting{}, fmt.Errorf("%q is not a setting such as sm90_r16k64s4w8+f100t512", text)
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(m[i]) // digits, or nothing: 0
		return n
	}
	return Setting{
		Layout: plan.Layout{
			Family:    plan.Family(m[1]),
			Tile:      spec.Tile{Rows: number(2), Keys: number(3), Stages: number(4), Warps: number(5)},
			Blocks:    max(1, number(6)),
			KeysAhead: m[7] != "",
		},
		Cut: plan.Cut{Fill: number(8), Tokens: number(9)},
	}, nil
}
