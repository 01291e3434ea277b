package abi

import (
	_ "embed"
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

// Source is the text of abi.go: the generator carries its comments over to C.
//
//go:embed abi.go
var Source string

// Version counts the layouts of this package's structs and the meanings of
// their fields. Generated code holds its sources to it.
const Version = 11

// Struct is the memory layout of one launch-parameter or work-list struct.
type Struct struct {
	Name   string
	Size   int // bytes, a multiple of the largest field alignment
	Fields []Field
}

// Field is one field of a [Struct].
type Field struct {
	GoName string
	CName  string // snake_case of GoName
	CType  string // of one element: void*, float or int32_t
	Offset int    // bytes from the start of the struct
	Size   int    // bytes, all elements
	Count  int    // elements of an array; 0 for a field that is not one
}

// Structs lists every struct of the package, in the order of abi.go.
func Structs() []Struct {
	types := []reflect.Type{
		reflect.TypeFor[AttendParams](),
		reflect.TypeFor[Item](),
		reflect.TypeFor[Member](),
		reflect.TypeFor[Run](),
		reflect.TypeFor[AppendParams](),
		reflect.TypeFor[MergeParams](),
		reflect.TypeFor[MaterialiseParams](),
		reflect.TypeFor[Copy](),
		reflect.TypeFor[ScheduleParams](),
		reflect.TypeFor[Sequence](),
		reflect.TypeFor[Segment](),
	}
	structs := make([]Struct, len(types))
	for i, t := range types {
		s, err := Layout(t)
		if err != nil {
			panic(err) // this package's own structs; its test holds that they pass
		}
		structs[i] = s
	}
	return structs
}

// Layout describes a struct whose fields are exported and of type
// [DevicePtr], float32, int32, or an array of one of these. It refuses any
// other type, and padding that is not a field of its own: the bytes in a gap
// would be undefined on one side of the border.
func Layout(t reflect.Type) (Struct, error) {
	if t.Kind() != reflect.Struct {
		return Struct{}, fmt.Errorf("abi: layout of %v: not a struct", t)
	}
	s := Struct{Name: t.Name(), Size: int(t.Size())}
	end := 0
	for i := range t.NumField() {
		f := t.Field(i)
		fail := func(format string, args ...any) (Struct, error) {
			return Struct{}, fmt.Errorf("abi: layout of %v: field %s: %s", t, f.Name, fmt.Sprintf(format, args...))
		}
		if !f.IsExported() || f.Anonymous {
			return fail("must be exported and not embedded")
		}
		element, count := f.Type, 0
		if element.Kind() == reflect.Array {
			element, count = element.Elem(), element.Len()
			if count == 0 {
				return fail("an array of no elements has no form in C")
			}
		}
		ctype, ok := cType(element)
		if !ok {
			return fail("type %v has no fixed form in C; use DevicePtr, float32, int32 or an array of one", f.Type)
		}
		offset := int(f.Offset)
		// DevicePtr is 8-byte aligned in C on every target; Go aligns it to 4 on 32-bit hosts.
		if size := int(element.Size()); offset%size != 0 {
			return fail("offset %d is not a multiple of its size %d; move it or add a Reserved field before it", offset, size)
		}
		if offset != end {
			return fail("%d bytes of padding before it; add a Reserved field there", offset-end)
		}
		end = offset + int(f.Type.Size())
		s.Fields = append(s.Fields, Field{
			GoName: f.Name, CName: snake(f.Name), CType: ctype,
			Offset: offset, Size: int(f.Type.Size()), Count: count,
		})
	}
	if end == 0 {
		return Struct{}, fmt.Errorf("abi: layout of %v: no fields", t)
	}
	if s.Size != end {
		return Struct{}, fmt.Errorf("abi: layout of %v: %d bytes of padding at the end; add a Reserved field there", t, s.Size-end)
	}
	return s, nil
}

func cType(t reflect.Type) (string, bool) {
	switch {
	case t == reflect.TypeFor[DevicePtr]():
		return "void*", true
	case t == reflect.TypeFor[float32]():
		return "float", true
	case t == reflect.TypeFor[int32]():
		return "int32_t", true
	}
	return "", false
}

// snake turns a Go name to C's: KVHeads to kv_heads, PartialLSE to
// partial_lse, and SMs, an initialism's plural, to sms.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	// lower reports a lower-case letter that is not an initialism's plural s.
	lower := func(i int) bool {
		if i >= len(runes) || unicode.IsUpper(runes[i]) {
			return false
		}
		plural := runes[i] == 's' && i > 0 && unicode.IsUpper(runes[i-1]) &&
			(i+1 == len(runes) || unicode.IsUpper(runes[i+1]))
		return !plural
	}
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || lower(i+1)) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
