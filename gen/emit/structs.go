package emit

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"

	"github.com/kgen-project/kgen/runtime/abi"
)

// dialect is what differs between the structs of a CUDA source and those of
// the public C header.
type dialect struct {
	pointer   string // type of a DevicePtr
	prefix    string // of struct names
	constants string // prefix of constants
	macros    bool   // constants are macros: C has no others
	typedef   bool   // C has no struct names without the word struct
	assert    string // C's and C++'s words for static_assert differ
	offset    string // name of offsetof
}

var (
	cudaDialect   = dialect{pointer: "void*", assert: "static_assert", offset: "KGEN_OFFSET"}
	headerDialect = dialect{pointer: "uint64_t", prefix: "Kgen", constants: "KGEN_", macros: true, typedef: true, assert: "KGEN_STATIC_ASSERT", offset: "offsetof"}
)

// abiConstants are the constants of package abi that kernels use, by C name.
var abiConstants = []struct {
	goName, name string
	value        int
}{
	{"Visible", "VISIBLE", abi.Visible},
	{"Final", "FINAL", abi.Final},
	{"RopeLowBits", "ROPE_LOW_BITS", abi.RopeLowBits},
}

const offsetMacro = `// The offset of a field; NVRTC has no offsetof without a header.
#ifdef __CUDACC_RTC__
#define KGEN_OFFSET(type, field) __INTADDR__(&((type*)0)->field)
#else
#define KGEN_OFFSET(type, field) __builtin_offsetof(type, field)
#endif
`

// ABIHeader is the text of templates/abi.cuh: every struct and constant of
// package abi, for editors and compilers that open the templates themselves.
func ABIHeader() []byte {
	var b strings.Builder
	b.WriteString("// What crosses the border between Go and a kernel. Made from runtime/abi by\n" +
		"// `go test ./gen/emit -run ABIHeader -update`; do not edit.\n" +
		"#pragma once\n#include \"ptx/sm80.cuh\"\n\n" + offsetMacro + "\nnamespace kgen {\n\n")
	b.WriteString(writeABI(cudaDialect, func(string) bool { return true }))
	b.WriteString("\n}  // namespace kgen\n")
	return []byte(b.String())
}

// writeABI writes the constants and structs that used selects.
func writeABI(d dialect, used func(name string) bool) string {
	docs := readDocs(d)
	var b strings.Builder
	for _, c := range abiConstants {
		if !used(c.name) {
			continue
		}
		writeComment(&b, "", docs.text[c.goName])
		if d.macros {
			fmt.Fprintf(&b, "#define %s%s (%s)\n", d.constants, c.name, constant(c.value))
		} else {
			fmt.Fprintf(&b, "constexpr int %s = %s;\n", c.name, constant(c.value))
		}
	}
	for _, s := range abi.Structs() {
		if used(s.Name) {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			writeStruct(&b, d, s, docs)
		}
	}
	return b.String()
}

// constant writes powers of two from 2^10 on as shifts.
func constant(v int) string {
	for shift := 10; shift < 31; shift++ {
		if v == 1<<shift {
			return fmt.Sprintf("1 << %d", shift)
		}
	}
	return fmt.Sprint(v)
}

func writeStruct(b *strings.Builder, d dialect, s abi.Struct, docs docs) {
	name := d.prefix + s.Name
	writeComment(b, "", docs.text[s.Name])
	if d.typedef {
		b.WriteString("typedef ")
	}
	fmt.Fprintf(b, "struct %s {\n", name)
	declarations := make([]string, len(s.Fields))
	width := 0
	for i, f := range s.Fields {
		ctype := f.CType
		if ctype == "void*" {
			ctype = d.pointer
		}
		array := ""
		if f.Count > 0 {
			array = fmt.Sprintf("[%d]", f.Count)
		}
		declarations[i] = fmt.Sprintf("%s %s%s;", ctype, f.CName, array)
		width = max(width, len(declarations[i]))
	}
	for i, f := range s.Fields {
		key := s.Name + "." + f.GoName
		if docs.gap[key] {
			b.WriteByte('\n')
		}
		writeComment(b, "  ", docs.above[key])
		if text := docs.text[key]; text != "" {
			fmt.Fprintf(b, "  %-*s  // %s\n", width, declarations[i], text)
		} else {
			fmt.Fprintf(b, "  %s\n", declarations[i])
		}
	}
	b.WriteString("}")
	if d.typedef {
		b.WriteString(" " + name)
	}
	b.WriteString(";\n")
	fmt.Fprintf(b, "%s(sizeof(%s) == %d, \"%s: size\");\n", d.assert, name, s.Size, name)
	for _, f := range s.Fields {
		fmt.Fprintf(b, "%s(%s(%s, %s) == %d, \"%s.%s: offset\");\n",
			d.assert, d.offset, name, f.CName, f.Offset, name, f.CName)
	}
}

func writeComment(b *strings.Builder, indent, text string) {
	if text == "" {
		return
	}
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(indent+"// "+line, " \n") + "\n")
	}
}

// docs are the comments of package abi, by Go name: Struct, constant or
// Struct.Field.
type docs struct {
	text  map[string]string
	above map[string]string // of fields whose comment is not, or not only, behind them
	gap   map[string]bool   // a blank line stands before the field
}

var word = regexp.MustCompile(`\b(?:[A-Z]\w*\.)?[A-Z]\w*\b`)

// readDocs reads the comments of package abi and puts C's names in the place
// of Go's: of structs, of fields after a struct's name, of fields whose name is
// no plain word, and of the described struct's own fields.
func readDocs(d dialect) docs {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "abi.go", abi.Source, parser.ParseComments)
	if err != nil {
		panic(err) // the text that this program was compiled from
	}
	names := map[string]string{}
	for _, c := range abiConstants {
		names[c.goName] = d.constants + c.name
	}
	own := map[string]map[string]string{}
	for _, s := range abi.Structs() {
		names[s.Name] = d.prefix + s.Name
		own[s.Name] = map[string]string{}
		for _, f := range s.Fields {
			names[s.Name+"."+f.GoName] = d.prefix + s.Name + "." + f.CName
			if strings.Contains(f.CName, "_") {
				names[f.GoName] = f.CName
			}
			own[s.Name][f.GoName] = f.CName
		}
	}
	clean := func(g *ast.CommentGroup, more map[string]string) string {
		return word.ReplaceAllStringFunc(strings.TrimSpace(g.Text()), func(w string) string {
			if c, ok := more[w]; ok {
				return c
			}
			if c, ok := names[w]; ok {
				return c
			}
			return w
		})
	}
	out := docs{text: map[string]string{}, above: map[string]string{}, gap: map[string]bool{}}
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				out.text[spec.Names[0].Name] = clean(gen.Doc, nil)
			case *ast.TypeSpec:
				structure, ok := spec.Type.(*ast.StructType)
				if !ok {
					continue
				}
				name := spec.Name.Name
				out.text[name] = clean(gen.Doc, nil)
				last := 0
				for _, f := range structure.Fields.List {
					key := name + "." + f.Names[0].Name
					line := files.Position(f.Pos()).Line
					out.text[key], out.above[key] = clean(f.Comment, own[name]), clean(f.Doc, own[name])
					out.gap[key] = last > 0 && line > last+1
					last = files.Position(f.End()).Line
				}
			}
		}
	}
	return out
}
