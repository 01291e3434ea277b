package cpu

import (
	"bytes"
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/rope"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// part is random results of two rows; now and then a row has seen no key.
func part(rng *rand.Rand) results {
	const dim = 3
	r := results{lse: []float32{float32(10 * rng.NormFloat64()), float32(10 * rng.NormFloat64())}}
	for range 2 * dim {
		r.output = append(r.output, float32(rng.NormFloat64()))
	}
	if i := rng.IntN(4); i < 2 {
		r.lse[i] = negativeInfinity
		clear(r.output[i*dim:][:dim])
	}
	return r
}

func clone(r results) results { return results{slices.Clone(r.output), slices.Clone(r.lse)} }

// foldAll is what a folder makes of parts.
func foldAll(parts []results) results {
	var f folder
	for i := range parts {
		r := clone(parts[i])
		if i+1 == len(parts) {
			f.last(&r)
			return r
		}
		f.add(&r)
	}
	return results{}
}

// tree is the same by halves: the largest power of two of parts before the others.
func tree(parts []results) results {
	r := clone(parts[len(parts)-1])
	if n := len(parts); n > 1 {
		first := 1 << (bits.Len(uint(n-1)) - 1)
		r = tree(parts[first:])
		r.fold(tree(parts[:first]))
	}
	return r
}

// Parts fold in a tree that has those of every group of a power of two as a branch.
func TestFolder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for n := 1; n <= 70; n++ {
		var parts []results
		for range n {
			parts = append(parts, part(rng))
		}
		want := foldAll(parts)
		if got := tree(parts); !reflect.DeepEqual(got, want) {
			t.Fatalf("%d parts: %v, by halves %v", n, want, got)
		}
		for of := 2; of <= 128; of *= 2 {
			var groups []results
			for group := range slices.Chunk(parts, of) {
				groups = append(groups, foldAll(group))
			}
			if got := foldAll(groups); !reflect.DeepEqual(got, want) {
				t.Fatalf("%d parts: %v, in groups of %d %v", n, want, of, got)
			}
		}
	}
}

func TestFoldIsRight(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 3))
	for range 200 {
		parts := []results{part(rng), part(rng), part(rng), part(rng), part(rng)}
		got := foldAll(parts)
		for row := range 2 {
			sum, output := 0.0, make([]float64, 3)
			for _, p := range parts {
				w := math.Exp2(float64(p.lse[row]))
				sum += w
				for d := range output {
					output[d] += w * float64(p.output[3*row+d])
				}
			}
			if want := math.Log2(sum); math.Abs(float64(got.lse[row])-want) > 1e-5*(1+math.Abs(want)) {
				t.Errorf("lse %v, want %v", got.lse[row], want)
			}
			for d, x := range output {
				if sum > 0 {
					x /= sum
				}
				if math.Abs(float64(got.output[3*row+d])-x) > 1e-5 {
					t.Errorf("output %v, want %v", got.output[3*row+d], x)
				}
			}
		}
	}
}

// foldConfigs are small shapes with every mask, and an encoding each.
func foldConfigs() []Config {
	rule := rope.Rule{Type: "default", Theta: 10000, RotaryDim: 16}
	v, err := rule.Resolve()
	if err != nil {
		panic(err)
	}
	c := Config{Name: "fold", Group: 3, HeadDim: 16, VHeadDim: 16, Element: BF16, Rope: v, PageSize: 4, Encoding: Segment}
	window := c
	window.Encoding, window.Window, window.SinkTokens = Raw, 40, 5
	sinks := c
	sinks.Encoding, sinks.SinkLogits, sinks.SoftCap = Baked, true, 3
	return []Config{c, window, sinks}
}

// eachFoldStep runs a test on random steps of each shape, and check when they are done.
func eachFoldStep(t *testing.T, test func(t *testing.T, seed uint64, s *foldStep), check func(t *testing.T)) {
	for i, c := range foldConfigs() {
		t.Run(string(c.Encoding), func(t *testing.T) {
			dev := Open(Options{Workers: 2})
			defer dev.Close()
			k, err := NewKernels(dev, c)
			if err != nil {
				t.Fatal(err)
			}
			for seed := range uint64(40) {
				test(t, seed, newFoldStep(t, dev, k, rand.New(rand.NewPCG(seed, uint64(i)))))
			}
			check(t)
		})
	}
}

// Parts that are walked as one give the results of those that are folded, but for rounding.
func TestWholeItems(t *testing.T) {
	others := 0
	eachFoldStep(t, func(t *testing.T, seed uint64, s *foldStep) {
		s.options.Fold, s.options.PartsPerItem = true, 1<<(1+seed%6)
		folded, _ := s.run(t)
		s.options.Whole = true
		whole, _ := s.run(t)
		if !bytes.Equal(whole, folded) {
			others++
		}
		want, got := numeric.BF16.Decode(folded), numeric.BF16.Decode(whole)
		c := &s.kernels.config
		outputs := s.tokens * int(s.attend.KVHeads) * c.Group * c.VHeadDim
		for j := range want[:outputs] {
			if !(math.Abs(got[j]-want[j]) <= 2*numeric.BF16.Epsilon()*max(1, math.Abs(want[j]))) {
				t.Fatalf("seed %d: output %d is %g, folded %g", seed, j, got[j], want[j])
			}
		}
	}, func(t *testing.T) {
		if others < 10 {
			t.Errorf("%d of 40 steps differ at all", others)
		}
		others = 0
	})
}

