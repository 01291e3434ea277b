package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Position is a place in a file. Lines and columns count from 1.
type Position struct {
	File      string
	Line, Col int
}

func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col) }

// Error is one thing that is wrong with a file.
type Error struct {
	File      string
	Line, Col int    // from 1; 0: in no particular place
	Field     string // path of the field, such as model.head_dim
	Msg       string
}

func (e Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s: %s", e.File, e.Field, e.Msg)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", e.File, e.Line, e.Col, e.Field, e.Msg)
}

// Errors is everything that is wrong with a file, in the file's order.
type Errors []Error

// errorLines is how many errors are printed in full.
const errorLines = 100

// Error gives one line an error.
func (es Errors) Error() string {
	var b strings.Builder
	for i, e := range es {
		if i == errorLines {
			fmt.Fprintf(&b, "\nand %d more errors", len(es)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.Error())
	}
	return b.String()
}

// Sort puts the errors in the order of the file.
func (es Errors) Sort() {
	slices.SortStableFunc(es, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col), cmp.Compare(a.Field, b.Field))
	})
}

// ErrorAt returns Errors that point at the field's place in the file, or, where
// the file leaves it out, at the nearest field around it.
func (s Spec) ErrorAt(field, msg string) error {
	for path := field; ; path = parent(path) {
		if p, ok := s.Positions[path]; ok {
			return Errors{{p.File, p.Line, p.Col, field, msg}}
		}
		if path == "" {
			return Errors{{File: "spec " + s.Name, Field: field, Msg: msg}}
		}
	}
}

// parent is the path of what is around a field.
func parent(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }
