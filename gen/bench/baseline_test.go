package bench

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/rope"
)

func small(t *testing.T) spec.Spec {
	t.Helper()
	variant, err := rope.Rule{Type: rope.Default, Theta: 10000, RotaryDim: 32, MaxPosition: 1 << 14}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	return spec.Spec{
		Name:  "small",
		Model: spec.Model{QueryHeads: 4, KVHeads: 2, HeadDim: 32, VHeadDim: 32, DType: spec.BF16},
		Rope:  variant,
		Cache: spec.Cache{PageSize: 16, Layout: spec.NHD, Encoding: spec.Segment},
		Masks: spec.Masks{Causal: true},
		Scale: 0.2,
		Kinds: spec.AllKinds, Targets: []spec.Target{"sm_80"},
	}
}

// cpuKernels run a few items at a time.
type cpuKernels struct{ *cpu.Kernels }

func (cpuKernels) Blocks(abi.Kind) int { return 16 }

func onCPU(t *testing.T, dev *cpu.Device, s spec.Spec) Kernels {
	t.Helper()
	k, err := verify.CPU(dev)(t.Context(), s, s.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	return Kernels{Launcher: cpuKernels{k.Launcher.(*cpu.Kernels)}, Tiles: k.Tiles}
}

func openCPU(t *testing.T) *cpu.Device {
	dev := cpu.Open(cpu.Options{})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

func testCases(t *testing.T) []Case {
	var cases []Case
	for _, text := range []string{"prefill:2x40", "extend:2x5/700", "decode:3x1/600", "shared:12x2080+30", "zipf:1.07:6/20x530x3+5-40", "zipf:2.1:8/4x64x2+16"} {
		c, err := ParseCase(text)
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

// A baseline that copies attends to what the documents say, and shared decode too:
// their outputs are those of the segments as they lie.
func TestAllComputeTheSame(t *testing.T) { allComputeTheSame(t, spec.Masks{Causal: true}) }

// A window looks at where copies are, too.
func TestAllComputeTheSameInAWindow(t *testing.T) {
	allComputeTheSame(t, spec.Masks{Causal: true, Window: 200, SinkTokens: 3})
}

func allComputeTheSame(t *testing.T, masks spec.Masks) {
	dev, s := openCPU(t), small(t)
	s.Masks = masks
	k := onCPU(t, dev, s)
	baked := onCPU(t, dev, spec.WithEncoding(s, spec.Baked))
	b := Copies(s, k.Launcher.(Materialiser), baked).(copies)
	for _, c := range testCases(t) {
		if c.Kind == spec.Prefill {
			continue // has nothing to copy
		}
		t.Run(c.String(), func(t *testing.T) {
			clock, err := newTimer(dev, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer clock.close()
			p, err := NewProblem(dev, s, c, 5)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Free()
			st, err := p.attend(k, s, p.layout.Sequences, p.cache)
			if err != nil {
				t.Fatal(err)
			}
			want := outputs(t, clock, p, st.launch)
			plans := map[string]func(context.Context, *timer, *Problem) (*copyStep, error){"a copy each": b.copyPerRequest}
			if c.Sharing.Documents > 0 {
				plans["copies kept"] = b.copyWithReuse
			}
			if c.Sharing.Documents > 0 {
				for _, bitwise := range []bool{false, true} {
					st, err := p.attendShared(k, bitwise)
					if err != nil {
						t.Fatal(err)
					}
					if st.shared.ItemCount == 0 && c.Sharing.Apart && masks.Window == 0 {
						t.Errorf("shared, bitwise %t: nothing is shared", bitwise)
					}
					if e := relative(outputs(t, clock, p, st.launch), want); !(e < 0.01) {
						t.Errorf("shared, bitwise %t: the outputs differ by %g", bitwise, e)
					}
				}
			}
			for name, lay := range plans {
				plan, err := lay(t.Context(), clock, p)
				if err != nil {
					t.Fatal(err)
				}
				got := outputs(t, clock, p, plan.step.launch)
				if e := relative(got, want); !(e < 0.01) {
					t.Errorf("%s: the outputs differ by %g", name, e)
				}
			}
		})
	}
}

// outputs is what a launch leaves, which is cleared before it.
func outputs(t *testing.T, clock *timer, p *Problem, launch func(cuda.Stream) error) []float64 {
	t.Helper()
	elements := p.tokens * p.spec.Model.QueryHeads * p.spec.Model.VHeadDim
	if err := p.dev.Fill(clock.stream, p.out, 0, int64(2*elements)); err != nil {
		t.Fatal(err)
	}
	if err := launch(clock.stream); err != nil {
		t.Fatal(err)
	}
	if err := p.dev.Synchronize(t.Context(), clock.stream); err != nil {
		t.Fatal(err)
	}
	bits := make([]uint16, elements)
	download(t, p.dev, bits, p.out)
	x := make([]float64, elements)
	for i, b := range bits {
		x[i] = numeric.BF16.Value(b)
	}
	return x
}

func relative(got, want []float64) float64 {
	var difference, norm float64
	for i := range want {
		difference += (got[i] - want[i]) * (got[i] - want[i])
		norm += want[i] * want[i]
	}
	return math.Sqrt(difference / norm)
}

// A whole run, with every baseline that kgen's kernels give.
func TestRun(t *testing.T) {
	dev, s := openCPU(t), small(t)
	k := onCPU(t, dev, s)
	against := []Baseline{
		Copies(s, k.Launcher.(Materialiser), onCPU(t, dev, spec.WithEncoding(s, spec.Baked))),
		Raw(s, onCPU(t, dev, spec.WithEncoding(s, spec.Raw))),
	}
	cases := testCases(t)
	rows, err := Run(t.Context(), dev, s, k, cases, Options{Repeats: 3, ReadBandwidth: 1e9, Product: 1e9, Against: against})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"baked", "raw"}, {"baked", "copy + baked", "raw"}, {"baked", "raw"},
		{"baked", "LRU of copies", "raw"}, {"baked", "LRU of copies", "raw"}, {"baked", "LRU of copies", "raw"},
	}
	rows = slices.DeleteFunc(rows, func(row Row) bool { return row.Method == MethodShared || row.Method == MethodBitwise })
	for i, row := range rows {
		var names []string
		for _, p := range row.Against {
			names = append(names, p.Name)
			if p.Error != "" || p.Median <= 0 || p.Low > p.Median || p.High < p.Median || p.Ratio <= 0 {
				t.Errorf("%s: %+v", row.Case, p)
			}
			if strings.Contains(p.Name, "cop") && p.Note == "" && p.Copy == nil {
				t.Errorf("%s: %s has no time of its copies", row.Case, p.Name)
			}
		}
		if !slices.Equal(names, want[i]) {
			t.Errorf("%s: baselines %q, want %q", row.Case, names, want[i])
		}
		if row.Case != cases[i].String() || row.Median <= 0 || row.Limit <= 0 || row.Fraction <= 0 || row.TFLOPs <= 0 || row.TBs <= 0 || row.Bytes > row.PlainBytes {
			t.Errorf("%+v", row)
		}
	}
}

// folding is kernels that take items of several parts.
type folding struct{ cpuKernels }

func (k folding) Choose(kind abi.Kind, _, _ int) kernel.Choice {
	return kernel.Choice{Kind: kind, Rows: 16, Keys: 16, Blocks: 16, Resident: 8, Tokens: 64, Folds: true}
}

func (k folding) Attend(s cuda.Stream, c kernel.Choice, p abi.AttendParams) error {
	if c.Kind == abi.KindDecode {
		return k.Decode(s, p)
	}
	return k.Extend(s, p)
}

func (folding) MapChoice(kernel.Choice, abi.DevicePtr, abi.DevicePtr, int, int) (*kernel.CacheMaps, error) {
	return &kernel.CacheMaps{}, nil
}

func (k folding) MapKeys(c kernel.Choice, keys abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error) {
	return k.MapChoice(c, keys, 0, pages, kvHeads)
}

// The other batching is timed where it makes a difference, and computes the same.
func TestBatching(t *testing.T) {
	dev, s := openCPU(t), small(t)
	plain := onCPU(t, dev, s)
	k := Kernels{Launcher: folding{plain.Launcher.(cpuKernels)}, Tiles: plain.Tiles}
	for _, mode := range []spec.Mode{spec.Bitwise, spec.Fastest} {
		s.Batching = mode
		other := Batching(s, k).(batching)
		if other.spec.Batching == mode {
			t.Fatalf("%s is timed against itself", mode)
		}
		for _, test := range []struct {
			c     Case
			times int
		}{
			{Case{Kind: spec.Extend, Batch: 8, Query: 5, Context: 700}, 1},
			{Case{Kind: spec.Extend, Batch: 1, Query: 5, Context: 700}, 0},
			{Case{Kind: spec.Decode, Batch: 8, Query: 1, Context: 700}, 0},
		} {
			rows, err := Run(t.Context(), dev, s, k, []Case{test.c}, Options{Repeats: 1, Against: []Baseline{other}})
			if err != nil {
				t.Fatal(err)
			}
			if against := rows[0].Against; len(against) != test.times || len(against) > 0 && against[0].Name != "batching: "+string(other.spec.Batching) {
				t.Errorf("%s, %s: baselines %+v", mode, test.c, against)
			}
			p, err := NewProblem(dev, s, test.c, 5)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Free()
			clock, err := newTimer(dev, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer clock.close()
			var outs [2][]float64
			for i, s := range []spec.Spec{s, other.spec} {
				st, err := p.attend(k, s, p.layout.Sequences, p.cache)
				if err != nil {
					t.Fatal(err)
				}
				outs[i] = outputs(t, clock, p, st.launch)
			}
			if e := relative(outs[1], outs[0]); !(e < 0.01) || e == 0 && test.times > 0 {
				t.Errorf("%s, %s: the outputs differ by %g", mode, test.c, e)
			}
		}
	}
}

// Where the kernels have shared decode, a case with sharing has a row for each
// method, with the bytes that its work lists read.
func TestSharedRows(t *testing.T) {
	dev, s := openCPU(t), small(t)
	k := onCPU(t, dev, s)
	c, err := ParseCase("shared:8x4096+16")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Run(t.Context(), dev, s, k, []Case{c, {Kind: spec.Decode, Batch: 1, Query: 1, Context: 64}}, Options{
		Repeats: 1, ReadBandwidth: 1e9, Product: 1e9, Against: []Baseline{Raw(s, onCPU(t, dev, spec.WithEncoding(s, spec.Raw)))},
	})
	if err != nil {
		t.Fatal(err)
	}
	var methods []string
	for _, row := range rows {
		methods = append(methods, row.Method)
		if len(row.Against) != 1 || row.Against[0].Ratio != float64(row.Against[0].Median)/float64(row.Median) {
			t.Errorf("%s: baselines %+v", row.Label(), row.Against)
		}
	}
	if !slices.Equal(methods, []string{MethodPlain, MethodShared, MethodBitwise, ""}) {
		t.Fatalf("methods %q", methods)
	}
	plain, shared := rows[0], rows[1]
	if plain.ReadBytes != plain.PlainBytes || shared.PlainBytes != plain.PlainBytes || shared.Bytes != plain.Bytes || shared.Limit != plain.Limit ||
		shared.ReadBytes >= plain.ReadBytes || shared.ReadBytes < shared.Bytes {
		t.Errorf("plain: %+v\nshared: %+v", plain, shared)
	}
	s.Kinds = []spec.Kind{spec.Decode, spec.Merge}
	if rows, err = Run(t.Context(), dev, s, k, []Case{c}, Options{Repeats: 1}); err != nil || len(rows) != 1 {
		t.Errorf("without shared decode: %d rows, %v", len(rows), err)
	}
}

// A sequence's documents are different ones, the popular ones are held by many, and
// the counts are those of the layout.
func TestLayoutOfSharing(t *testing.T) {
	s := small(t)
	c, err := ParseCase("zipf:1.07:64/100x64x5+16-48")
	if err != nil {
		t.Fatal(err)
	}
	l := NewLayout(c, s, 1)
	holders := map[int32]int{}
	for i, sequence := range l.Sequences {
		at := int32(0)
		held := map[int32]bool{}
		for j, segment := range sequence.Segments {
			if segment.Offset != at || segment.Own != (j == 5) {
				t.Fatalf("sequence %d, segment %d: %+v, want offset %d", i, j, segment, at)
			}
			if held[segment.Page] {
				t.Fatalf("sequence %d holds a document twice", i)
			}
			held[segment.Page] = true
			holders[segment.Page]++
			at += segment.Tokens
		}
		if own := sequence.Segments[5].Tokens; own < 16 || own > 48 || sequence.Positions[0] != at-1 {
			t.Fatalf("sequence %d: %d own tokens, query at %d of %d", i, own, sequence.Positions[0], at)
		}
	}
	most := 0
	for _, n := range holders {
		most = max(most, n)
	}
	if most < 20 {
		t.Errorf("the most popular document is held by %d of 64 sequences", most)
	}
	read, unique := l.KVTokens()
	if unique >= read || unique != (len(holders)-64)*64+read-64*5*64 {
		t.Errorf("%d tokens read, %d different ones", read, unique)
	}

	together, err := ParseCase("shared:8x2048+64")
	if err != nil {
		t.Fatal(err)
	}
	l = NewLayout(together, s, 1)
	read, unique = l.KVTokens()
	if read != 8*(2048+64) || unique != 2048+8*64 {
		t.Errorf("shared: %d tokens read, %d different ones", read, unique)
	}
	offsets := map[int32]bool{}
	for _, sequence := range l.Sequences {
		offsets[sequence.Segments[0].Offset] = true
	}
	if len(offsets) != 8 {
		t.Errorf("8 sequences hold the document at %d offsets", len(offsets))
	}
}
