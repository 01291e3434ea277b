package cpu

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Whether results are right is the matter of gen/verify's tests: the backend's
// own are about its speed, its memory and what it refuses.

// step is a launch of attend over one sequence, ready to go.
type step struct {
	dev     *Device
	kernels *Kernels
	attend  abi.AttendParams
	merge   abi.MergeParams
	flops   float64 // of the two products
}

// smolLM is the shape of SmolLM2-135M.
func smolLM() Config {
	rule := rope.Rule{Type: "default", Theta: 100000, RotaryDim: 64}
	v, err := rule.Resolve()
	if err != nil {
		panic(err)
	}
	return Config{
		Name: "smollm2_135m", Group: 3, HeadDim: 64, VHeadDim: 64, Element: BF16, Rope: v,
		PageSize: 16, Encoding: Segment,
	}
}

func upload(t testing.TB, dev *Device, v any) abi.DevicePtr {
	t.Helper()
	raw, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		t.Fatal(err)
	}
	p, err := dev.Alloc(int64(max(1, len(raw))))
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Upload(p, raw); err != nil {
		t.Fatal(err)
	}
	return p
}

// newStep is tokens queries over keys stored keys, of which they are the last.
func newStep(t testing.TB, dev *Device, c Config, kind abi.Kind, kvHeads, tokens, keys int) *step {
	t.Helper()
	k, err := NewKernels(dev, c)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pages := (keys + c.PageSize - 1) / c.PageSize
	sequence := schedule.Sequence{Segments: []schedule.Segment{{Tokens: int32(keys), Own: true}}}
	var positions, table []int32
	for i := range tokens {
		positions = append(positions, int32(keys-tokens+i))
	}
	for _, p := range rng.Perm(pages) {
		table = append(table, int32(p))
	}
	sequence.Positions = positions
	rows, _ := k.Tile(kind)
	lists, err := schedule.Build([]schedule.Sequence{sequence}, schedule.Options{
		Rows: rows, Group: c.Group, Causal: true, MaxPosition: c.Rope.MaxPosition, PageSize: c.PageSize, SplitTokens: 512,
	})
	if err != nil {
		t.Fatal(err)
	}
	upload := func(v any) abi.DevicePtr { return upload(t, dev, v) }
	random := func(n int) abi.DevicePtr {
		bits := make([]uint16, n)
		for i := range bits {
			bits[i] = numeric.BF16.Bits(rng.NormFloat64())
		}
		return upload(bits)
	}
	heads := kvHeads * c.Group
	s := &step{dev: dev, kernels: k}
	s.attend = abi.AttendParams{
		Q: random(tokens * heads * c.HeadDim), KCache: random(pages * c.PageSize * kvHeads * c.HeadDim),
		VCache: random(pages * c.PageSize * kvHeads * c.VHeadDim), Out: upload(make([]uint16, tokens*heads*c.VHeadDim)),
		PartialOut: upload(make([]float32, lists.Slots*heads*c.VHeadDim)), PartialLSE: upload(make([]float32, lists.Slots*heads)),
		Items: upload(lists.Items), Runs: upload(lists.Runs), PageTable: upload(table), Positions: upload(positions),
		Rope: upload(rope.Table(c.Rope)), QTokenStride: int32(heads * c.HeadDim), OutTokenStride: int32(heads * c.VHeadDim),
		KVHeads: int32(kvHeads), ItemCount: int32(len(lists.Items)), Scale: 0.125, RopeScale: 1,
	}
	s.merge = abi.MergeParams{
		PartialOut: s.attend.PartialOut, PartialLSE: s.attend.PartialLSE, Out: s.attend.Out, SlotBegin: upload(lists.SlotBegin),
		OutTokenStride: s.attend.OutTokenStride, QHeads: int32(heads), Tokens: int32(tokens),
	}
	s.flops = float64(tokens) * (float64(keys) - float64(tokens-1)/2) * float64(heads) * 2 * float64(c.HeadDim+c.VHeadDim)
	return s
}

func (s *step) launch(t testing.TB, kind abi.Kind) {
	t.Helper()
	f := map[abi.Kind]func(cuda.Stream, abi.AttendParams) error{
		abi.KindPrefill: s.kernels.Prefill, abi.KindExtend: s.kernels.Extend, abi.KindDecode: s.kernels.Decode,
	}[kind]
	err := errors.Join(f(0, s.attend), s.kernels.Merge(0, s.merge), s.dev.Synchronize(t.Context(), 0))
	if err != nil {
		t.Fatal(err)
	}
}

func (s *step) output(t testing.TB) []byte {
	t.Helper()
	out := make([]byte, elementBytes*s.merge.Tokens*s.merge.OutTokenStride)
	if err := s.dev.Download(out, s.attend.Out); err != nil {
		t.Fatal(err)
	}
	return out
}

func BenchmarkAttend(b *testing.B) {
	dev := Open(Options{})
	defer dev.Close()
	for _, c := range []struct {
		kind         abi.Kind
		tokens, keys int
	}{{abi.KindPrefill, 512, 512}, {abi.KindExtend, 32, 1024}, {abi.KindDecode, 1, 1024}} {
		b.Run(string(c.kind), func(b *testing.B) {
			s := newStep(b, dev, smolLM(), c.kind, 3, c.tokens, c.keys)
			s.launch(b, c.kind)
			b.ReportAllocs()
			for b.Loop() {
				s.launch(b, c.kind)
			}
			b.ReportMetric(s.flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
