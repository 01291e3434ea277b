package vendoring_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/vendoring"
	"github.com/kgen-project/kgen/runtime/rope"
)

// TestRopeTable holds the tables that the folders make to kgen's own. The C
// library may round a sine or cosine otherwise than Go's, by a bit of float64.
func TestRopeTable(t *testing.T) {
	want := rope.Table(parse(t, "tiny").Rope)
	t.Run("c", func(t *testing.T) {
		dir := buildC(t, "tiny")
		write(t, dir, "table.c", `#include "tiny.h"
#include <stdio.h>
int main(void) {
  static float table[KGEN_TINY_ROPE_FLOATS];
  kgen_tiny_rope_table(table);
  return fwrite(table, sizeof table, 1, stdout) != 1;
}
`)
		command(t, dir, nil, "cc", "-std=c11", "-o", "table", "table.c", "tiny.c", "-ldl", "-lm")
		compareTables(t, command(t, dir, nil, filepath.Join(dir, "table")), want)
	})
	t.Run("go", func(t *testing.T) {
		dir := folder(t, "tiny", vendoring.Go)
		if err := os.Mkdir(filepath.Join(dir, "table"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "table/main.go", `package main
import ("encoding/binary"; "os"; "tiny")
func main() {
	if err := binary.Write(os.Stdout, binary.LittleEndian, tiny.RopeTable()); err != nil { panic(err) }
}
`)
		compareTables(t, command(t, dir, stranger, "go", "run", "./table"), want)
	})
}

func compareTables(t *testing.T, got string, want []float32) {
	t.Helper()
	if len(got) != 4*len(want) {
		t.Fatalf("%d bytes for %d floats", len(got), len(want))
	}
	others := 0
	for i, w := range want {
		g := math.Float32frombits(binary.LittleEndian.Uint32([]byte(got[4*i:])))
		if g != w {
			others++
		}
		if !(math.Abs(float64(g)-float64(w)) <= 0x1p-24) { // half a unit in the last place of 1
			t.Fatalf("element %d is %g, want %g", i, g, w)
		}
	}
	if others > len(want)/1000 {
		t.Errorf("%d of %d are rounded otherwise", others, len(want))
	}
}

// TestModule holds the versions that a Go folder asks for to those that kgen is
// tested with.
func TestModule(t *testing.T) {
	files, err := vendoring.Files(input(t, "one", vendoring.Go))
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(files["go.sum"])) {
		if !strings.Contains(string(sums), line) {
			t.Errorf("kgen's go.sum lacks %s", line)
		}
	}
	_, require, _ := strings.Cut(string(files["go.mod"]), "require ")
	if require == "" || !strings.Contains(string(module), strings.TrimSpace(require)) {
		t.Errorf("kgen's go.mod does not have %q", require)
	}
}

func write(t testing.TB, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
