package emit

import (
	"strings"
	"testing"
	"testing/fstest"
)

// files makes templates from name, text pairs.
func files(pairs ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return m
}

func flatten(fs fstest.MapFS) (string, error) {
	f := flattener{fs: fs, done: map[string]bool{}, flags: map[string]bool{"KGEN_ON": true, "KGEN_OFF": false}}
	err := f.file("a.cuh", "")
	return f.take(), err
}

func TestFlatten(t *testing.T) {
	tests := []struct {
		name string
		fs   fstest.MapFS
		want string // without the line of each file's name
	}{
		{"plain", files("a.cuh", "#pragma once\nint a;  \r\n"), "int a;\n"},
		{"include once, first, relative",
			files("a.cuh", "#include \"d/b.cuh\"\n#include \"c.cuh\"  // why\na\n", "d/b.cuh", "#include \"../c.cuh\"\nb\n", "c.cuh", "c\n"),
			"c\nb\na\n"},
		{"circle", files("a.cuh", "#include \"b.cuh\"\na\n", "b.cuh", "#include \"a.cuh\"\nb\n"), "b\na\n"},
		{"if", files("a.cuh", "#if KGEN_ON\nyes\n#endif\n#if KGEN_OFF\nno\n#endif\n"), "yes\n"},
		{"if not", files("a.cuh", "#if !KGEN_ON\nno\n#else\nyes\n#endif\n"), "yes\n"},
		{"else", files("a.cuh", "#if KGEN_ON\nyes\n#else\nno\n#endif\n"), "yes\n"},
		{"nested", files("a.cuh", "#if KGEN_OFF\n#if KGEN_ON\nno\n#else\nno\n#endif\nno\n#else\n# if KGEN_ON\nyes\n# endif  // KGEN_ON\n#endif\n"), "yes\n"},
		{"untaken include", files("a.cuh", "#if KGEN_OFF\n#include \"absent.cuh\"\n#endif\na\n"), "a\n"},
		{"the compiler's own", files("a.cuh", "#ifndef KGEN_EMULATOR\n#if KGEN_ON\na\n#endif\n#if defined(X)\nb\n#elif Y\nc\n#else\nd\n#endif\n#endif\n#pragma unroll\n"),
			"#ifndef KGEN_EMULATOR\na\n#if defined(X)\nb\n#elif Y\nc\n#else\nd\n#endif\n#endif\n#pragma unroll\n"},
		{"the compiler's own, dropped", files("a.cuh", "#if KGEN_OFF\n#ifdef X\nno\n#else\nno\n#endif\n#define Y\n#endif\na\n"), "a\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := flatten(test.fs)
			if err != nil {
				t.Fatal(err)
			}
			var lines strings.Builder
			for line := range strings.Lines(got) {
				if line != "\n" && !strings.HasPrefix(line, "// ====") {
					lines.WriteString(line)
				}
			}
			if lines.String() != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", lines.String(), test.want)
			}
		})
	}
}

func TestFlattenErrors(t *testing.T) {
	tests := []struct {
		name, text, want string
	}{
		{"unknown flag", "\n#if KGEN_ONN\n#endif\n", "emit: a.cuh:2: unknown flag KGEN_ONN; there is KGEN_OFF, KGEN_ON"},
		{"unknown flag in dropped text", "#if KGEN_OFF\n#if !KGEN_ONN\n#endif\n#endif\n", "emit: a.cuh:2: unknown flag KGEN_ONN; there is KGEN_OFF, KGEN_ON"},
		{"two flags", "#if KGEN_ON && KGEN_OFF\n#endif\n", "emit: a.cuh:1: #if KGEN_ON && KGEN_OFF: a flag is tested by #if KGEN_ON or #if !KGEN_ON, alone"},
		{"ifdef", "#ifdef KGEN_ON\n#endif\n", "emit: a.cuh:1: #ifdef KGEN_ON: a flag is tested by #if KGEN_ON or #if !KGEN_ON, alone"},
		{"elif", "#if KGEN_ON\n#elif X\n#endif\n", "emit: a.cuh:2: #elif after a KGEN_ flag; nest an #if in the #else"},
		{"no endif", "a\n#if KGEN_ON\n", "emit: a.cuh:2: #if without #endif"},
		{"no if", "#endif\n", "emit: a.cuh:1: #endif without #if"},
		{"two elses", "#if KGEN_ON\n#else\n#else\n#endif\n", "emit: a.cuh:3: second #else of the #if in line 1"},
		{"unknown include", "\n#include \"x/b.cuh\"\n", "emit: a.cuh:2: includes x/b.cuh, which is not among the templates"},
		{"outside", "#include \"../b.cuh\"\n", "emit: a.cuh:1: includes ../b.cuh, which is not among the templates"},
		{"system include", "#include <cuda_bf16.h>\n", "emit: a.cuh:1: #include <cuda_bf16.h>: templates include each other in quotes and nothing else"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := flatten(files("a.cuh", test.text))
			if err == nil || err.Error() != test.want {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	if _, err := flatten(files()); err == nil || !strings.Contains(err.Error(), "emit: template a.cuh: ") {
		t.Errorf("no template: error %v", err)
	}
}
