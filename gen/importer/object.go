package importer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kgen-project/kgen/gen/spec"
)

const maxBytes = 1 << 20

// source is a JSON file and what is wrong with it so far.
type source struct {
	file string
	data []byte
	errs spec.Errors
}

// fail notes an error at an offset of the file.
func (s *source) fail(offset int, field, format string, args ...any) {
	before := s.data[:min(max(offset, 0), len(s.data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	col := len(before) - bytes.LastIndexByte(before, '\n')
	s.errs = append(s.errs, spec.Error{File: s.file, Line: line, Col: col, Field: field, Msg: fmt.Sprintf(format, args...)})
}

// object is a JSON object whose fields are taken one by one, so that those
// that nobody knows remain.
type object struct {
	src    *source
	path   string // with a dot behind it, or empty
	offset int
	names  []string // in the file's order
	fields map[string]value
	taken  map[string]bool
}

// value is a JSON value: nil, bool, json.Number, string, []any or map[string]any.
type value struct {
	any
	raw    json.RawMessage
	offset int
}

// parse reads the whole file as one object; nil: it is not one.
func (s *source) parse() *object {
	s.data = bytes.TrimPrefix(s.data, []byte("\ufeff"))
	switch {
	case len(s.data) > maxBytes:
		s.fail(0, "file", "it has %d bytes; a config.json has at most %d", len(s.data), maxBytes)
	case len(bytes.TrimSpace(s.data)) == 0:
		s.fail(0, "file", "it is empty")
	case !utf8.Valid(s.data):
		s.fail(0, "file", "it is not UTF-8 text")
	default:
		err := json.Unmarshal(s.data, new(json.RawMessage))
		if err == nil {
			return s.object("", s.data, 0)
		}
		at := 0
		if e := (*json.SyntaxError)(nil); errors.As(err, &e) {
			at = int(e.Offset) - 1
		}
		s.fail(at, "file", "not valid JSON: %v", err)
	}
	return nil
}

// object reads text, which is valid JSON and stands at an offset of the file,
// as an object; nil: it is not one.
func (s *source) object(path string, text []byte, offset int) *object {
	d := json.NewDecoder(bytes.NewReader(text))
	fail := func(format string, args ...any) *object {
		field := strings.TrimSuffix(path, ".")
		s.fail(offset, cmp.Or(field, "file"), format, args...)
		return nil
	}
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return fail("want a JSON object, found %s", short(text))
	}
	o := &object{src: s, path: path, offset: offset, fields: map[string]value{}, taken: map[string]bool{}}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return fail("not valid JSON: %v", err)
		}
		name, v := key.(string), value{}
		if err := d.Decode(&v.raw); err != nil {
			return fail("not valid JSON: %v", err)
		}
		v.offset = offset + int(d.InputOffset()) - len(v.raw)
		inner := json.NewDecoder(bytes.NewReader(v.raw))
		inner.UseNumber()
		if err := inner.Decode(&v.any); err != nil {
			return fail("not valid JSON: %v", err)
		}
		if _, ok := o.fields[name]; ok {
			s.fail(v.offset, o.field(name), "given twice")
			continue
		}
		o.names = append(o.names, name)
		o.fields[name] = v
	}
	return o
}

// field is the path of a field, safe to print.
func (o *object) field(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || len(name) > 48 {
		name = quoted[:min(len(quoted), 50)]
	}
	return o.path + name
}

// fail notes an error of a field, which may be missing.
func (o *object) fail(name, format string, args ...any) {
	offset := o.offset
	if v, ok := o.fields[name]; ok {
		offset = v.offset
	}
	o.src.fail(offset, o.field(name), format, args...)
}

// take returns a field that is neither missing nor null.
func (o *object) take(name string) (v value, ok bool) {
	o.taken[name] = true
	v = o.fields[name]
	return v, v.any != nil
}

// takeAs takes a field of a type.
func takeAs[T any](o *object, name, want string) (v T, ok bool) {
	field, ok := o.take(name)
	if !ok {
		return v, false
	}
	v, ok = field.any.(T)
	if !ok {
		o.fail(name, "want %s, found %s", want, short(field.raw))
	}
	return v, ok
}

func (o *object) text(name string) (string, bool) { return takeAs[string](o, name, "a text") }

func (o *object) boolean(name string) (v, ok bool) { return takeAs[bool](o, name, "true or false") }

func (o *object) number(name string) (float64, bool) {
	n, ok := takeAs[json.Number](o, name, "a number")
	if !ok {
		return 0, false
	}
	v, err := n.Float64()
	if err != nil {
		o.fail(name, "%s is too large a number", short([]byte(n)))
		return 0, false
	}
	return v, true
}

// positive is a number above 0, or 0 where there is none.
func (o *object) positive(name string) float64 {
	v, ok := o.number(name)
	if ok && v <= 0 {
		o.fail(name, "%v is not above 0", v)
	}
	return v
}

func (o *object) integer(name string) (int, bool) {
	n, ok := takeAs[json.Number](o, name, "a whole number")
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(string(n), 10, 32)
	if err != nil || v < 1 {
		o.fail(name, "%s is not a whole number from 1 to %d", short([]byte(n)), 1<<31-1)
		return 0, false
	}
	return int(v), true
}

// required is integer for a field that must be there.
func (o *object) required(name string) int {
	v, ok := o.integer(name)
	if !ok && o.fields[name].any == nil {
		o.fail(name, "missing")
	}
	return v
}

func (o *object) numbers(name string) []float64 {
	list, ok := takeAs[[]any](o, name, "a list of numbers")
	if !ok {
		return nil
	}
	out := make([]float64, len(list))
	for i, v := range list {
		n, isNumber := v.(json.Number)
		f, err := n.Float64()
		if !isNumber || err != nil {
			o.fail(name, "number %d is not a number", i+1)
			return nil
		}
		out[i] = f
	}
	return out
}

// refuseRest notes an error for each field that was not taken.
func (o *object) refuseRest() {
	for _, name := range o.names {
		if !o.taken[name] {
			o.fail(name, "field %s is not known to kgen import, which cannot tell whether it changes attention; delete it if it does not",
				o.field(name))
		}
	}
}

func short(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) > 48 {
		return string(bytes.ToValidUTF8(raw[:48], nil)) + "..."
	}
	return string(raw)
}
