package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

func testBundle() Bundle {
	b := Bundle{Name: "llama3", SpecDigest: "d1", Flags: []string{"-f"}}
	kinds := []abi.Kind{abi.KindAppend, abi.KindPrefill, abi.KindExtend, abi.KindDecode, abi.KindMerge, abi.KindMaterialise, abi.KindSharedDecode}
	for i, kind := range kinds {
		b.Kernels = append(b.Kernels, Artifact{
			Kind: kind, Entry: "llama3_" + string(kind), File: string(kind) + ".cu", Family: "sm80",
			Targets: []string{"sm_80", "sm_90a"}, Warps: 4, SharedBytes: 1000 * i,
			Source: []byte("source of " + kind), Cubins: map[string][]byte{"sm_80": []byte("cubin of " + kind)},
		})
	}
	return b
}

func h200() *fake {
	return &fake{info: cuda.Info{Name: "H200", Major: 9, SharedPerBlock: 227 << 10}}
}

func a100() *fake {
	return &fake{info: cuda.Info{Name: "A100", Major: 8, SharedPerBlock: 163 << 10}}
}

func noCompile(context.Context, Source) ([]byte, error) { return nil, errors.New("not wanted") }

func TestOpenTakesTheEmbeddedCubin(t *testing.T) {
	dev := a100()
	s, err := Open(context.Background(), dev, testBundle(), Options{Compile: noCompile})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, image := range dev.images {
		got[image.Name] = string(image.Cubin)
		if image.Source != nil {
			t.Errorf("%s has a source too", image.Name)
		}
	}
	if len(got) != 7 || got["decode"] != "cubin of decode" {
		t.Errorf("loaded %v", got)
	}
	if err := s.Close(); err != nil || dev.loaded != 0 {
		t.Errorf("Close: %v, %d modules loaded", err, dev.loaded)
	}
	if err := s.Decode(0, abi.AttendParams{ItemCount: 1, KVHeads: 1}); err == nil {
		t.Error("launched after Close")
	}
}

func TestOpenCompilesWhatIsNotEmbedded(t *testing.T) {
	var compiled atomic.Int32
	compile := func(_ context.Context, s Source) ([]byte, error) {
		compiled.Add(1)
		if s.Name == "decode.cu" {
			want := Source{Name: "decode.cu", Text: []byte("source of decode"), Target: "sm_90a", Flags: []string{"-f"}}
			if diff := cmp.Diff(want, s); diff != "" {
				t.Error(diff)
			}
		}
		return []byte("made"), nil
	}
	dev := h200()
	s, err := Open(context.Background(), dev, testBundle(), Options{Compile: compile})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if compiled.Load() != 7 || string(dev.images[0].Cubin) != "made" {
		t.Errorf("%d compilations; first image %q", compiled.Load(), dev.images[0].Cubin)
	}
}

func TestOpenGivesSourceToAnEmulator(t *testing.T) {
	dev := &fake{info: cuda.Info{Name: "emulator", EmulatesSource: true}}
	s, err := Open(context.Background(), dev, testBundle(), Options{Compile: noCompile})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, image := range dev.images {
		if !strings.HasPrefix(string(image.Source), "source of ") || image.Cubin != nil {
			t.Errorf("image %s: source %q, cubin %q", image.Name, image.Source, image.Cubin)
		}
	}
}

// An emulator runs any kernel: it gets those that a GPU of its compute capability would, where
// there are some.
func TestOpenTakesForAnEmulatorWhatIsPlannedForIt(t *testing.T) {
	sm80 := Artifact{Kind: abi.KindDecode, Entry: "sm80", Family: "sm80", Targets: []string{"sm_80"}, Warps: 4}
	sm90 := Artifact{Kind: abi.KindDecode, Entry: "sm90", Family: "sm90", Targets: []string{"sm_90a"}, Warps: 8}
	b := Bundle{Name: "x", Kernels: []Artifact{sm80, sm90}}
	for major, want := range map[int]string{8: "sm80", 9: "sm90", 10: "sm80"} {
		dev := &fake{info: cuda.Info{Name: "emulator", Major: major, EmulatesSource: true}}
		s, err := Open(t.Context(), dev, b, Options{Compile: noCompile})
		if err != nil {
			t.Fatal(err)
		}
		if a, _ := s.Artifact(abi.KindDecode); a.Entry != want {
			t.Errorf("compute capability %d.0: kernel %q, want %q", major, a.Entry, want)
		}
	}
}

