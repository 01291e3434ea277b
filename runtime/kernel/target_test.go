package kernel

import (
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/cuda"
)

func TestChooseTarget(t *testing.T) {
	tests := []struct {
		family       string
		targets      string
		major, minor int
		want         string
		err          string
	}{
		{"sm80", "sm_80", 8, 0, "sm_80", ""},
		{"sm80", "sm_80", 8, 6, "sm_80", ""},
		{"sm80", "sm_80 sm_86", 8, 9, "sm_86", ""},
		{"sm80", "sm_86 sm_80", 8, 0, "sm_80", ""},
		{"sm80", "sm_86", 8, 0, "sm_80", ""}, // made from source
		{"sm80", "sm_80", 9, 0, "sm_90", ""}, // made from source
		{"sm80", "sm_80 sm_90a", 9, 0, "sm_90a", ""},
		{"sm80", "sm_90 sm_90a", 9, 0, "sm_90a", ""},
		{"sm80", "sm_90a sm_90", 9, 0, "sm_90a", ""},
		{"sm80", "sm_100a", 10, 0, "sm_100a", ""},
		{"sm80", "sm_100a", 10, 3, "sm_103", ""}, // made from source
		{"sm80", "sm_100f", 10, 3, "sm_100f", ""},
		{"sm80", "sm_100f sm_100", 10, 0, "sm_100f", ""},
		{"sm80", "", 12, 0, "sm_120", ""},
		{"sm90", "", 9, 0, "sm_90a", ""},
		{"sm90", "sm_90a", 10, 0, "", "family sm90 does not run on compute capability 10.0"},
		{"sm90", "sm_90a", 8, 0, "", "family sm90 does not run on compute capability 8.0"},
		{"sm80", "sm_80", 7, 5, "", "family sm80 does not run on compute capability 7.5"},
		{"sm80", "sm_80 ampere", 8, 0, "", `"ampere" is not a target such as sm_80 or sm_90a`},
		{"sm80", "sm_80b", 8, 0, "", `"sm_80b" is not a target`},
		{"sm80", "sm_99999999999999999999", 8, 0, "", "target sm_99999999999999999999: "},
	}
	for _, test := range tests {
		a := Artifact{Family: test.family, Targets: strings.Fields(test.targets)}
		got, err := chooseTarget(a, cuda.Info{Major: test.major, Minor: test.minor})
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s of %q on %d.%d: got %q, %v", test.family, test.targets, test.major, test.minor, got, err)
		}
	}
}

func TestChoosePrefersThePlanOfTheDevice(t *testing.T) {
	small := Artifact{Kind: "prefill", Family: "sm80", Targets: []string{"sm_80"}, Stages: 1, Warps: 4}
	large := Artifact{Kind: "prefill", Family: "sm80", Targets: []string{"sm_90a"}, Stages: 2, Warps: 4}
	for _, order := range [][]Artifact{{small, large}, {large, small}} {
		for _, test := range []struct {
			major, minor int
			stages       int
			target       string
		}{
			{8, 0, 1, "sm_80"},
			{9, 0, 2, "sm_90a"},
			{12, 0, order[0].Stages, "sm_120"}, // neither was planned for it
		} {
			chosen, err := choose(Bundle{Kernels: order}, cuda.Info{Major: test.major, Minor: test.minor}, "")
			if err != nil {
				t.Fatal(err)
			}
			if len(chosen) != 1 || chosen[0].artifact.Stages != test.stages || chosen[0].target != test.target {
				t.Errorf("capability %d.%d: got %d kernels, the first of %d stages for %s; want %d stages for %s",
					test.major, test.minor, len(chosen), chosen[0].artifact.Stages, chosen[0].target, test.stages, test.target)
			}
		}
	}
}
