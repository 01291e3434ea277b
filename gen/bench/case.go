// Package bench times the kernels of a spec: cases with their bytes and
// operations, so that each time stands beside what the hardware allows and
// beside other ways to compute the same.
package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/gen/spec"
)

// Case is one shape to time.
type Case struct {
	Kind    spec.Kind // prefill, extend or decode
	Batch   int       // sequences
	Query   int       // query tokens of each sequence
	Context int       // tokens of KV of each sequence, with Sharing in the mean; prefill: the same as Query
	Sharing Sharing   // the zero value: no sequence holds what another does
}

// Sharing is how the sequences of a decode step hold the same documents: each
// has Held different ones, behind them its own tokens, of which the last is the
// query token. A document is a run of chunks of 512 tokens.
type Sharing struct {
	Documents int     // that there are
	Tokens    int     // of a document
	Held      int     // of a sequence
	Zipf      float64 // the document of rank r is held in proportion to 1/r^Zipf
	OwnFrom   int     // tokens of a sequence's own, drawn evenly from OwnFrom to OwnTo
	OwnTo     int

	// Apart: every sequence has its documents at an offset of its own. Otherwise they
	// begin at position 0, one behind the other.
	Apart bool
}

// String is the form that [ParseCase] reads.
func (c Case) String() string {
	switch h := c.Sharing; {
	case h.Apart:
		return fmt.Sprintf("shared:%dx%d+%s", c.Batch, h.Tokens, h.own())
	case h.Documents > 0:
		return fmt.Sprintf("zipf:%s:%d/%dx%dx%d+%s", strconv.FormatFloat(h.Zipf, 'g', -1, 64), c.Batch, h.Documents, h.Tokens, h.Held, h.own())
	case c.Kind == spec.Prefill:
		return fmt.Sprintf("%s:%dx%d", c.Kind, c.Batch, c.Query)
	}
	return fmt.Sprintf("%s:%dx%d/%d", c.Kind, c.Batch, c.Query, c.Context)
}

func (h Sharing) own() string {
	if h.OwnFrom == h.OwnTo {
		return strconv.Itoa(h.OwnFrom)
	}
	return fmt.Sprintf("%d-%d", h.OwnFrom, h.OwnTo)
}

// CaseForms is what [ParseCase] reads, for help and messages.
const CaseForms = "prefill:BATCHxTOKENS, extend:BATCHxQUERY/CONTEXT, decode:BATCHxQUERY/CONTEXT, " +
	"shared:BATCHxDOCUMENT+OWN or zipf:S:BATCH/DOCUMENTSxTOKENSxHELD+OWN"

// ParseCase reads one of [CaseForms]. The last two are decode steps: of sequences
// that hold one document, each at an offset of its own, and of sequences that hold
// a few of many documents, drawn by Zipf's law with exponent S. OWN is a number of
// tokens, or a range such as 64-192.
func ParseCase(text string) (Case, error) {
	kind, rest, _ := strings.Cut(text, ":")
	var c Case
	var example string
	ok := false
	switch kind {
	case "shared":
		c, ok = parseShared(rest)
		example = "shared:32x8192+512"
	case "zipf":
		c, ok = parseZipf(rest)
		example = "zipf:1.07:64/1000x512x5+64-192"
	case string(spec.Prefill):
		p := parser{rest: rest, ok: true}
		c = Case{Kind: spec.Prefill, Batch: p.number("x"), Query: p.number("")}
		c.Context, ok = c.Query, p.ok
		example = "prefill:1x16384"
	case string(spec.Extend), string(spec.Decode):
		p := parser{rest: rest, ok: true}
		c = Case{Kind: spec.Kind(kind), Batch: p.number("x"), Query: p.number("/"), Context: p.number("")}
		ok = p.ok
		if example = "extend:1x64/8192"; c.Kind == spec.Decode {
			example = "decode:8x1/8192"
		}
	default:
		return Case{}, fmt.Errorf("case %q: want %s", text, CaseForms)
	}
	if !ok {
		return Case{}, fmt.Errorf("case %q: want %s, such as %s", text, form(kind), example)
	}
	return c, nil
}