func TestOpenTakesTheFirstThatFits(t *testing.T) {
	hopper := Artifact{Kind: abi.KindDecode, Entry: "hopper", Family: "sm90", Targets: []string{"sm_90a"}, Warps: 8}
	big := Artifact{Kind: abi.KindDecode, Entry: "big", Family: "sm80", Targets: []string{"sm_80"}, Warps: 4, SharedBytes: 200 << 10}
	small := Artifact{Kind: abi.KindDecode, Entry: "small", Family: "sm80", Targets: []string{"sm_80"}, Warps: 2}
	b := Bundle{Name: "x", Kernels: []Artifact{hopper, big, small}}
	compile := func(context.Context, Source) ([]byte, error) { return []byte("made"), nil }
	for dev, want := range map[*fake]string{h200(): "hopper", a100(): "small"} {
		s, err := Open(context.Background(), dev, b, Options{Compile: compile})
		if err != nil {
			t.Fatal(err)
		}
		if a, ok := s.Artifact(abi.KindDecode); !ok || a.Entry != want || len(dev.images) != 1 {
			t.Errorf("%s: kernel %q, %d images", dev.info.Name, a.Entry, len(dev.images))
		}
		if _, ok := s.Artifact(abi.KindMerge); ok {
			t.Error("there is a merge kernel")
		}
	}
}

func TestOpenErrors(t *testing.T) {
	failed := errors.New("failed")
	tests := []struct {
		name    string
		change  func(*Bundle, *fake, *Options)
		want    []string
		wrapped error
	}{
		{"shared memory", func(b *Bundle, _ *fake, _ *Options) { b.Kernels[3].SharedBytes = 300 << 10 }, []string{
			"open the kernels of llama3 on A100: no decode kernel fits: llama3_decode: wants 307200 bytes of shared memory a block, " +
				"the device has 166912"}, nil},
		{"old device", func(_ *Bundle, d *fake, _ *Options) { d.info.Major = 7 }, []string{
			"no append kernel fits: llama3_append: family sm80 does not run on compute capability 7.0"}, nil},
		{"no warps", func(b *Bundle, _ *fake, _ *Options) { b.Kernels[4].Warps = 0 }, []string{
			"no merge kernel fits: llama3_merge: its plan has 0 warps"}, nil},
		{"wrong target", func(_ *Bundle, _ *fake, o *Options) { o.Target = "sm_90a" }, []string{
			"machine code for sm_90a does not run on compute capability 8.0"}, nil},
		{"unknown target", func(_ *Bundle, _ *fake, o *Options) { o.Target = "ampere" }, []string{`"ampere" is not a target`}, nil},
		{"compiler fails", func(b *Bundle, _ *fake, o *Options) {
			b.Kernels[1].Cubins, b.Kernels[2].Cubins = nil, nil
			o.Compile = func(context.Context, Source) ([]byte, error) { return nil, failed }
		}, []string{
			"open kernel llama3_prefill of llama3 on A100: failed",
			"open kernel llama3_extend of llama3 on A100: failed"}, failed},
		{"image", func(_ *Bundle, d *fake, _ *Options) { d.badImage = "merge" }, []string{
			"open kernel llama3_merge of llama3 on A100: bad image"}, nil},
		{"entry", func(_ *Bundle, d *fake, _ *Options) { d.badEntry = "llama3_merge" }, []string{
			"open kernel llama3_merge of llama3 on A100: bad entry"}, nil},
	}
	for _, test := range tests {
		b, dev, o := testBundle(), a100(), Options{Compile: noCompile}
		test.change(&b, dev, &o)
		_, err := Open(context.Background(), dev, b, o)
		if err == nil {
			t.Errorf("%s: no error", test.name)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q, want %q", test.name, err, want)
			}
		}
		if test.wrapped != nil && !errors.Is(err, test.wrapped) {
			t.Errorf("%s: the cause is lost in %v", test.name, err)
		}
		if dev.loaded != 0 {
			t.Errorf("%s: %d modules stay loaded", test.name, dev.loaded)
		}
	}
}

