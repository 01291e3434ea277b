package tune

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"gopkg.in/yaml.v3"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
)

// document is more than any table has.
var document = spec.Document{Kind: "a table", Least: "gpu and specs", MaxBytes: 8 << 20, MaxDepth: 16}

// Parse reads what [Table.Marshal] wrote, or someone edited. file is its name for
// messages alone. The error is [spec.Errors]: everything that is wrong, but for
// plans that can't be kernels, which [Entry.Check] finds.
func Parse(file string, data []byte) (Table, error) {
	r := &reader{file: file}
	root, err := document.Parse(file, data)
	if err != nil {
		return Table{}, err
	}
	var t Table
	r.fields(root, "", map[string]func(*yaml.Node, string){
		"gpu": r.text(&t.GPU),
		"specs": func(n *yaml.Node, path string) {
			r.each(n, path, func(name string, key, n *yaml.Node, path string) {
				e := Entry{at: r.position(key)} // its GPU is known when all has been read
				e.Spec = name
				r.entry(&e, n, path)
				t.Entries = append(t.Entries, e)
			})
		},
	}, "gpu", "specs")
	if r.errs != nil {
		r.errs.Sort()
		return Table{}, r.errs
	}
	for i := range t.Entries {
		t.Entries[i].GPU = t.GPU
	}
	return t, nil
}

// reader reads a file's nodes and collects what is wrong.
type reader struct {
	file string
	errs spec.Errors
}

func (r *reader) position(n *yaml.Node) spec.Position {
	return spec.Position{File: r.file, Line: n.Line, Col: n.Column}
}

// positions are those of a mapping's values, by their names behind a prefix.
func (r *reader) positions(n *yaml.Node, prefix string) map[string]spec.Position {
	at := map[string]spec.Position{}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		at[prefix+n.Content[i].Value] = r.position(n.Content[i+1])
	}
	return at
}

func (r *reader) fail(n *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "file"
	}
	r.errs = append(r.errs, spec.Error{File: r.file, Line: n.Line, Col: n.Column, Field: path, Msg: fmt.Sprintf(format, args...)})
}

// each calls read for every field of a mapping.
func (r *reader) each(n *yaml.Node, path string, read func(name string, key, value *yaml.Node, path string)) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "want fields")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := key.Value
		if path != "" {
			at = path + "." + key.Value
		}
		if key.Kind != yaml.ScalarNode || seen[key.Value] || hasControl(key.Value) {
			r.fail(key, path, "%q is no field's name, or is given twice", key.Value)
			continue
		}
		seen[key.Value] = true
		read(key.Value, key, value, at)
	}
}

// fields reads a mapping of known fields, of which some are required.
func (r *reader) fields(n *yaml.Node, path string, known map[string]func(*yaml.Node, string), required ...string) {
	given := map[string]bool{}
	r.each(n, path, func(name string, key, value *yaml.Node, at string) {
		given[name] = true
		if read, ok := known[name]; ok {
			read(value, at)
		} else {
			r.fail(key, at, "a table has no such field here")
		}
	})
	for _, name := range required {
		if n.Kind == yaml.MappingNode && !given[name] {
			r.fail(n, path, "%s is missing", name)
		}
	}
}

func (r *reader) text(to *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.Value == "" {
			r.fail(n, path, "want a text")
			return
		}
		if hasControl(n.Value) {
			r.fail(n, path, "%q has a control character", n.Value)
			return
		}
		*to = n.Value
	}
}

// hasControl says whether a text has what a terminal takes for a command.
func hasControl(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) }

func (r *reader) date(to *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if _, err := time.Parse(time.DateOnly, n.Value); n.Kind != yaml.ScalarNode || err != nil {
			r.fail(n, path, "%q is not a date such as 2026-11-21", n.Value)
			return
		}
		*to = n.Value
	}
}

func (r *reader) integer(to *int, low, high, multiple int) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		v, err := strconv.Atoi(n.Value)
		switch {
		case n.Kind != yaml.ScalarNode || err != nil || v < low || v > high:
			r.fail(n, path, "%q is not a whole number from %d to %d", n.Value, low, high)
		case v%multiple != 0:
			r.fail(n, path, "%d is not a multiple of %d", v, multiple)
		default:
			*to = v
		}
	}
}