// form is the one of CaseForms that begins with a kind.
func form(kind string) string {
	for _, f := range strings.FieldsFunc(strings.ReplaceAll(CaseForms, " or ", ", "), func(r rune) bool { return r == ',' || r == ' ' }) {
		if strings.HasPrefix(f, kind) {
			return f
		}
	}
	return CaseForms
}

func parseShared(text string) (Case, bool) {
	p := parser{rest: text, ok: true}
	c := Case{Kind: spec.Decode, Batch: p.number("x"), Query: 1, Sharing: Sharing{Documents: 1, Held: 1, Apart: true}}
	c.Sharing.Tokens = p.number("+")
	return p.shared(c)
}

func parseZipf(text string) (Case, bool) {
	exponent, rest, _ := strings.Cut(text, ":")
	p := parser{rest: rest, ok: true}
	c := Case{Kind: spec.Decode, Batch: p.number("/"), Query: 1}
	var err error
	c.Sharing.Zipf, err = strconv.ParseFloat(exponent, 64)
	c.Sharing.Documents, c.Sharing.Tokens, c.Sharing.Held = p.number("x"), p.number("x"), p.number("+")
	if err != nil || !(c.Sharing.Zipf >= 0 && c.Sharing.Zipf <= 10) || c.Sharing.Held > c.Sharing.Documents {
		p.ok = false
	}
	return p.shared(c)
}

// parser reads numbers with something between them.
type parser struct {
	rest string
	ok   bool
}