func openTest(t *testing.T, b Bundle) (*Set, *fake) {
	t.Helper()
	dev := a100()
	s, err := Open(context.Background(), dev, b, Options{Compile: noCompile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, dev
}

// encode writes a struct the way C lays it out, field after field.
func encode(t *testing.T, params any) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.LittleEndian, params)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLaunches(t *testing.T) {
	attend := abi.AttendParams{Q: 16, KCache: 32, SinkLogits: 13, QTokenStride: 1024, OutTokenStride: 1032, KVHeads: 8,
		ItemCount: 70000, Scale: 0.125, RopeScale: 1.5}
	shared := attend
	shared.Members, shared.MemberOffsets = 16, 17
	appendParams := abi.AppendParams{K: 16, Rope: 112, KTokenStride: 8, VTokenStride: 16, KVHeads: 8, Tokens: 11}
	merge := abi.MergeParams{PartialOut: 16, SinkLogits: 6, OutTokenStride: 64, QHeads: 33, Tokens: 9}
	materialise := abi.MaterialiseParams{SrcK: 16, Rope: 112, KVHeads: 8, CopyCount: 5}
	tests := []struct {
		entry  string
		launch func(*Set) error
		params any
		x, y   int
		shared int
	}{
		{"llama3_append", func(s *Set) error { return s.Append(3, appendParams) }, appendParams, 11, 1, 0},
		{"llama3_prefill", func(s *Set) error { return s.Prefill(3, attend) }, attend, 70000, 8, 1000},
		{"llama3_extend", func(s *Set) error { return s.Extend(3, attend) }, attend, 70000, 8, 2000},
		{"llama3_decode", func(s *Set) error { return s.Decode(3, attend) }, attend, 70000, 8, 3000},
		{"llama3_merge", func(s *Set) error { return s.Merge(3, merge) }, merge, 9, 9, 4000},
		{"llama3_materialise", func(s *Set) error { return s.Materialise(3, materialise) }, materialise, 5, 8, 5000},
		{"llama3_shared_decode", func(s *Set) error { return s.SharedDecode(3, shared) }, shared, 70000, 8, 6000},
	}
	s, dev := openTest(t, testBundle())
	for _, test := range tests {
		dev.launches = nil
		if err := test.launch(s); err != nil {
			t.Errorf("%s: %v", test.entry, err)
			continue
		}
		want := []launched{{test.entry, 3, cuda.LaunchConfig{GridX: test.x, GridY: test.y, GridZ: 1, Threads: 128,
			SharedBytes: test.shared}, encode(t, test.params)}}
		if diff := cmp.Diff(want, dev.launches, cmp.AllowUnexported(launched{})); diff != "" {
			t.Errorf("%s: %s", test.entry, diff)
		}
	}
}

func TestLaunchesAreEarly(t *testing.T) {
	compile := func(context.Context, Source) ([]byte, error) { return []byte("made"), nil }
	devices := map[*fake]bool{
		h200(): true, {info: cuda.Info{Name: "B200", Major: 10}}: true, a100(): false,
		{info: cuda.Info{Name: "emulator", Major: 9, EmulatesSource: true}}: true,
	}
	attend := abi.AttendParams{KVHeads: 1, ItemCount: 1, Members: 1, MemberOffsets: 1}
	for dev, want := range devices {
		b := testBundle()
		s, err := Open(t.Context(), dev, b, Options{Compile: compile})
		if err != nil {
			t.Fatal(err)
		}
		dev.launches = nil
		err = errors.Join(s.Append(0, abi.AppendParams{Tokens: 1}), s.Prefill(0, attend), s.Extend(0, attend), s.Decode(0, attend),
			s.SharedDecode(0, attend), s.Merge(0, abi.MergeParams{QHeads: 1, Tokens: 1}),
			s.Materialise(0, abi.MaterialiseParams{CopyCount: 1, KVHeads: 1}))
		if err != nil || len(dev.launches) != len(b.Kernels) {
			t.Errorf("%s: %d launches, %v", dev.info.Name, len(dev.launches), err)
		}
		for _, l := range dev.launches {
			if l.config.Early != want {
				t.Errorf("%s: %s is launched early: %v", dev.info.Name, l.entry, l.config.Early)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestMergeGrid(t *testing.T) {
	s, dev := openTest(t, testBundle())
	for heads, want := range map[int32]int{1: 1, 4: 1, 5: 2, 32: 8, 1<<31 - 1: 0} {
		dev.launches = nil
		err := s.Merge(0, abi.MergeParams{QHeads: heads, Tokens: 1})
		if want == 0 {
			if err == nil {
				t.Errorf("%d heads: launched", heads)
			}
			continue
		}
		if err != nil || dev.launches[0].config.GridY != want {
			t.Errorf("%d heads: %v, %+v", heads, err, dev.launches)
		}
	}
}

func TestNothingToLaunch(t *testing.T) {
	s, dev := openTest(t, testBundle())
	err := errors.Join(s.Append(0, abi.AppendParams{KVHeads: 1}), s.Decode(0, abi.AttendParams{KVHeads: 1}),
		s.Merge(0, abi.MergeParams{QHeads: 1}), s.Materialise(0, abi.MaterialiseParams{KVHeads: 1}))
	if err != nil || len(dev.launches) > 0 {
		t.Errorf("%v, %d launches", err, len(dev.launches))
	}
}

func TestLaunchErrors(t *testing.T) {
	b := testBundle()
	b.Kernels = slices.DeleteFunc(b.Kernels, func(a Artifact) bool { return a.Kind == abi.KindPrefill })
	s, dev := openTest(t, b)
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"absent kind", s.Prefill(0, abi.AttendParams{ItemCount: 1, KVHeads: 1}),
			"launch prefill: llama3 has no such kernel: add it to the kinds of its spec"},
		{"negative", s.Decode(0, abi.AttendParams{ItemCount: -1, KVHeads: 1}), "launch decode of llama3: a grid of -1 by 1 blocks"},
		{"no heads", s.Decode(0, abi.AttendParams{ItemCount: 1}), "launch decode of llama3: a grid of 1 by 0 blocks"},
		{"too many heads", s.Decode(0, abi.AttendParams{ItemCount: 1, KVHeads: 65536}), "a grid of 1 by 65536 blocks"},
		{"no query heads", s.Merge(0, abi.MergeParams{Tokens: 1}), "launch merge of llama3: a grid of 1 by 0 blocks"},
		{"a bad address", s.Decode(0, abi.AttendParams{Q: 8, ItemCount: 1, KVHeads: 1}),
			"launch decode of llama3: Q 0x8, Out 0x0, KCache 0x0, VCache 0x0, PartialOut 0x0, Rope 0x0, QTokenStride 0, OutTokenStride 0: " +
				"addresses must be multiples of 16 bytes, token strides of 8 elements"},
		{"a bad stride", s.Extend(0, abi.AttendParams{QTokenStride: 1028, ItemCount: 1, KVHeads: 1}), "QTokenStride 1028, OutTokenStride 0: addresses"},
		{"append", s.Append(0, abi.AppendParams{V: 24, Tokens: 1}), "launch append of llama3: K 0x0, V 0x18, "},
		{"append", s.Append(0, abi.AppendParams{KTokenStride: 4, Tokens: 1}), "KTokenStride 4, "},
		{"merge", s.Merge(0, abi.MergeParams{Out: 4, QHeads: 1, Tokens: 1}), "launch merge of llama3: PartialOut 0x0, Out 0x4, "},
		{"materialise", s.Materialise(0, abi.MaterialiseParams{DstV: 2, KVHeads: 1, CopyCount: 1}), "DstV 0x2, "},
		{"no members", s.SharedDecode(0, abi.AttendParams{ItemCount: 1, KVHeads: 1}), "launch shared_decode of llama3: Members or MemberOffsets is null"},
		{"device", s.Decode(99, abi.AttendParams{ItemCount: 1, KVHeads: 1}), "launch decode of llama3: bad stream"},
	}
	for _, test := range tests {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("%s: error %v", test.name, test.err)
		}
	}
	if len(dev.launches) > 0 {
		t.Errorf("launched %+v", dev.launches)
	}
}
