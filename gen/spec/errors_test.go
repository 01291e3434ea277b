package spec

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestErrorTexts holds the errors of each testdata/errors/x.yaml to x.txt.
func TestErrorTexts(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.yaml")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(filepath.Base(file), data)
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("got %T, %v", err, err)
			}
			golden, got := strings.TrimSuffix(file, ".yaml")+".txt", err.Error()+"\n"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// nasty is input that only a program or an attacker would write.
func nasty() map[string][]byte {
	return map[string][]byte{
		"nothing":         nil,
		"binary":          {0x7f, 'E', 'L', 'F', 0, 1, 2},
		"not UTF-8":       []byte("name: \xff\xfe"),
		"UTF-16":          []byte("\xff\xfen\x00a\x00"),
		"ten megabytes":   bytes.Repeat([]byte("name: a\n"), 10<<20/8),
		"open brackets":   bytes.Repeat([]byte("["), 1<<20),
		"open braces":     bytes.Repeat([]byte("{a: "), 1<<18),
		"nested lists":    bytes.Repeat([]byte("- "), 1<<19),
		"closed brackets": append(bytes.Repeat([]byte("["), 5000), bytes.Repeat([]byte("]"), 5000)...),
		"keys":            bytes.Repeat([]byte("? "), 1<<19),
		"alias bomb":      []byte("a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n"),
		"alias of itself": []byte("a: &a [*a]\n"),
		"unknown fields":  bytes.Repeat([]byte("aaaaaa: 1\n"), 1<<20/10),
	}
}

func TestNastyInput(t *testing.T) {
	for name, data := range nasty() {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("x.yaml", data)
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("got %T, %v", err, err)
			}
			text := err.Error()
			if len(text) > 20_000 || !strings.HasPrefix(text, "x.yaml:") || strings.Count(text, "\n") > errorLines {
				t.Errorf("%d bytes, %.200s", len(text), text)
			}
			t.Logf("%.200s", text)
		})
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "llama3", "llama2_7b", "arm", "linux_7b", "con7", "com", "initial", "a23456789_123456789_123456789_123456789_1"} {
		if msg := CheckName(name); msg != "" {
			t.Errorf("%q: %s", name, msg)
		}
	}
	for _, name := range []string{"", "A", "3a", "_a", "a-b", "a b", "a/b", "..", "../a", `a"`, "a'", "a\n", "é", "a.yaml",
		"a23456789_123456789_123456789_123456789_12", "func", "int", "nil", "len", "any", "class", "main", "internal", "init", "con", "nul", "com1", "lpt9", "x_test",
		"x_linux", "x_arm", "llama_386", "x_linux_arm64"} {
		if CheckName(name) == "" {
			t.Errorf("%q is taken as a name", name)
		}
	}
}

func TestErrorAt(t *testing.T) {
	s, err := Parse("x.yaml", []byte(`name: a
model: {query_heads: 8, kv_heads: 8, head_dim: 64}
rope: {type: default, theta: 10000}
tiles:
  prefill: {rows: 512, keys: 512}
`))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"tiles.prefill.keys":   "x.yaml:5:30: tiles.prefill.keys: too much",
		"tiles.prefill.stages": "x.yaml:5:12: tiles.prefill.stages: too much",
		"cache.page_size":      "x.yaml:1:1: cache.page_size: too much",
	} {
		if got := s.ErrorAt(field, "too much").Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got, want := (Spec{Name: "a"}).ErrorAt("scale", "too much").Error(), "spec a: scale: too much"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
