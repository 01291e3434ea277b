package spec

import (
	"os"
	"path/filepath"
	"testing"
)

// shipped reads one of the specs of this repository.
func shipped(t testing.TB, name string) (file string, data []byte) {
	t.Helper()
	file = filepath.Join("..", "..", "specs", name+".yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, data
}

func TestShippedSpecs(t *testing.T) {
	for _, name := range []string{"llama3", "llama2_7b", "smollm2_135m"} {
		s, err := Parse(shipped(t, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if s.Name != name || len(s.Kinds) != len(AllKinds) || s.Rope.RotaryDim != s.Model.HeadDim {
			t.Errorf("%+v", s)
		}
	}
}

func TestMarshalKeepsTheDigest(t *testing.T) {
	for _, name := range []string{"llama3", "llama2_7b", "smollm2_135m"} {
		s, err := Parse(shipped(t, name))
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again.yaml", Marshal(s))
		if err != nil {
			t.Fatalf("%v\n%s", err, Marshal(s))
		}
		if Digest(again) != Digest(s) {
			t.Errorf("%s:\n%s\nis not\n%s", name, canonical(again), canonical(s))
		}
		if baked := WithEncoding(s, Baked); Digest(baked) == Digest(s) || s.Cache.Encoding != Segment {
			t.Error("WithEncoding does not make a sibling")
		}
	}
}
