package emit

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite templates/abi.cuh and the golden folders")

func TestABIHeader(t *testing.T) {
	const path = "../../templates/abi.cuh"
	want := ABIHeader()
	if *update {
		if err := os.WriteFile(path, want, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what runtime/abi says; run go test ./gen/emit -run ABIHeader -update", path)
	}
}
