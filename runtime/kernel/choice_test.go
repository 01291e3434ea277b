package kernel

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// tunedBundle has, for the H200, a kernel of its own for short extends, the kernel
// that is the A100's default for longer ones, and a decode kernel with two blocks
// a multiprocessor.
func tunedBundle() Bundle {
	artifact := func(kind abi.Kind, name, family string, rows, keys, blocks int, targets, tuned []string) Artifact {
		return Artifact{Kind: kind, Entry: name, File: name + ".cu", Family: family, Targets: targets, Tuned: tuned,
			Rows: rows, Keys: keys, Stages: 2, Warps: 4, Blocks: blocks, Folds: family == "sm90", Source: []byte(name)}
	}
	a100, h200 := []string{"sm_80"}, []string{"sm_90a"}
	return Bundle{
		Name: "llama3",
		Kernels: []Artifact{
			artifact(abi.KindExtend, "extend80", "sm80", 128, 64, 0, []string{"sm_80", "sm_90a"}, h200),
			artifact(abi.KindExtend, "extend90", "sm90", 128, 128, 0, h200, nil),
			artifact(abi.KindExtend, "short90", "sm90", 64, 64, 0, h200, h200),
			artifact(abi.KindDecode, "decode80", "sm80", 16, 16, 0, a100, nil),
			artifact(abi.KindDecode, "decode90", "sm90", 16, 64, 0, h200, nil),
			artifact(abi.KindDecode, "two90", "sm90", 16, 32, 2, h200, h200),
			artifact(abi.KindSharedDecode, "shared80", "sm80", 128, 64, 0, []string{"sm_80", "sm_90a"}, nil),
			artifact(abi.KindSharedDecode, "shared90", "sm90", 64, 128, 0, h200, h200),
		},
		Tuned: []Tuned{{Device: "H200", Rules: []Rule{
			{Kind: abi.KindExtend, Query: 128, Keys: 16384, Entry: "short90", Fill: 50, Tokens: 512},
			{Kind: abi.KindExtend, Query: 128, Entry: "extend80"},
			{Kind: abi.KindExtend, Query: 100, Keys: 100, Entry: "extend90"}, // never reached
			{Kind: abi.KindDecode, Entry: "two90"},
			{Kind: abi.KindSharedDecode, Entry: "shared90"},
		}}},
	}
}

