package cpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/numeric"
)

// Results do not depend on how many workers there are.
func TestWorkersGiveTheSameBits(t *testing.T) {
	var want []byte
	for _, workers := range []int{1, 2, 5} {
		d := open(t, Options{Workers: workers})
		s := newStep(t, d, smolLM(), abi.KindExtend, 2, 40, 700)
		s.launch(t, abi.KindExtend)
		got := s.output(t)
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d workers: other bits than with one", workers)
		}
	}
}

// A query of NaN gives NaN, and not the zeros of a row that sees no key: also where its
// keys are split.
func TestNaN(t *testing.T) {
	d := open(t, Options{})
	const row = elementBytes * 64 // of smolLM
	nan := bytes.Repeat([]byte{0xc0, 0x7f}, 64)
	for _, keys := range []int{40, 1200} {
		s := newStep(t, d, smolLM(), abi.KindExtend, 1, 3, keys)
		if err := d.Upload(s.attend.Q+4*row, nan); err != nil {
			t.Fatal(err)
		}
		s.launch(t, abi.KindExtend)
		out := s.output(t)
		for i := 0; i < len(out); i += row {
			for _, x := range numeric.BF16.Decode(out[i:][:row]) {
				if math.IsNaN(x) != (i == 4*row) {
					t.Fatalf("%d keys, row %d: %g", keys, i/row, x)
				}
			}
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	d := open(t, Options{})
	s := newStep(t, d, smolLM(), abi.KindDecode, 2, 1, 1200)
	keys := alloc(t, d, 1<<20)
	ctx := t.Context()
	once := func() {
		err := s.kernels.Decode(0, s.attend)
		if err == nil {
			err = s.kernels.Merge(0, s.merge)
		}
		if err == nil {
			err = s.kernels.Append(0, abi.AppendParams{
				K: s.attend.Q, V: s.attend.Q, KCache: keys, VCache: keys, Slots: s.attend.Positions, Positions: s.attend.Positions,
				Rope: s.attend.Rope, KVHeads: 2, Tokens: 1,
			})
		}
		if err == nil {
			err = d.Synchronize(ctx, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	once()
	if n := testing.AllocsPerRun(20, once); n != 0 {
		t.Errorf("%g allocations a step", n)
	}
}

// A launch with anything wrong says what, and the device goes on.
func TestLaunchRefuses(t *testing.T) {
	d := open(t, Options{})
	c := smolLM()
	c.SinkLogits = true
	s := newStep(t, d, c, abi.KindExtend, 1, 4, 40)
	k := s.kernels
	sinks := alloc(t, d, 12)
	for _, n := range []struct {
		name   string
		change func(p *abi.AttendParams)
		want   string
	}{
		{"no KV heads", func(p *abi.AttendParams) { p.KVHeads = 0 }, "launch extend of smollm2_135m: a grid of 1 by 0"},
		{"negative count", func(p *abi.AttendParams) { p.ItemCount = -1 }, "a grid of -1 by 1"},
		{"a Q between elements", func(p *abi.AttendParams) { p.Q++ }, "launch extend of smollm2_135m: Q 0x"},
		{"an odd stride", func(p *abi.AttendParams) { p.OutTokenStride++ }, "token strides of 8 elements"},
		{"wild pointer", func(p *abi.AttendParams) { p.Q = 1 << 50 }, "extend of smollm2_135m: Q: 0x4000000000000 is not in any allocation"},
		{"null Q", func(p *abi.AttendParams) { p.Q = 0 }, "item 0: run 0: query token 0: Q is null and is needed"},
		{"null sinks", func(p *abi.AttendParams) { p.SinkLogits = 0 }, "SinkLogits is null and is needed"},
		{"null Rope", func(p *abi.AttendParams) { p.Rope = 0 }, "the angle of position 36: Rope is null and is needed"},
		{"more heads than memory", func(p *abi.AttendParams) { p.KVHeads = 5 }, "are outside its allocation"},
		{"more items than there are", func(p *abi.AttendParams) { p.ItemCount = 9 }, "Items at 0x"},
		{"caches swapped for a short buffer", func(p *abi.AttendParams) { p.VCache = sinks }, "entry 0 of the page table is page "},
		{"page table of floats", func(p *abi.AttendParams) { p.PageTable = p.Rope }, "entry 0 of the page table is page 1065353216: KCache at 0x"},
		{"positions of floats", func(p *abi.AttendParams) { p.Positions = p.Rope }, "the angle of position 1065353216: Rope at 0x"},
		{"runs of floats", func(p *abi.AttendParams) { p.Runs = p.Rope }, "item 0: run 0: key 0: PageTable at 0x"},
	} {
		p := s.attend
		p.SinkLogits = sinks
		n.change(&p)
		err := k.Extend(0, p)
		if err == nil {
			if err = d.Synchronize(t.Context(), 0); err != nil && !errors.Is(err, cuda.ErrLaunch) {
				t.Errorf("%s: %v is no launch error", n.name, err)
			}
		}
		wantError(t, n.name, err, n.want)
	}
	p := s.attend
	p.SinkLogits = sinks
	if err := errors.Join(k.Extend(0, p), d.Synchronize(t.Context(), 0)); err != nil {
		t.Errorf("after the failures: %v", err)
	}

	sync := func(err error) error { return errors.Join(err, d.Synchronize(t.Context(), 0)) }
	shared := func(members []abi.Member, offsets []int32) error {
		p := p
		if members != nil {
			p.Members = upload(t, d, members)
		}
		if offsets != nil {
			p.MemberOffsets = upload(t, d, offsets)
		}
		return sync(k.SharedDecode(0, p))
	}
	four := []abi.Member{{Token: 3}, {Token: 2, Slot: 1}, {Token: 1, Slot: 2}, {Token: 0, Slot: 3}}
	wantError(t, "no members", shared(nil, nil), "shared_decode of smollm2_135m: item 0: Members is null and is needed")
	wantError(t, "too few members", shared(four[:3], nil), "item 0: Members at 0x")
	wantError(t, "a member of no token", shared([]abi.Member{{Token: -1}}, nil), "item 0: Positions at 0x")
	wantError(t, "a member of no slot", shared([]abi.Member{{Slot: -1}}, nil), "item 0: query token 0: slot -1: out of range")
	wantError(t, "no offsets", shared(four, nil), "item 0: run 0: MemberOffsets is null and is needed")
	wantError(t, "too few offsets", shared(four, make([]int32, 3)), "item 0: run 0: MemberOffsets at 0x")
	wantError(t, "append", k.Append(0, abi.AppendParams{VTokenStride: 4}), "launch append of smollm2_135m: K 0x0")
	wantError(t, "merge", k.Merge(0, abi.MergeParams{PartialOut: 8}), "launch merge of smollm2_135m: PartialOut 0x8")
	wantError(t, "materialise", k.Materialise(0, abi.MaterialiseParams{DstV: 2}), "launch materialise of smollm2_135m: SrcK 0x0")
	wantError(t, "append", sync(k.Append(0, abi.AppendParams{KVHeads: 1, Tokens: 1})), "append of smollm2_135m: Slots is null and is needed")
	wantError(t, "append", sync(k.Append(0, abi.AppendParams{
		K: p.Q, V: p.Q, KCache: p.KCache, VCache: p.VCache, Slots: p.Rope, Positions: p.Positions, Rope: p.Rope, KVHeads: 1, Tokens: 1,
	})), "token 0 in slot 1065353216: KCache at 0x")
	wantError(t, "merge", sync(k.Merge(0, abi.MergeParams{QHeads: 1, Tokens: 1})), "SlotBegin is null and is needed")
	wantError(t, "materialise", sync(k.Materialise(0, abi.MaterialiseParams{KVHeads: 1, CopyCount: 1})), "Copies is null and is needed")
	wantError(t, "materialise", sync(k.Materialise(0, abi.MaterialiseParams{Copies: p.Runs, KVHeads: 1, CopyCount: 1})), "Rope is null and is needed")
}

// Whatever lies in memory, a launch ends, with an error or without.
func TestGarbage(t *testing.T) {
	d := open(t, Options{Workers: 1}) // tasks that share outputs by mistake race
	c := smolLM()
	c.Group, c.HeadDim, c.VHeadDim, c.Rope.RotaryDim, c.PageSize, c.SinkLogits, c.Window = 2, 8, 4, 4, 4, true, 10
	const n = 1 << 14
	rng := rand.New(rand.NewPCG(8, 9))
	p := alloc(t, d, 4*n)
	failed := 0
	for range 300 {
		c.Encoding = []Encoding{Segment, Raw, Baked}[rng.IntN(3)]
		k, err := NewKernels(d, c)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, 0, 4*n)
		for range n {
			x := rng.Int32N(20) - 2
			if rng.IntN(50) == 0 {
				x = int32(rng.Uint32())
			}
			data = binary.LittleEndian.AppendUint32(data, uint32(x))
		}
		if err := d.Upload(p, data); err != nil {
			t.Fatal(err)
		}
		at := func() abi.DevicePtr { return p + abi.DevicePtr(rng.IntN(4*n)) }
		small := func() int32 { return rng.Int32N(80) - 4 }
		attend := abi.AttendParams{
			Q: at(), KCache: at(), VCache: at(), Out: at(), LSE: at(), PartialOut: at(), PartialLSE: at(), Items: at(), Runs: at(),
			PageTable: at(), Positions: at(), Rope: at(), SinkLogits: at(), Members: at(), MemberOffsets: at(),
			QTokenStride: small(), OutTokenStride: small(), KVHeads: 1 + rng.Int32N(3), ItemCount: rng.Int32N(8), Scale: 1, RopeScale: 1,
		}
		for _, err := range []error{
			k.Extend(0, attend),
			k.SharedDecode(0, attend),
			k.Append(0, abi.AppendParams{K: at(), V: at(), KCache: at(), VCache: at(), Slots: at(), Positions: at(), Rope: at(), KTokenStride: small(), VTokenStride: small(), KVHeads: 2, Tokens: 5}),
			k.Merge(0, abi.MergeParams{PartialOut: at(), PartialLSE: at(), Out: at(), LSE: at(), SlotBegin: at(), SinkLogits: at(), OutTokenStride: small(), QHeads: 3, Tokens: 5}),
			k.Materialise(0, abi.MaterialiseParams{SrcK: at(), SrcV: at(), DstK: at(), DstV: at(), Copies: at(), PageTable: at(), Rope: at(), KVHeads: 2, CopyCount: 4}),
		} {
			if err != nil {
				t.Fatal(err)
			}
			if d.Synchronize(t.Context(), 0) != nil {
				failed++
			}
		}
	}
	if failed == 0 {
		t.Error("nothing failed")
	}
}

func TestNewKernelsRefuses(t *testing.T) {
	d := open(t, Options{})
	for want, change := range map[string]func(*Config){
		"CPU kernels of smollm2_135m: field Group is 0": func(c *Config) { c.Group = 0 },
		"HeadDim is -1":          func(c *Config) { c.HeadDim = -1 },
		"PageSize is 0":          func(c *Config) { c.PageSize = 0 },
		"Rope.RotaryDim is 64":   func(c *Config) { c.HeadDim = 32 },
		`Rope.Pairing is "twin"`: func(c *Config) { c.Rope.Pairing = "twin" },
		`Element is "int8"`:      func(c *Config) { c.Element = "int8" },
		`Encoding is ""`:         func(c *Config) { c.Encoding = "" },
		"none may be negative":   func(c *Config) { c.Window = -1 },
	} {
		c := smolLM()
		change(&c)
		_, err := NewKernels(d, c)
		wantError(t, want, err, want)
	}
}
