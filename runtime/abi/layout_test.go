package abi

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

func TestStructsListsEveryStruct(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "abi.go", Source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if _, ok := spec.Type.(*ast.StructType); ok {
				want = append(want, spec.Name.Name)
			}
		}
		return true
	})
	var got []string
	for _, s := range Structs() {
		got = append(got, s.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("Structs() = %v, abi.go has %v", got, want)
	}
}

// TestVersion fails when a layout changes: give Version the next number and
// write the new sum here. Sources that were generated before then no longer
// build against this package, rather than read the wrong fields.
func TestVersion(t *testing.T) {
	const version, sum = 11, "47feef95f843e69e6a9caab9f25282108e3a444c9980c5f3405ad5109177c152"
	var b strings.Builder
	for _, s := range Structs() {
		fmt.Fprintln(&b, s)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(b.String()))); Version != version || got != sum {
		t.Errorf("version %d has layouts of sum %s", Version, got)
	}
}

func TestLayout(t *testing.T) {
	got, err := Layout(reflect.TypeFor[Copy]())
	if err != nil {
		t.Fatal(err)
	}
	want := Struct{Name: "Copy", Size: 32, Fields: []Field{
		{"SrcPage", "src_page", "int32_t", 0, 4, 0},
		{"SrcBegin", "src_begin", "int32_t", 4, 4, 0},
		{"DstPage", "dst_page", "int32_t", 8, 4, 0},
		{"DstBegin", "dst_begin", "int32_t", 12, 4, 0},
		{"Count", "count", "int32_t", 16, 4, 0},
		{"Offset", "offset", "int32_t", 20, 4, 0},
		{"Reserved", "reserved", "int32_t", 24, 8, 2},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Layout(Copy) = %+v, want %+v", got, want)
	}
	attend := Structs()[0]
	if want := int(unsafe.Offsetof(AttendParams{}.Scale)); attend.Fields[22].CName != "scale" || attend.Fields[22].Offset != want {
		t.Errorf("AttendParams.Fields[22] = %+v, want scale at %d", attend.Fields[22], want)
	}
}

func TestLayoutRefuses(t *testing.T) {
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{"not a struct", 3, "not a struct"},
		{"empty", struct{}{}, "no fields"},
		{"padding inside", struct {
			A int32
			B DevicePtr
		}{}, "field B: 4 bytes of padding before it"},
		{"padding at the end", struct {
			A DevicePtr
			B int32
		}{}, "4 bytes of padding at the end"},
		{"int", struct{ A int }{}, "field A: type int has no fixed form in C"},
		{"plain uint64", struct{ A uint64 }{}, "type uint64 has no fixed form"},
		{"slice", struct{ A []int32 }{}, "type []int32 has no fixed form"},
		{"nested array", struct{ A [2][2]int32 }{}, "has no fixed form"},
		{"empty array", struct {
			A int32
			B [0]int32
		}{}, "an array of no elements"},
		{"unexported", struct{ a int32 }{}, "field a: must be exported"},
		{"embedded", struct{ Run }{}, "field Run: must be exported and not embedded"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Layout(reflect.TypeOf(test.value))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that contains %q", err, test.want)
			}
		})
	}
}

func TestSnake(t *testing.T) {
	for name, want := range map[string]string{
		"Q": "q", "KVHeads": "kv_heads", "QTokenStride": "q_token_stride", "PartialLSE": "partial_lse",
		"LSE": "lse", "SrcK": "src_k", "SMs": "sms", "SMsUsed": "sms_used", "MaxSMs": "max_sms", "KCache": "k_cache",
		"Runs": "runs", "Level2Rows": "level2_rows",
	} {
		if got := snake(name); got != want {
			t.Errorf("snake(%s) = %s, want %s", name, got, want)
		}
	}
}
