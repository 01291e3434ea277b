package abi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestManifestRoundTrip(t *testing.T) {
	m := Manifest{
		Schema: ManifestSchema, Spec: "llama3", SpecDigest: "d1", Generator: "0.1.0",
		Compiler: Compiler{ID: "nvrtc", Version: "13.0.88"}, Flags: []string{"--std=c++17", "-D<x>"},
		Kernels: []ManifestKernel{{
			Kind: KindDecode, Entry: "llama3_decode", Family: "sm80", Plan: ManifestPlan{Rows: 16, Keys: 64, Stages: 2, Warps: 4},
			Threads: 128, SharedBytes: 65536, Source: "decode.cu", SourceSHA256: "ab",
			Targets: []ManifestTarget{{Target: "sm_80", CubinSHA256: "cd", Registers: 168, StaticBytes: 16, SpillStores: 1,
				SpillLoads: 2, StackBytes: 3, ConstBytes: 4}},
		}},
	}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"-D<x>"`) {
		t.Errorf("flags are escaped:\n%s", data)
	}
	got, err := ParseManifest(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, got); diff != "" {
		t.Error(diff)
	}
}

func TestEncodeWritesListsForAbsentOnes(t *testing.T) {
	data, err := Manifest{Kernels: []ManifestKernel{{}}}.Encode()
	if err != nil || strings.Contains(string(data), "null") {
		t.Errorf("%v\n%s", err, data)
	}
}

func TestParseManifestErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "unexpected end",
		"[]":                                  "cannot unmarshal",
		`{"schema": 2}`:                       "schema 2, this kgen reads 1",
		`{"schema": 1, "colour": "red"}`:      `unknown field "colour"`,
		`{"schema": 1, "kernels": [{"a":1}]}`: `unknown field "a"`,
		`{"schema": 1} {}`:                    "after top-level value",
	} {
		if _, err := ParseManifest([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
