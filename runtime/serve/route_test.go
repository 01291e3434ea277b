package serve_test

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/serve"
	"github.com/kgen-project/kgen/tests/toy"
)

// tuned is kernels with two choices for extend, of which short blocks of query tokens
// over few keys get the first. They differ in how sequences are cut, and may take items
// of several parts.
type tuned struct {
	serve.Kernels
	more     int // further choices, that no sequence gets
	folds    bool
	items    *int32 // launched so far; nil: nobody counts
	launched map[kernel.Choice]int
}

func (k tuned) Choices(kind abi.Kind) []kernel.Choice {
	rows, keys := k.Tile(kind)
	all := []kernel.Choice{{Kind: kind, Rows: rows, Keys: keys, Blocks: 2, Tokens: 256, Folds: k.folds}}
	if kind == abi.KindExtend {
		for i := range 1 + k.more {
			all = append(all, kernel.Choice{Kind: kind, Index: 1 + i, Rows: rows, Keys: keys, Blocks: 16 + i, Tokens: 64, Folds: k.folds})
		}
	}
	return all
}

func (k tuned) Choose(kind abi.Kind, query, keys int) kernel.Choice {
	all := k.Choices(kind)
	if kind == abi.KindExtend && (query > 40 || keys > 500) {
		return all[1]
	}
	return all[0]
}

func (k tuned) Attend(s cuda.Stream, c kernel.Choice, p abi.AttendParams) error {
	k.launched[c]++
	if k.items != nil {
		*k.items += p.ItemCount
	}
	switch c.Kind {
	case abi.KindPrefill:
		return k.Prefill(s, p)
	case abi.KindExtend:
		return k.Extend(s, p)
	}
	return k.Decode(s, p)
}

func (tuned) MapChoice(kernel.Choice, abi.DevicePtr, abi.DevicePtr, int, int) (*kernel.CacheMaps, error) {
	return &kernel.CacheMaps{}, nil
}

// Which kernel a sequence gets depends on its own lengths, so its bits are those that
// it has alone, whatever the others of its batch get.
func TestSameBitsWithTunedKernels(t *testing.T) {
	m := toy.Small()
	dev := cpu.Open(cpu.Options{Workers: 2})
	k := tuned{Kernels: unshared{cpuKernels(t, dev, m)}, launched: map[kernel.Choice]int{}}
	k.folds = true
	testSameBits(t, benchOf(t, dev, k, m, serve.Options{Pages: 6000, HostBytes: 1 << 30}))
	for _, kind := range []abi.Kind{abi.KindPrefill, abi.KindExtend, abi.KindDecode} {
		for _, c := range k.Choices(kind) {
			if k.launched[c] == 0 {
				t.Errorf("%s: choice %d was never launched", kind, c.Index)
			}
		}
	}
}

