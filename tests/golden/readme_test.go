package golden

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/kgen-project/kgen/generated/llama3"
)

var update = flag.Bool("update", false, "write what the kernels use into README.md")

// usageLine is a kernel on a target in a table of kgen build or kgen inspect: its
// registers, shared memory, spills and stack, each with the spaces behind it.
var usageLine = regexp.MustCompile(`(?m)^(\S+\.cu) +(sm_\w+) +(\d+ +)(\d+ +)(\d+ +)(\d+ +)`)

// README.md shows what a build of Llama-3's kernels prints: that is what the build gave.
func TestREADME(t *testing.T) {
	const path = "../../README.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := llama3.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if first := fmt.Sprintf("\n$ bin/kgen build specs/llama3.yaml\nllama3 in generated/llama3, %s %s\n", m.Compiler.ID, m.Compiler.Version); !bytes.Contains(text, []byte(first)) {
		t.Errorf("README.md does not show how a build begins: %q", first)
	}
	used, shown := map[string][4]int{}, map[string]int{}
	for _, k := range m.Kernels {
		for _, target := range k.Targets {
			used[k.Source+" "+target.Target] = [4]int{target.Registers, k.SharedBytes + target.StaticBytes,
				target.SpillStores + target.SpillLoads, target.StackBytes}
		}
	}
	var right []byte
	end := 0
	for _, at := range usageLine.FindAllSubmatchIndex(text, -1) {
		name := string(text[at[2]:at[3]]) + " " + string(text[at[4]:at[5]])
		want, ok := used[name]
		if !ok {
			t.Errorf("README.md shows %s, which the build does not have", name)
			continue
		}
		shown[name]++
		for i, n := range want {
			from, to := at[6+2*i], at[7+2*i]
			right = append(right, text[end:from]...)
			right = fmt.Appendf(right, "%-*s", to-from, strconv.Itoa(n))
			end = to
		}
	}
	right = append(right, text[end:]...)
	for name := range used {
		if shown[name] == 0 {
			t.Errorf("README.md does not show %s", name)
		}
	}
	if *update {
		if err := os.WriteFile(path, right, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(text, right) {
		t.Error("README.md shows other registers, shared memory, spills or stack than generated/llama3/manifest.json: go test ./tests/golden -update")
	}
}
