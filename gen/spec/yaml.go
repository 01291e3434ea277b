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

const (
	maxBytes = 1 << 20
	maxDepth = 8 // of sections and lists; a spec needs 4
)

// document parses data as one YAML document that uses no more of YAML than a
// spec needs. Its error is Errors.
func document(file string, data []byte) (*yaml.Node, error) {
	fail := func(line, col int, msg string) error {
		return Errors{{file, line, col, "file", msg}}
	}
	if len(data) > maxBytes {
		return nil, fail(1, 1, fmt.Sprintf("it has %d bytes; a spec has at most %d", len(data), maxBytes))
	}
	if line, col, msg := notText(data); msg != "" {
		return nil, fail(line, col, msg)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	root, err := decode(decoder)
	if errors.Is(err, io.EOF) {
		return nil, fail(1, 1, "it is empty; a spec has at least name, model and rope")
	}
	if err != nil {
		line, msg := syntaxError(err)
		return nil, fail(line, 1, msg)
	}
	switch second, err := decode(decoder); {
	case errors.Is(err, io.EOF):
	case err != nil:
		line, msg := syntaxError(err)
		return nil, fail(line, 1, msg)
	default:
		return nil, fail(second.Line, second.Column, "a second YAML document starts here; a spec is one document")
	}
	root = root.Content[0]
	var errs Errors
	plainYAML(file, root, 0, &errs)
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

func syntaxError(err error) (line int, msg string) {
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
		return line, fmt.Sprintf("nested more than %d deep", maxDepth)
	}
	return line, "not valid YAML: " + msg
}

// notText says where data stops being text, or where a line is indented with
// a tab, which YAML does not allow.
func notText(data []byte) (line, col int, msg string) {
	for i, text := range bytes.Split(data, []byte("\n")) {
		indent := true
		for at := 0; at < len(text); {
			r, size := utf8.DecodeRune(text[at:])
			switch {
			case r == utf8.RuneError && size <= 1:
				return i + 1, at + 1, fmt.Sprintf("byte %#02x is not UTF-8 text; a spec is a YAML text file", text[at])
			case r == '\t' && indent:
				return i + 1, at + 1, "a tab indents this line; YAML wants spaces"
			case r < ' ' && r != '\t' && r != '\r' || r == 0x7f:
				return i + 1, at + 1, fmt.Sprintf("control character %#02x; a spec is a YAML text file", r)
			}
			indent = indent && r == ' '
			at += size
		}
	}
	return 0, 0, ""
}

// plainYAML refuses what a spec has no use for: anchors, aliases, tags, and
// nesting without end.
func plainYAML(file string, n *yaml.Node, depth int, errs *Errors) {
	fail := func(msg string) {
		*errs = append(*errs, Error{file, n.Line, n.Column, "file", msg})
	}
	switch {
	case depth > maxDepth:
		fail(fmt.Sprintf("nested more than %d deep", maxDepth))
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
		plainYAML(file, c, depth+1, errs)
	}
}
