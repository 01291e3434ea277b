package spec

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"gopkg.in/yaml.v3"
)

// reader reads fields from YAML nodes and notes every error and where each
// field stands.
type reader struct {
	file      string
	errs      Errors
	bad       map[string]bool // fields that have an error already
	positions map[string]Position
}

// field is one field of a section and what reads it.
type field struct {
	name     string
	required bool
	read     func(n *yaml.Node, path string)
}

func (r *reader) failAt(n *yaml.Node, path, format string, args ...any) {
	r.bad[path] = true
	r.errs = append(r.errs, Error{r.file, n.Line, n.Column, path, fmt.Sprintf(format, args...)})
}

// fail notes an error of a field that the file may have left out.
func (r *reader) fail(path, format string, args ...any) {
	r.bad[path] = true
	at := Spec{Positions: r.positions}.ErrorAt(path, fmt.Sprintf(format, args...))
	r.errs = append(r.errs, at.(Errors)...)
}

// ok tells whether neither the fields nor what is around them has an error so
// far.
func (r *reader) ok(paths ...string) bool {
	for _, path := range paths {
		for ; path != ""; path = parent(path) {
			if r.bad[path] {
				return false
			}
		}
	}
	return !r.bad[""]
}

func (r *reader) given(path string) bool {
	_, ok := r.positions[path]
	return ok
}

// section reads a mapping. misplaced, which may be nil, explains a field that
// is not among fields but is known elsewhere.
func (r *reader) section(n *yaml.Node, path string, fields []field, misplaced func(name string) string) {
	if n.Kind != yaml.MappingNode {
		r.failAt(n, orFile(path), "want fields (%s), found %s", join(names(fields)), describe(n))
		r.bad[path] = true
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			r.failAt(key, orFile(path), "want a field's name, found %s", describe(key))
			continue
		}
		name := key.Value
		at := child(path, name)
		if line, ok := seen[name]; ok {
			r.failAt(key, safePath(path, name), "given twice; the first is in line %d", line)
			continue
		}
		seen[name] = key.Line
		f := find(fields, name)
		if f == nil {
			msg := ""
			if misplaced != nil {
				msg = misplaced(name)
			}
			if msg == "" {
				msg = unknownField(name, names(fields))
			}
			r.failAt(key, safePath(path, name), "%s", msg)
			continue
		}
		r.positions[at] = Position{r.file, value.Line, value.Column}
		if isNull(value) {
			r.positions[at] = Position{r.file, key.Line, key.Column}
			r.failAt(key, at, "it has no value")
			continue
		}
		f.read(value, at)
	}
	for _, f := range fields {
		if _, ok := seen[f.name]; f.required && !ok {
			r.fail(child(path, f.name), "missing")
		}
	}
}

// list calls read for each element of a list.
func (r *reader) list(n *yaml.Node, path string, read func(n *yaml.Node, path string)) {
	if n.Kind != yaml.SequenceNode {
		r.failAt(n, path, "want a list, found %s", describe(n))
		return
	}
	if len(n.Content) == 0 {
		r.failAt(n, path, "the list is empty")
	}
	for i, c := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		r.positions[at] = Position{r.file, c.Line, c.Column}
		read(c, at)
	}
}

// words reads a list of distinct words among valid, into the order of valid.
func words[T ~string](r *reader, p *[]T, valid []T) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		seen := map[T]bool{}
		r.list(n, path, func(n *yaml.Node, at string) {
			var w T
			word(r, &w, valid, nil)(n, at)
			if w == "" {
				r.bad[path] = true
				return
			}
			if seen[w] {
				r.failAt(n, at, "%s is in the list twice", w)
			}
			seen[w] = true
		})
		*p = nil
		for _, v := range valid {
			if seen[v] {
				*p = append(*p, v)
			}
		}
	}
}

// word reads one word among valid. refuse, which may be nil, explains words
// that are known but not to be had.
func word[T ~string](r *reader, p *T, valid []T, refuse func(word string) string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode {
			r.failAt(n, path, "want one of %s, found %s", join(valid), describe(n))
			return
		}
		for _, v := range valid {
			if n.Value == string(v) {
				*p = v
				return
			}
		}
		if refuse != nil {
			if msg := refuse(n.Value); msg != "" {
				r.failAt(n, path, "%s", msg)
				return
			}
		}
		r.failAt(n, path, "%s", notOneOf(n.Value, valid))
	}
}

var (
	wholeNumber = regexp.MustCompile(`^[-+]?[0-9]+$`)
	number      = regexp.MustCompile(`^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$`)
)

// integer reads a whole number from low to high.
func (r *reader) integer(p *int, low, high int) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if !isPlain(n) || !wholeNumber.MatchString(n.Value) {
			r.failAt(n, path, "want a whole number from %d to %d, found %s", low, high, describe(n))
			return
		}
		v, err := strconv.Atoi(n.Value)
		if err != nil || v < low || v > high {
			r.failAt(n, path, "%s is not from %d to %d", short(n.Value), low, high)
			return
		}
		*p = v
	}
}

// integerOf reads one of the given whole numbers.
func (r *reader) integerOf(p *int, valid ...int) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if !isPlain(n) || !wholeNumber.MatchString(n.Value) {
			r.failAt(n, path, "want one of %s, found %s", joinInts(valid), describe(n))
			return
		}
		got, err := strconv.Atoi(n.Value)
		for _, v := range valid {
			if err == nil && got == v {
				*p = v
				return
			}
		}
		r.failAt(n, path, "%s is not in this version; it has %s", short(n.Value), joinInts(valid))
	}
}

// positive reads a finite number above 0.
func (r *reader) positive(p *float64) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if !isPlain(n) || !number.MatchString(n.Value) {
			r.failAt(n, path, "want a number above 0, found %s", describe(n))
			return
		}
		v, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || v <= 0 || math.IsInf(v, 0) {
			r.failAt(n, path, "%s is not a finite number above 0", short(n.Value))
			return
		}
		*p = v
	}
}

// positives reads a list of finite numbers above 0.
func (r *reader) positives(p *[]float64) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		*p = nil
		r.list(n, path, func(n *yaml.Node, at string) {
			v := 0.0
			r.positive(&v)(n, at)
			if v == 0 {
				r.bad[path] = true
			}
			*p = append(*p, v)
		})
	}
}

func (r *reader) boolean(p *bool) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if !isPlain(n) || n.Value != "true" && n.Value != "false" {
			r.failAt(n, path, "want true or false, found %s", describe(n))
			return
		}
		*p = n.Value == "true"
	}
}

func isPlain(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Style == 0 }

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// describe says what a node is, for messages.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	case isPlain(n) && number.MatchString(n.Value):
		return short(n.Value)
	case isPlain(n):
		return quote(n.Value)
	default:
		return "the text " + quote(n.Value)
	}
}

// short cuts a long number.
func short(s string) string {
	if len(s) > longestWord {
		return s[:longestWord] + "..."
	}
	return s
}

func joinInts(values []int) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = strconv.Itoa(v)
	}
	return join(words)
}

func names(fields []field) []string {
	out := make([]string, len(fields))
	for i, f := range fields {
		out[i] = f.name
	}
	return out
}

func find(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

func child(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

var fieldName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,48}$`)

// safePath is child for a name that the file made up.
func safePath(path, name string) string {
	if !fieldName.MatchString(name) {
		name = quote(name)
	}
	return child(path, name)
}

func orFile(path string) string {
	if path == "" {
		return "file"
	}
	return path
}