// number takes a number and what follows it; "": nothing.
func (p *parser) number(after string) int {
	text, rest, found := p.rest, "", true
	if after != "" {
		text, rest, found = strings.Cut(p.rest, after)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1<<24 || !found {
		p.ok = false
	}
	p.rest = rest
	return n
}

// shared takes the own tokens of a case, its end.
func (p *parser) shared(c Case) (Case, bool) {
	h := &c.Sharing
	if strings.Contains(p.rest, "-") {
		h.OwnFrom = p.number("-")
		h.OwnTo = p.number("")
	} else {
		h.OwnFrom = p.number("")
		h.OwnTo = h.OwnFrom
	}
	c.Context = h.Held*h.Tokens + (h.OwnFrom+h.OwnTo)/2
	return c, p.ok && h.OwnFrom <= h.OwnTo && c.Context < 1<<24
}

// Check says why kernels of a spec can't compute the case.
func (c Case) Check(s spec.Spec) error {
	if !slices.Contains(s.Kinds, c.Kind) {
		return fmt.Errorf("case %s: the spec %s has no kind %s", c, s.Name, c.Kind)
	}
	end := c.Context
	if h := c.Sharing; h.Documents > 0 {
		end = h.Held*h.Tokens + h.OwnTo
	} else if c.Kind != spec.Prefill {
		end += c.Query
	}
	if end > s.Rope.MaxPosition {
		return fmt.Errorf("case %s: a sequence has %d positions, and those of the spec %s end at %d", c, end, s.Name, s.Rope.MaxPosition)
	}
	return nil
}

// Keys is the tokens of KV by which a sequence of the case gets its kernel: its own, or those of
// the whole step where the spec's results may depend on these.
func (c Case) Keys(s spec.Spec) int {
	if s.Whole(c.Kind) {
		return c.Batch * c.Context
	}
	return c.Context
}

// Usual are the cases that kgen is measured by.
func Usual() []Case {
	cases := []Case{
		{Kind: spec.Prefill, Batch: 4, Query: 4096, Context: 4096},
		{Kind: spec.Prefill, Batch: 1, Query: 16384, Context: 16384},
		{Kind: spec.Extend, Batch: 1, Query: 64, Context: 8 << 10},
		{Kind: spec.Extend, Batch: 1, Query: 64, Context: 32 << 10},
		{Kind: spec.Extend, Batch: 1, Query: 64, Context: 128 << 10},
		{Kind: spec.Extend, Batch: 8, Query: 64, Context: 8 << 10},
		{Kind: spec.Extend, Batch: 1, Query: 256, Context: 16 << 10},
		{Kind: spec.Extend, Batch: 4, Query: 512, Context: 8 << 10},
		{Kind: spec.Decode, Batch: 1, Query: 1, Context: 8 << 10},
		{Kind: spec.Decode, Batch: 1, Query: 1, Context: 32 << 10},
		{Kind: spec.Decode, Batch: 8, Query: 1, Context: 8 << 10},
		{Kind: spec.Decode, Batch: 32, Query: 1, Context: 8 << 10},
		{Kind: spec.Decode, Batch: 128, Query: 1, Context: 4 << 10},
		shared(32, 8<<10, 512),
		shared(128, 4<<10, 256),
	}
	for _, s := range []float64{0, 1.07, 2.1} {
		cases = append(cases, zipf(s, 64), zipf(s, 256))
	}
	return cases
}

// Sweep are the cases of two series: over the length of a context, and over
// Zipf's exponent.
func Sweep() []Case {
	var cases []Case
	for context := 1 << 10; context <= 128<<10; context *= 2 {
		cases = append(cases, Case{Kind: spec.Extend, Batch: 1, Query: 64, Context: context}, Case{Kind: spec.Decode, Batch: 1, Query: 1, Context: context})
	}
	for _, s := range []float64{0, 0.5, 0.8, 1.07, 1.4, 1.7, 2.1} {
		cases = append(cases, zipf(s, 64), zipf(s, 256))
	}
	return cases
}

func shared(batch, document, own int) Case {
	return Case{Kind: spec.Decode, Batch: batch, Query: 1, Context: document + own,
		Sharing: Sharing{Documents: 1, Tokens: document, Held: 1, OwnFrom: own, OwnTo: own, Apart: true}}
}

// zipf is a step in the midst of requests of 5 documents and a query of 64 tokens
// that go on for up to 128.
func zipf(s float64, batch int) Case {
	return Case{Kind: spec.Decode, Batch: batch, Query: 1, Context: 5*512 + 128,
		Sharing: Sharing{Documents: 1000, Tokens: 512, Held: 5, Zipf: s, OwnFrom: 64, OwnTo: 192}}
}

// Bytes are the fewest that the case must move through device memory where
// no sequence holds what another does: every input read once, every output
// written once. With Sharing it is an expected value, as is [Case.Operations];
// a [Row] counts what its draw gave, and what a window leaves of it.
func (c Case) Bytes(m spec.Model) float64 {
	return c.bytes(m, float64(c.Batch)*float64(c.Context))
}

// bytes are those for so many tokens of KV.
func (c Case) bytes(m spec.Model, kvTokens float64) float64 {
	const element = 2
	kv := kvTokens * float64(m.KVHeads) * float64(m.HeadDim+m.VHeadDim)
	qo := float64(c.Batch) * float64(c.Query) * float64(m.QueryHeads) * float64(m.HeadDim+m.VHeadDim)
	return element * (kv + qo)
}

// Operations are the floating-point operations of the two matrix products; of
// a causal prefill, those of the lower triangle.
func (c Case) Operations(m spec.Model, causal bool) float64 {
	return c.operations(m, causal, float64(c.Batch)*float64(c.Context))
}

func (c Case) operations(m spec.Model, causal bool, kvTokens float64) float64 {
	pairs := kvTokens * float64(c.Query)
	if c.Kind == spec.Prefill && causal {
		pairs /= 2
	}
	return pairs * pairOperations(m)
}

// pairOperations are those for a query token and a key, of all heads.
func pairOperations(m spec.Model) float64 { return 2 * float64(m.QueryHeads*(m.HeadDim+m.VHeadDim)) }
