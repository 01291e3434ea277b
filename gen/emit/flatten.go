package emit

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// flattener joins templates into one text: each included file once, before
// the file that first includes it, and of the blocks under a flag (#if
// KGEN_ROPE ... #else ... #endif) only what the flag's value keeps.
type flattener struct {
	fs    fs.FS
	flags map[string]bool
	done  map[string]bool // files that are written, or being written
	out   strings.Builder
}

var (
	directive  = regexp.MustCompile(`^\s*#\s*(\w+)\s*(.*?)\s*$`)
	quoted     = regexp.MustCompile(`^"([^"]+)"\s*(?://.*)?$`)
	flagTest   = regexp.MustCompile(`^(!?)(KGEN_\w+)\s*(?://.*)?$`)
	flagName   = regexp.MustCompile(`\bKGEN_\w+`)
	blankLines = regexp.MustCompile(`\n{3,}`)
)

// branch is one open #if, #ifdef or #ifndef.
type branch struct {
	line  int
	flag  bool // a flag decides; its directives are dropped
	keep  bool // the text of the current side is kept, as far as this branch goes
	elses int
}

// file writes one template, what it includes first. from names the place of
// the include, or is empty.
func (f *flattener) file(name, from string) error {
	if f.done[name] {
		return nil
	}
	f.done[name] = true
	text, err := fs.ReadFile(f.fs, name)
	if err != nil {
		if from == "" {
			return fmt.Errorf("emit: template %s: %w", name, err)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
			return fmt.Errorf("emit: %s: includes %s, which is not among the templates", from, name)
		}
		return fmt.Errorf("emit: %s: includes %s: %w", from, name, err)
	}
	var body strings.Builder
	var open []branch
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, " \t\r\n")
		at := fmt.Sprintf("%s:%d", name, number)
		kept := !slices.ContainsFunc(open, func(b branch) bool { return !b.keep })
		m := directive.FindStringSubmatch(line)
		if m == nil {
			if kept {
				body.WriteString(line + "\n")
			}
			continue
		}
		word, rest := m[1], m[2]
		passes := kept // the directive itself goes to the output
		switch word {
		case "if", "ifdef", "ifndef":
			b, err := f.open(word, rest)
			if err != nil {
				return fmt.Errorf("emit: %s: %w", at, err)
			}
			b.line = number
			open = append(open, b)
			passes = kept && !b.flag
		case "else", "elif", "endif":
			if len(open) == 0 {
				return fmt.Errorf("emit: %s: #%s without #if", at, word)
			}
			b := &open[len(open)-1]
			passes = kept && !b.flag
			switch {
			case word == "endif":
				open = open[:len(open)-1]
			case b.flag && word == "elif":
				return fmt.Errorf("emit: %s: #elif after a KGEN_ flag; nest an #if in the #else", at)
			case word == "else":
				if b.elses++; b.elses > 1 {
					return fmt.Errorf("emit: %s: second #else of the #if in line %d", at, b.line)
				}
				if b.flag {
					b.keep = !b.keep
				}
			}
		case "include":
			passes = false
			if !kept {
				break
			}
			q := quoted.FindStringSubmatch(rest)
			if q == nil {
				return fmt.Errorf("emit: %s: #include %s: templates include each other in quotes and nothing else", at, rest)
			}
			if err := f.file(path.Join(path.Dir(name), q[1]), at); err != nil {
				return err
			}
		case "pragma":
			passes = kept && rest != "once"
		}
		if passes {
			body.WriteString(line + "\n")
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("emit: %s:%d: #if without #endif", name, open[len(open)-1].line)
	}
	fmt.Fprintf(&f.out, "\n// ======== %s ========\n%s", name, body.String())
	return nil
}

// open reads the condition of an #if, #ifdef or #ifndef. A condition without
// a flag is the compiler's.
func (f *flattener) open(word, condition string) (branch, error) {
	m := flagTest.FindStringSubmatch(condition)
	if word == "if" && m != nil {
		value, ok := f.flags[m[2]]
		if !ok {
			return branch{}, fmt.Errorf("unknown flag %s; there is %s", m[2], strings.Join(sortedKeys(f.flags), ", "))
		}
		return branch{flag: true, keep: value != (m[1] == "!")}, nil
	}
	for _, name := range flagName.FindAllString(condition, -1) {
		if _, ok := f.flags[name]; ok || word == "if" {
			return branch{}, fmt.Errorf("#%s %s: a flag is tested by #if %s or #if !%s, alone", word, condition, name, name)
		}
	}
	return branch{keep: true}, nil
}

// take returns what was written since the last take.
func (f *flattener) take() string {
	text := f.out.String()
	f.out.Reset()
	return text
}

// tidy leaves no run of blank lines and none at the ends.
func tidy(s string) string {
	return strings.Trim(blankLines.ReplaceAllString(s, "\n\n"), "\n") + "\n"
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