func openOn(t testing.TB, b Bundle, info cuda.Info) (*Set, *fake) {
	t.Helper()
	dev := &fake{info: info}
	s, err := Open(context.Background(), dev, b, Options{Compile: func(_ context.Context, s Source) ([]byte, error) { return s.Text, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if dev.loaded != 0 {
			t.Errorf("%d modules stay loaded", dev.loaded)
		}
	})
	return s, dev
}

func TestChoose(t *testing.T) {
	h200 := cuda.Info{Name: "H200", Major: 9, Multiprocessors: 132, SharedPerBlock: 227 << 10}
	unknown := h200
	unknown.Name = "H100"
	a100 := cuda.Info{Name: "A100", Major: 8, Multiprocessors: 108, SharedPerBlock: 163 << 10}
	for _, c := range []struct {
		device      cuda.Info
		kind        abi.Kind
		query, keys int
		entry       string
		want        Choice // but for its kernel
	}{
		{h200, abi.KindExtend, 64, 8192, "short90", Choice{Index: 0, Rows: 64, Keys: 64, Blocks: 66, Tokens: 512, Resident: 132, Cluster: 1, Folds: true}},
		{h200, abi.KindExtend, 128, 16384, "short90", Choice{Index: 0, Rows: 64, Keys: 64, Blocks: 66, Tokens: 512, Resident: 132, Cluster: 1, Folds: true}},
		{h200, abi.KindExtend, 64, 16385, "extend80", Choice{Index: 1, Rows: 128, Keys: 64, Blocks: 264, Tokens: 256, Resident: 264, Cluster: 1}},
		{h200, abi.KindExtend, 129, 8192, "extend90", Choice{Index: 2, Rows: 128, Keys: 128, Blocks: 132, Tokens: 512, Resident: 132, Cluster: 1, Folds: true}},
		{h200, abi.KindDecode, 1, 1 << 30, "two90", Choice{Rows: 16, Keys: 32, Blocks: 264, Tokens: 256, Resident: 264, Cluster: 1, Folds: true}},
		{unknown, abi.KindExtend, 64, 8192, "extend90", Choice{Rows: 128, Keys: 128, Blocks: 132, Tokens: 512, Resident: 132, Cluster: 1, Folds: true}},
		{unknown, abi.KindDecode, 1, 8192, "decode90", Choice{Rows: 16, Keys: 64, Blocks: 132, Tokens: 256, Resident: 132, Cluster: 1, Folds: true}},
		{a100, abi.KindExtend, 64, 8192, "extend80", Choice{Rows: 128, Keys: 64, Blocks: 216, Tokens: 256, Resident: 216, Cluster: 1}},
		{a100, abi.KindDecode, 1, 8192, "decode80", Choice{Rows: 16, Keys: 16, Blocks: 216, Tokens: 256, Resident: 216, Cluster: 1}},
	} {
		s, dev := openOn(t, tunedBundle(), c.device)
		got := s.Choose(c.kind, c.query, c.keys)
		if all := s.Choices(c.kind); got.Index >= len(all) || all[got.Index] != got {
			t.Errorf("%s %s %d/%d: choice %d is not among %+v", c.device.Name, c.kind, c.query, c.keys, got.Index, all)
		}
		p := abi.AttendParams{ItemCount: 1000, KVHeads: 8, KMap: 1, VMap: 1}
		if err := s.Attend(0, got, p); err != nil {
			t.Fatal(err)
		}
		if launched := dev.launches[0]; launched.entry != c.entry {
			t.Errorf("%s %s %d/%d: launched %s, want %s", c.device.Name, c.kind, c.query, c.keys, launched.entry, c.entry)
		} else if c.entry == "two90" && launched.config.GridX != 264 {
			t.Errorf("two blocks a multiprocessor: a grid of %d", launched.config.GridX)
		}
		c.want.Kind = c.kind
		if got.kernel = nil; got != c.want {
			t.Errorf("%s %s %d/%d: %+v, want %+v", c.device.Name, c.kind, c.query, c.keys, got, c.want)
		}
	}
}

// Blocks of a cluster take an item together, and count as one in cuts.
func TestClusters(t *testing.T) {
	b := tunedBundle()
	i := slices.IndexFunc(b.Kernels, func(a Artifact) bool { return a.Entry == "extend90" })
	b.Kernels[i].Cluster = 2
	s, dev := openOn(t, b, cuda.Info{Name: "H100", Major: 9, Multiprocessors: 133, SharedPerBlock: 227 << 10})
	got := s.Choose(abi.KindExtend, 64, 8192)
	if got.Blocks != 66 || got.Resident != 66 || got.Cluster != 2 {
		t.Errorf("%+v, want 66 clusters of 2", got)
	}
	for _, c := range []struct{ items, grid int }{{1000, 132}, {1, 16}} {
		if err := s.Attend(0, got, abi.AttendParams{ItemCount: int32(c.items), KVHeads: 8, KMap: 1, VMap: 1}); err != nil {
			t.Fatal(err)
		}
		if launched := dev.launches[len(dev.launches)-1]; launched.config.GridX != c.grid {
			t.Errorf("%d items: a grid of %d, want %d", c.items, launched.config.GridX, c.grid)
		}
	}
}

// A GPU that no table names gets what was chosen for its target, as far as it fits.
func TestChooseByTarget(t *testing.T) {
	b := tunedBundle()
	few := b.Kernels[0]
	few.Entry, few.File, few.Targets, few.Tuned, few.Rows, few.SharedBytes = "few80", "few80.cu", []string{"sm_80"}, []string{"sm_80"}, 64, 100<<10
	b.Kernels = append(b.Kernels, few)
	b.Tuned = append(b.Tuned,
		Tuned{Target: "sm_80", Rules: []Rule{{Kind: abi.KindExtend, Query: 16, Entry: "few80"}}},
		Tuned{Target: "sm_90a", Rules: []Rule{{Kind: abi.KindExtend, Query: 16, Entry: "short90"}}})
	gpu := func(name string, major, minor, shared int) cuda.Info {
		return cuda.Info{Name: name, Major: major, Minor: minor, Multiprocessors: 10, SharedPerBlock: shared << 10}
	}
	for _, c := range []struct {
		device      cuda.Info
		query, rows int
	}{
		{gpu("A100", 8, 0, 163), 16, 64},
		{gpu("A100", 8, 0, 163), 17, 128},
		{gpu("A10", 8, 6, 163), 16, 64},
		{gpu("A10", 8, 6, 99), 16, 128}, // it has no room for few80
		{gpu("B200", 10, 0, 227), 16, 128},
		{gpu("H100", 9, 0, 227), 16, 64},
		{gpu("H100", 9, 0, 227), 17, 128},
		{gpu("H200", 9, 0, 227), 200, 128}, // the table's own
		{cuda.Info{Name: "emulator", EmulatesSource: true}, 16, 128},
		{gpu("", 8, 0, 163), 16, 64},
	} {
		s, _ := openOn(t, b, c.device)
		if got := s.Choose(abi.KindExtend, c.query, 4096); got.Rows != c.rows {
			t.Errorf("%s: %d query tokens get %d rows, want %d", c.device.Name, c.query, got.Rows, c.rows)
		}
	}
	// Of a target that is given in the place of the closest there is nothing.
	s, err := Open(t.Context(), &fake{info: gpu("A10", 8, 6, 163)}, b, Options{Target: "sm_86", Compile: func(context.Context, Source) ([]byte, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Choose(abi.KindExtend, 16, 4096); got.Rows != 128 {
		t.Errorf("sm_86: %d rows", got.Rows)
	}
}

// The methods without a choice are those of the default.
func TestDefaultBesideTuned(t *testing.T) {
	s, dev := openOn(t, tunedBundle(), cuda.Info{Name: "H200", Major: 9, Multiprocessors: 132, SharedPerBlock: 227 << 10})
	if rows, keys := s.Tile(abi.KindExtend); rows != 128 || keys != 128 {
		t.Errorf("tile %d x %d", rows, keys)
	}
	if err := s.Extend(0, abi.AttendParams{ItemCount: 1, KVHeads: 8, KMap: 1, VMap: 1}); err != nil || dev.launches[0].entry != "extend90" {
		t.Errorf("%v, %v", dev.launches, err)
	}
	// Shared decode has no choice at launch: the table's kernel is the kind's.
	if rows, keys := s.Tile(abi.KindSharedDecode); rows != 64 || keys != 128 {
		t.Errorf("shared decode's tile %d x %d", rows, keys)
	}
	if dev.loaded != 7 { // all but decode80
		t.Errorf("%d kernels are loaded", dev.loaded)
	}
	if c := s.Choose(abi.KindPrefill, 1, 1); c != (Choice{}) || s.Choices(abi.KindPrefill) != nil {
		t.Errorf("of a kind that is not there: %+v", c)
	}
	if err := s.Attend(0, Choice{Kind: abi.KindPrefill}, abi.AttendParams{}); err == nil || !strings.Contains(err.Error(), "no such kernel") {
		t.Errorf("launch of no choice: %v", err)
	}
	if _, err := s.MapChoice(Choice{}, 1, 1, 1, 1); err == nil {
		t.Error("maps of no choice")
	}
	if _, err := s.MapKeys(Choice{}, 1, 1, 1); err == nil {
		t.Error("a map of keys of no choice")
	}
}

func TestOpenTunedErrors(t *testing.T) {
	b := tunedBundle()
	b.Tuned[0].Rules = append(slices.Clone(b.Tuned[0].Rules), Rule{Kind: abi.KindExtend, Entry: "none"})
	dev := &fake{info: cuda.Info{Name: "H200", Major: 9, SharedPerBlock: 227 << 10}}
	if _, err := Open(context.Background(), dev, b, Options{}); err == nil || !strings.Contains(err.Error(), "tuned for H200: the bundle has no extend kernel none") {
		t.Errorf("error %v", err)
	}
}

func BenchmarkChoose(b *testing.B) {
	s, _ := openOn(b, tunedBundle(), cuda.Info{Name: "H200", Major: 9, Multiprocessors: 132, SharedPerBlock: 227 << 10})
	b.ReportAllocs()
	keys := 0
	for b.Loop() {
		keys += s.Choose(abi.KindExtend, 512, 32768).Keys
	}
	if keys == 0 {
		b.Fatal("no choice")
	}
}

func TestChooseAllocatesNothing(t *testing.T) {
	s, _ := openOn(t, tunedBundle(), cuda.Info{Name: "H200", Major: 9, Multiprocessors: 132, SharedPerBlock: 227 << 10})
	if n := testing.AllocsPerRun(100, func() { s.Choose(abi.KindExtend, 512, 32768) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A cluster's items have no more rows than whole groups of heads fill; its plan keeps its name.
func TestPlanOfAChoice(t *testing.T) {
	b := Bundle{Name: "threes", Kernels: []Artifact{{
		Kind: abi.KindExtend, Entry: "extend", File: "extend_sm90_r256k128s2w12.cu", Family: "sm90", Targets: []string{"sm_90a"},
		Rows: 252, Keys: 128, Stages: 2, Warps: 12, Cluster: 2, Source: []byte("x"),
	}}}
	s, _ := openOn(t, b, cuda.Info{Name: "H200", Major: 9, Multiprocessors: 132})
	if c := s.Choose(abi.KindExtend, 1, 1); c.Plan() != "r256k128s2w12" || c.Rows != 252 {
		t.Errorf("plan %s of %d rows", c.Plan(), c.Rows)
	}
	if got := (Choice{}).Plan(); got != "" {
		t.Errorf("of none: %s", got)
	}
}
