package spec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Document is a kind of file that is one YAML document and uses no more of YAML than plain
// values, lists and fields.
type Document struct {
	Kind     string // with its article: a spec
	Least    string // what it has at least, for messages
	MaxBytes int
	MaxDepth int // of sections and lists
}

var document = Document{Kind: "a spec", Least: "name, model and rope", MaxBytes: 1 << 20, MaxDepth: 8} // it needs 4

// Parse returns the document's root. file is its name for messages alone. The error is
// [Errors].
func (d Document) Parse(file string, data []byte) (*yaml.Node, error) {
	fail := func(line, col int, msg string) error {
		return Errors{{file, line, col, "file", msg}}
	}
	if len(data) > d.MaxBytes {
		return nil, fail(1, 1, fmt.Sprintf("it has %d bytes; %s has at most %d", len(data), d.Kind, d.MaxBytes))
	}
	if line, col, msg := d.notText(data); msg != "" {
		return nil, fail(line, col, msg)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	root, err := decode(decoder)
	if errors.Is(err, io.EOF) {
		return nil, fail(1, 1, fmt.Sprintf("it is empty; %s has at least %s", d.Kind, d.Least))
	}
	if err != nil {
		line, msg := d.syntaxError(err)
		return nil, fail(line, 1, msg)
	}
	switch second, err := decode(decoder); {
	case errors.Is(err, io.EOF):
	case err != nil:
		line, msg := d.syntaxError(err)
		return nil, fail(line, 1, msg)
	default:
		return nil, fail(second.Line, second.Column, fmt.Sprintf("a second YAML document starts here; %s is one document", d.Kind))
	}
	root = root.Content[0]
	var errs Errors
	d.plainYAML(file, root, 0, &errs)
	if errs != nil {
		return nil, errs
	}
	return root, nil
}

// decode reads the next document. yaml.v3 panics on some inputs that it
// cannot read; that is an error of the file here.
func decode(d *yaml.Decoder) (node *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: cannot be read: %v", p)
		}
	}()
	node = new(yaml.Node)
	err = d.Decode(node)
	return node, err
}

var lineOfError = regexp.MustCompile(`^line (\d+): `)

func (d Document) syntaxError(err error) (line int, msg string) {
	msg = strings.TrimPrefix(err.Error(), "yaml: ")
	line = 1
	if m := lineOfError.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = msg[len(m[0]):]
		if strings.HasPrefix(msg, "did not find expected") {
			line++ // yaml.v3 counts the lines of these from 0
		}
	}
	if strings.HasPrefix(msg, "exceeded max depth") {
		return line, fmt.Sprintf("nested more than %d deep", d.MaxDepth)
	}
	return line, "not valid YAML: " + msg
}

// notText says where data stops being text, or where a line is indented with
// a tab, which YAML does not allow.
func (d Document) notText(data []byte) (line, col int, msg string) {
	for i, text := range bytes.Split(data, []byte("\n")) {
		indent := true
		for at := 0; at < len(text); {
			r, size := utf8.DecodeRune(text[at:])
			switch {
			case r == utf8.RuneError && size <= 1:
				return i + 1, at + 1, fmt.Sprintf("byte %#02x is not UTF-8 text; %s is a YAML text file", text[at], d.Kind)
			case r == '\t' && indent:
				return i + 1, at + 1, "a tab indents this line; YAML wants spaces"
			case r < ' ' && r != '\t' && r != '\r' || r == 0x7f:
				return i + 1, at + 1, fmt.Sprintf("control character %#02x; %s is a YAML text file", r, d.Kind)
			}
			indent = indent && r == ' '
			at += size
		}
	}
	return 0, 0, ""
}

// plainYAML refuses what no such file has a use for: anchors, aliases, tags, and
// nesting without end.
func (d Document) plainYAML(file string, n *yaml.Node, depth int, errs *Errors) {
	fail := func(msg string) {
		*errs = append(*errs, Error{file, n.Line, n.Column, "file", msg})
	}
	switch {
	case depth > d.MaxDepth:
		fail(fmt.Sprintf("nested more than %d deep", d.MaxDepth))
		return
	case n.Kind == yaml.AliasNode:
		fail("YAML aliases are not allowed; write the value out")
		return
	case n.Anchor != "":
		fail("YAML anchors are not allowed; write the value out where it is used")
	case n.Style&yaml.TaggedStyle != 0:
		fail("YAML tags are not allowed; write the plain value")
	}
	for _, c := range n.Content {
		d.plainYAML(file, c, depth+1, errs)
	}
}