func (r *reader) number(to *float64) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		v, err := strconv.ParseFloat(n.Value, 64)
		if n.Kind != yaml.ScalarNode || err != nil || !(v >= 0 && v <= mostNumber) {
			r.fail(n, path, "%q is not a number from 0 to %g", n.Value, mostNumber)
			return
		}
		*to = v
	}
}

func (r *reader) boolean(to *bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Value != "true" && n.Value != "false" {
			r.fail(n, path, "want true or false")
			return
		}
		*to = n.Value == "true"
	}
}

func (r *reader) entry(e *Entry, n *yaml.Node, path string) {
	if msg := spec.CheckName(e.Spec); msg != "" {
		r.fail(n, path, "%s", msg)
	}
	target := ""
	r.fields(n, path, map[string]func(*yaml.Node, string){
		"digest": r.text(&e.Digest), "driver": r.text(&e.Driver), "compiler": r.text(&e.Compiler),
		"sources": r.text(&e.Sources), "date": r.date(&e.Date),
		"target": func(n *yaml.Node, path string) {
			r.text(&target)(n, path)
			if e.Target = spec.Target(target); !slices.Contains(spec.AllTargets, e.Target) {
				r.fail(n, path, "%q is not a target such as sm_90a", target)
			}
		},
		"kinds": func(n *yaml.Node, path string) {
			r.each(n, path, func(name string, key, n *yaml.Node, path string) {
				k := KindTable{Kind: spec.Kind(name)}
				if !slices.Contains(Kinds, k.Kind) {
					r.fail(key, path, "want one of %v", Kinds)
					return
				}
				r.kind(&k, n, path)
				e.Kinds = append(e.Kinds, k)
			})
		},
	}, "digest", "target", "driver", "compiler", "sources", "date", "kinds")
}

func oneChoice(kind spec.Kind) bool { return kind == spec.Decode || kind == spec.SharedDecode }

func (r *reader) kind(k *KindTable, n *yaml.Node, path string) {
	r.fields(n, path, map[string]func(*yaml.Node, string){
		"unfinished": r.boolean(&k.Unfinished),
		"default": func(n *yaml.Node, path string) {
			s, err := ParseSetting(n.Value)
			if err != nil {
				r.fail(n, path, "%v", err)
			}
			k.Default = s.Layout
		},
		"choices": func(n *yaml.Node, path string) {
			if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
				r.fail(n, path, "want a list of choices")
				return
			}
			if oneChoice(k.Kind) && len(n.Content) > 1 {
				r.fail(n.Content[1], path, "%s has one choice: a step's sequences, of many lengths, are one launch", k.Kind)
			}
			if len(n.Content) > mostChoices {
				r.fail(n.Content[mostChoices], path, "more than %d choices", mostChoices)
			}
			for i, one := range n.Content {
				at := fmt.Sprintf("%s[%d]", path, i)
				c := r.choice(one, at)
				if j := slices.IndexFunc(k.Choices, func(before Choice) bool { return before.Around(c.Bucket) }); j >= 0 {
					r.fail(one, at, "it is never reached: %s[%d] holds every sequence that it does", path, j)
				}
				k.Choices = append(k.Choices, c)
			}
			if last := k.Choices[len(k.Choices)-1].Bucket; last != (Bucket{}) {
				r.fail(n.Content[len(n.Content)-1], path, "the last choice is for all lengths: it has no query and no keys")
			}
		},
		"cases": func(n *yaml.Node, path string) {
			r.each(n, path, func(name string, key, n *yaml.Node, path string) {
				c, err := bench.ParseCase(name)
				if err != nil {
					r.fail(key, path, "%v", err)
					return
				}
				k.Cases = append(k.Cases, r.timedCase(c, n, path))
			})
		},
		"rejected": func(n *yaml.Node, path string) {
			r.each(n, path, func(name string, key, n *yaml.Node, path string) {
				s, err := ParseSetting(name)
				if err != nil {
					r.fail(key, path, "%v", err)
				}
				k.Rejected = append(k.Rejected, Rejected{Layout: s.Layout, Why: n.Value})
			})
		},
	}, "default", "choices")
}