// A step of both sorts of extend, and of decode, gives what the oracle gives.
func TestTunedStep(t *testing.T) {
	m := toy.Small()
	dev := cpu.Open(cpu.Options{Workers: 2})
	k := tuned{Kernels: unshared{cpuKernels(t, dev, m)}, launched: map[kernel.Choice]int{}}
	b := benchOf(t, dev, k, m, serve.Options{Pages: 600})
	var batch []serve.Entry
	var requests []*toy.Request
	var tokens []int32
	for i, n := range []int{1, 60, 20, 1, 90, 30} {
		s, err := b.Engine.Open(nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		own := toy.Document(uint64(i), n)
		batch = append(batch, serve.Entry{Sequence: s, Tokens: n})
		requests = append(requests, &toy.Request{Own: own})
		tokens = append(tokens, own...)
	}
	clear(k.launched)
	outs, err := b.Step(t.Context(), batch, tokens)
	if err != nil {
		t.Fatal(err)
	}
	row := 0
	for i, r := range requests {
		if err := b.Compare(r, batch[i].Tokens, outs, row); err != nil {
			t.Errorf("sequence %d: %v", i, err)
		}
		row += batch[i].Tokens
	}
	want := append(k.Choices(abi.KindExtend), k.Choices(abi.KindDecode)...)
	for c, n := range k.launched {
		if !slices.Contains(want, c) || n != m.Layers {
			t.Errorf("%+v: %d launches", c, n)
		}
	}
	if len(k.launched) != len(want) {
		t.Errorf("launched %v, want %v", k.launched, want)
	}
}

// Kernels that fold get fewer items in a step of several sequences, each with the bits that it has alone; but where batching is
// fastest: then they are right to within rounding.
func TestFoldedStep(t *testing.T) {
	step := func(folds bool, batching string, which ...int) (outs [][]byte, items int32) {
		m := toy.Small()
		m.Batching = batching
		dev := cpu.Open(cpu.Options{Workers: 2})
		k := tuned{Kernels: unshared{cpuKernels(t, dev, m)}, launched: map[kernel.Choice]int{}, folds: folds, items: &items}
		b := benchOf(t, dev, k, m, serve.Options{Pages: 2000})
		var batch []serve.Entry
		for range which {
			s, err := b.Engine.Open(nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			batch = append(batch, serve.Entry{Sequence: s})
		}
		for _, n := range []int{600, 41} { // the first has one part a tile
			var tokens []int32
			for i, document := range which {
				batch[i].Tokens = n + document
				tokens = append(tokens, toy.Document(uint64(document), n+document)...)
			}
			items = 0
			var err error
			if outs, err = b.Step(t.Context(), batch, tokens); err != nil {
				t.Fatal(err)
			}
		}
		return outs, items
	}
	all := []int{0, 1, 2, 3, 4}
	_, single := step(false, "bitwise", all...)
	got, folded := step(true, "bitwise", all...)
	var want [][]byte // of each layer, one sequence behind the other
	for _, i := range all {
		alone, _ := step(true, "bitwise", i)
		want = append(want, make([][]byte, len(alone)-len(want))...)
		for layer := range alone {
			want[layer] = append(want[layer], alone[layer]...)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("other bits in a step of several sequences")
	}
	if folded >= single {
		t.Errorf("%d items, %d of one part", folded, single)
	}
	fastest, items := step(true, "fastest", all...)
	if items != folded || reflect.DeepEqual(fastest, want) {
		t.Errorf("fastest: %d items, folded %d; or the bits of each part by itself", items, folded)
	}
	for i := range want {
		want, got := numeric.BF16.Decode(want[i]), numeric.BF16.Decode(fastest[i])
		for j := range want {
			if !(math.Abs(got[j]-want[j]) <= 2*numeric.BF16.Epsilon()*max(1, math.Abs(want[j]))) {
				t.Fatalf("layer %d, output %d: %g by the fastest, %g bitwise", i, j, got[j], want[j])
			}
		}
	}
}

// Where batching is fastest, the keys of a step's sequences count together.
func TestChosenByTheStep(t *testing.T) {
	for batching, want := range map[string]int{"bitwise": 0, "fastest": 1} {
		m := toy.Small()
		m.Batching = batching
		dev := cpu.Open(cpu.Options{Workers: 2})
		k := tuned{Kernels: unshared{cpuKernels(t, dev, m)}, launched: map[kernel.Choice]int{}}
		b := benchOf(t, dev, k, m, serve.Options{Pages: 600})
		var batch []serve.Entry
		var requests []*toy.Request
		for range 3 {
			s, err := b.Engine.Open(nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			batch = append(batch, serve.Entry{Sequence: s})
			requests = append(requests, &toy.Request{})
		}
		for _, n := range []int{250, 30} { // each of 280 in the end, and all of 840
			clear(k.launched)
			var tokens []int32
			for i := range batch {
				batch[i].Tokens = n
				own := toy.Document(uint64(i), n)
				requests[i].Own = append(requests[i].Own, own...)
				tokens = append(tokens, own...)
			}
			outs, err := b.Step(t.Context(), batch, tokens)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range requests {
				if err := b.Compare(r, n, outs, i*n); err != nil {
					t.Errorf("%s, sequence %d: %v", batching, i, err)
				}
			}
		}
		if c := k.Choices(abi.KindExtend)[want]; len(k.launched) != 1 || k.launched[c] != m.Layers {
			t.Errorf("%s: launched %+v, want choice %d", batching, k.launched, want)
		}
	}
}

// byQuery is kernels of which extend has one for sequences of up to 40 query tokens, of two
// blocks a tile, one for those of up to 100, and one for others.
type byQuery struct{ tuned }

func (k byQuery) Choices(kind abi.Kind) []kernel.Choice {
	all := k.tuned.Choices(kind)[:1]
	if kind == abi.KindExtend {
		c := all[0]
		c.Cluster, all[0].Cluster = 1, 2
		for i := range 2 {
			c.Index, c.Blocks = 1+i, 16+i
			all = append(all, c)
		}
	}
	return all
}

func (k byQuery) Choose(kind abi.Kind, query, _ int) kernel.Choice {
	all := k.Choices(kind)
	switch {
	case kind != abi.KindExtend || query <= 40:
		return all[0]
	case query <= 100:
		return all[1]
	}
	return all[2]
}

// Where batching is fastest, all sequences of a step are one launch, by what suits most of its
// work; of two blocks a tile only where that suits all.
func TestOneLaunchOfAStep(t *testing.T) {
	for _, test := range []struct {
		batching string
		queries  []int
		want     []int // choices
	}{
		{"bitwise", []int{30, 60, 120, 1}, []int{0, 1, 2}},
		{"fastest", []int{30, 60, 120, 1}, []int{2}},
		{"fastest", []int{30, 38, 1, 40}, []int{0}},
		{"fastest", []int{30, 60, 38, 40}, []int{1}},
		{"fastest", []int{99, 99, 99, 101}, []int{1}},
		{"fastest", []int{1, 2}, nil}, // all in decode
	} {
		m := toy.Small()
		m.Batching = test.batching
		dev := cpu.Open(cpu.Options{Workers: 2})
		k := byQuery{tuned{Kernels: unshared{cpuKernels(t, dev, m)}, launched: map[kernel.Choice]int{}}}
		b := benchOf(t, dev, k, m, serve.Options{Pages: 600})
		var batch []serve.Entry
		var tokens []int32
		for i, n := range test.queries {
			s, err := b.Engine.Open(nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			batch = append(batch, serve.Entry{Sequence: s, Tokens: n})
			tokens = append(tokens, toy.Document(uint64(i), n)...)
		}
		outs, err := b.Step(t.Context(), batch, tokens)
		if err != nil {
			t.Fatal(err)
		}
		row := 0
		for i, n := range test.queries {
			if err := b.Compare(&toy.Request{Own: tokens[row : row+n]}, n, outs, row); err != nil {
				t.Errorf("%s %d, sequence %d: %v", test.batching, test.queries, i, err)
			}
			row += n
		}
		var got []int
		for _, c := range k.Choices(abi.KindExtend) {
			if k.launched[c] > 0 {
				got = append(got, c.Index)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s %d: choices %d, want %d", test.batching, test.queries, got, test.want)
		}
	}
}

// ahead is kernels of which one reads keys that are rotated ahead of it, without what that takes.
type ahead struct{ tuned }

func (k ahead) Choices(kind abi.Kind) []kernel.Choice {
	all := k.tuned.Choices(kind)
	all[0].KeysAhead = kind == abi.KindExtend
	return all
}

func TestKeysAheadWithoutRotator(t *testing.T) {
	m := toy.Small()
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	_, err := serve.New(dev, ahead{tuned{Kernels: cpuKernels(t, dev, m)}}, m, serve.Options{Pages: 10})
	if err == nil || !strings.Contains(err.Error(), "a kernel of extend reads keys that are rotated ahead of it, and serve_test.ahead has no MapKeys and Materialise") {
		t.Errorf("error %v", err)
	}
}

func TestTooManyChoices(t *testing.T) {
	m := toy.Small()
	dev := cpu.Open(cpu.Options{})
	defer dev.Close()
	_, err := serve.New(dev, tuned{Kernels: cpuKernels(t, dev, m), more: 8}, m, serve.Options{Pages: 10})
	if err == nil || !strings.Contains(err.Error(), "10 kernels of extend; an engine takes 8") {
		t.Errorf("error %v", err)
	}
}