// However the parts of a step are grouped into items, its results have the same bits.
func TestGroupsGiveTheSameBits(t *testing.T) {
	several := 0
	eachFoldStep(t, func(t *testing.T, seed uint64, s *foldStep) {
		s.options.Fold = false
		want, _ := s.run(t)
		for _, n := range []int{0, 2, 4, 8, 64} {
			s.options.Fold, s.options.PartsPerItem = true, n
			got, lists := s.run(t)
			if !bytes.Equal(got, want) {
				t.Fatalf("seed %d: %d parts an item give other bits: items %+v", seed, lists.PartsPerItem, lists.Items)
			}
			for _, item := range lists.Items {
				if item.Scratch > 0 {
					several++
				}
			}
		}
	}, func(t *testing.T) {
		if several < 100 {
			t.Errorf("%d items of several parts", several)
		}
		several = 0
	})
}

// foldStep is a step of random sequences.
type foldStep struct {
	dev       *Device
	kernels   *Kernels
	sequences []schedule.Sequence
	options   schedule.Options
	attend    abi.AttendParams
	tokens    int
}

func newFoldStep(t *testing.T, dev *Device, k *Kernels, rng *rand.Rand) *foldStep {
	t.Helper()
	c, kvHeads := k.config, 2
	s := &foldStep{dev: dev, kernels: k, options: schedule.Options{
		Rows: 12, Group: c.Group, Causal: true, Window: c.Window, SinkTokens: c.SinkTokens, MaxPosition: c.Rope.MaxPosition,
		PageSize: c.PageSize, SplitTokens: 4 + rng.IntN(30), MaxItems: 1 + rng.IntN(40),
	}}
	pages := 0
	var positions []int32
	for range 1 + rng.IntN(3) {
		sequence := schedule.Sequence{QueryBegin: int32(len(positions))}
		offset := 0
		for range rng.IntN(4) {
			n := 1 + rng.IntN(120)
			sequence.Segments = append(sequence.Segments, schedule.Segment{Page: int32(pages), Tokens: int32(n), Offset: int32(offset)})
			offset += n
			pages += (n + c.PageSize - 1) / c.PageSize
		}
		query := 1 + rng.IntN(9)
		own := query + rng.IntN(100)
		sequence.Segments = append(sequence.Segments, schedule.Segment{Page: int32(pages), Tokens: int32(own), Offset: int32(offset), Own: true})
		pages += (own + c.PageSize - 1) / c.PageSize
		for i := range query {
			positions = append(positions, int32(offset+own-query+i))
		}
		sequence.Positions = positions[sequence.QueryBegin:]
		s.sequences = append(s.sequences, sequence)
	}
	s.tokens = len(positions)
	table := make([]int32, pages)
	for i, p := range rng.Perm(pages) {
		table[i] = int32(p)
	}
	random := func(n int) abi.DevicePtr {
		bits := make([]uint16, n)
		for i := range bits {
			bits[i] = numeric.BF16.Bits(rng.NormFloat64())
		}
		return upload(t, dev, bits)
	}
	heads := kvHeads * c.Group
	sinks := make([]float32, heads)
	for i := range sinks {
		sinks[i] = float32(rng.NormFloat64())
	}
	s.attend = abi.AttendParams{
		Q: random(s.tokens * heads * c.HeadDim), KCache: random(pages * c.PageSize * kvHeads * c.HeadDim), VCache: random(pages * c.PageSize * kvHeads * c.VHeadDim),
		PageTable: upload(t, dev, table), Positions: upload(t, dev, positions), Rope: upload(t, dev, rope.Table(c.Rope)), SinkLogits: upload(t, dev, sinks),
		QTokenStride: int32(heads * c.HeadDim), OutTokenStride: int32(heads * c.VHeadDim), KVHeads: int32(kvHeads), Scale: 0.25, RopeScale: 1,
	}
	return s
}

// run returns the outputs and, behind them, the log-sum-exps.
func (s *foldStep) run(t *testing.T) ([]byte, schedule.Lists) {
	t.Helper()
	lists, err := schedule.Build(s.sequences, s.options)
	if err != nil {
		t.Fatal(err)
	}
	nan := func(n int) abi.DevicePtr {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(math.NaN())
		}
		return upload(t, s.dev, x)
	}
	heads, dim := int(s.attend.KVHeads)*s.kernels.config.Group, s.kernels.config.VHeadDim
	p := s.attend
	p.Items, p.Runs, p.ItemCount = upload(t, s.dev, lists.Items), upload(t, s.dev, lists.Runs), int32(len(lists.Items))
	p.PartialOut, p.PartialLSE = nan(lists.Slots*heads*dim), nan(lists.Slots*heads)
	p.Out, p.LSE = nan(s.tokens*heads*dim), nan(s.tokens*heads)
	err = s.kernels.Extend(0, p)
	if lists.Merged() > 0 {
		err = errors.Join(err, s.kernels.Merge(0, abi.MergeParams{
			PartialOut: p.PartialOut, PartialLSE: p.PartialLSE, Out: p.Out, LSE: p.LSE, SlotBegin: upload(t, s.dev, lists.SlotBegin),
			SinkLogits: p.SinkLogits, OutTokenStride: p.OutTokenStride, QHeads: int32(heads), Tokens: int32(s.tokens),
		}))
	}
	out, lse := make([]byte, elementBytes*s.tokens*heads*dim), make([]byte, 4*s.tokens*heads)
	err = errors.Join(err, s.dev.Synchronize(t.Context(), 0), s.dev.Download(out, p.Out), s.dev.Download(lse, p.LSE))
	if err != nil {
		t.Fatalf("%d parts an item: %v", s.options.PartsPerItem, err)
	}
	return append(out, lse...), lists
}
