package vendoring

import (
	"fmt"
	"slices"
	"strings"
)

// CheckName says what keeps a spec's name from being that of a folder's files and, in Go,
// of its module; or "".
func CheckName(name string, lang Lang) string {
	switch {
	case lang == C && name == "example":
		return "kgen vendor --lang c writes an example.c of its own; choose another name"
	case lang == Go && slices.Contains([]string{"abi", "driver", "load_other"}, name):
		return fmt.Sprintf("kgen vendor --lang go writes a %s.go of its own; choose another name", name)
	case lang == Go && slices.Contains(goOwn, name):
		return fmt.Sprintf("kgen vendor --lang go makes a module of that name, and %s has a meaning of its own to the Go tool; choose another name", name)
	}
	return ""
}

// goOwn is the packages of Go's standard library whose paths are one word, and what
// stands for other packages on the command line or in go.mod.
var goOwn = strings.Fields(`all cmd std tool toolchain work
	bufio bytes cmp context crypto embed encoding errors expvar flag fmt hash html image io iter log maps math mime
	net os path plugin reflect regexp runtime slices sort strconv strings structs sync syscall testing time unicode
	unique unsafe weak`)