func (r *reader) timedCase(c bench.Case, n *yaml.Node, path string) TimedCase {
	t := TimedCase{Case: c, Times: map[Setting]time.Duration{}}
	r.fields(n, path, map[string]func(*yaml.Node, string){
		"held_out": r.boolean(&t.HeldOut), "spread": r.number(&t.Spread),
		"times": func(n *yaml.Node, path string) {
			r.each(n, path, func(name string, key, n *yaml.Node, path string) {
				us := 0.0
				r.number(&us)(n, path)
				s, err := ParseSetting(name)
				if err != nil {
					r.fail(key, path, "%v", err)
				}
				t.Times[s] = time.Duration(us * 1e3)
			})
		},
	}, "times")
	return t
}

// The limits of a spec's tiles, but for stages, of which the planner gives decode more; and of
// cuts.
const (
	mostRowsKeys, mostStages, mostWarps, mostBlocks = 512, 16, 16, 8
	mostFill, mostTokens                            = 10000, 1 << 20
	mostLength                                      = 1 << 30
	mostChoices                                     = 9 // of a kind
	mostNumber                                      = 1e12
)

func (r *reader) choice(n *yaml.Node, path string) Choice {
	c := Choice{at: r.position(n), fields: r.positions(n, "")}
	family, t := "", &c.Layout.Tile
	c.Layout.Blocks = 1
	r.fields(n, path, map[string]func(*yaml.Node, string){
		"query": r.integer(&c.Query, 1, mostLength, 1), "keys": r.integer(&c.Keys, 1, mostLength, 1),
		"fill": r.integer(&c.Cut.Fill, 1, mostFill, 1), "tokens": r.integer(&c.Cut.Tokens, 1, mostTokens, 1),
		"gain": func(n *yaml.Node, path string) {
			r.number(&c.Gain)(n, path)
			c.Measured = true
		},
		"plan": func(n *yaml.Node, path string) {
			c.at = r.position(n)
			read := map[string]func(*yaml.Node, string){
				"family": r.text(&family), "rows": r.integer(&t.Rows, 16, mostRowsKeys, 16), "keys": r.integer(&t.Keys, 16, mostRowsKeys, 16),
				"stages": r.integer(&t.Stages, 1, mostStages, 1), "warps": r.integer(&t.Warps, 1, mostWarps, 1),
				"blocks": r.integer(&c.Layout.Blocks, 1, mostBlocks, 1), "keys_ahead": r.boolean(&c.Layout.KeysAhead),
			}
			r.fields(n, path, read, "family", "rows", "keys", "stages", "warps")
			maps.Copy(c.fields, r.positions(n, "plan."))
		},
	}, "plan")
	c.Layout.Family = plan.Family(family)
	return c
}

// leastTokens are those of the smallest part that a sequence can be cut into.
func leastTokens(s spec.Spec, l plan.Layout) int { return max(l.Tile.Keys, s.Cache.PageSize) }

// Check finds choices that can't be kernels of the spec, or cuts of its sequences, as
// errors of the table's file.
func (e Entry) Check(s spec.Spec) error {
	var errs spec.Errors
	for _, k := range e.Kinds {
		for i, c := range k.Choices {
			fail := func(field, msg string) {
				at, ok := c.fields[field]
				if !ok {
					at = c.at
				}
				errs = append(errs, spec.Error{File: at.File, Line: at.Line, Col: at.Col,
					Field: fmt.Sprintf("specs.%s.kinds.%s.choices[%d].%s", e.Spec, k.Kind, i, field), Msg: msg})
			}
			if _, misfit := plan.Make(s, k.Kind, e.Target, c.Layout); misfit != nil {
				fail("plan."+misfit.Field, misfit.Msg)
			}
			if c.Cut.Tokens != 0 && c.Cut.Tokens < leastTokens(s, c.Layout) {
				fail("tokens", fmt.Sprintf("parts of %d tokens are smaller than a tile of %d keys or a page of %d", c.Cut.Tokens, c.Layout.Tile.Keys, s.Cache.PageSize))
			}
		}
	}
	if errs == nil {
		return nil
	}
	errs.Sort()
	return errs
}
