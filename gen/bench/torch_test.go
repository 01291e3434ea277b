package bench

import (
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
)

// A stand-in for the script, which needs torch and a GPU.
const stub = `
import json, sys
print(json.dumps({"torch": "9.9", "device": "stub " + " ".join(sys.argv[1:])}), flush=True)
for line in sys.stdin:
    case = line.strip()
    print(json.dumps([{"case": case, "backend": "FA2", "median_ns": 2000, "fastest_ns": 1000, "slowest_ns": 9000, "p10_ns": 1500, "p90_ns": 2500},
                      {"case": case, "backend": "cuDNN", "error": "not " + case}]), flush=True)
`

func TestTorchAnswersBetweenRows(t *testing.T) {
	s := small(t)
	torch, err := StartTorch(t.Context(), s, TorchOptions{Script: stub, Repeats: 7})
	if err != nil {
		t.Fatal(err)
	}
	if want := "torch 9.9 on stub --serve --repeats 7 --dtype bf16 --heads 4,2,32"; torch.About() != want {
		t.Errorf("got %q, want %q", torch.About(), want)
	}
	dev := openCPU(t)
	cases := testCases(t)
	s.Kinds = []spec.Kind{spec.Prefill, spec.Extend, spec.Decode, spec.Merge}
	rows, err := Run(t.Context(), dev, s, onCPU(t, dev, s), cases, Options{Repeats: 1, Against: []Baseline{torch}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"prefill:2x40", "extend:2x5/700", "decode:3x1/600", "decode:12x1/2110", "decode:6x1/1612", "decode:8x1/144"} {
		peers := rows[i].Against
		if len(peers) != 2 || peers[0].Name != "torch FA2" || peers[0].Median != 2000 || peers[0].High != 2500 || peers[1].Error != "not "+want {
			t.Errorf("%s: %+v", want, peers)
		}
		if shared := cases[i].Sharing.Documents > 0; shared != (peers[0].Note == "as "+want) {
			t.Errorf("%s: note %q", want, peers[0].Note)
		}
	}
	if err := torch.Close(); err != nil {
		t.Error(err)
	}
}

func TestTorchThatIsNotThere(t *testing.T) {
	s := small(t)
	for _, c := range []struct {
		o    TorchOptions
		want string
	}{
		{TorchOptions{Script: "import no_such_library"}, "No module named 'no_such_library'"},
		{TorchOptions{Script: "import sys; sys.exit('no GPU')"}, "it ended: exit status 1: no GPU"},
		{TorchOptions{Python: "/nowhere/python3"}, "no such file"},
	} {
		if _, err := StartTorch(t.Context(), s, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q in it", err, c.want)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := StartTorch(t.Context(), s, TorchOptions{}); err == nil || !strings.Contains(err.Error(), "no python3 in PATH") {
		t.Errorf("got %v", err)
	}
}

// Its time would be of other work.
func TestTorchHasNoOtherMasks(t *testing.T) {
	for name, change := range map[string]func(*spec.Masks){
		"not causal": func(m *spec.Masks) { m.Causal = false }, "window": func(m *spec.Masks) { m.Window = 8 },
		"sink logits": func(m *spec.Masks) { m.SinkLogits = true }, "soft cap": func(m *spec.Masks) { m.SoftCap = 50 },
	} {
		s := small(t)
		change(&s.Masks)
		if _, err := StartTorch(t.Context(), s, TorchOptions{Script: stub}); err == nil || !strings.Contains(err.Error(), "none of small's masks") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
