// Package generated uses the committed output of the shipped specs as a server
// would: it imports the bindings and runs a request.
package generated

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/generated/llama2_7b"
	"github.com/kgen-project/kgen/generated/llama3"
	"github.com/kgen-project/kgen/generated/smollm2_135m"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/numeric"
	"github.com/kgen-project/kgen/runtime/schedule"
	"github.com/kgen-project/kgen/tests/oracle"
	"github.com/kgen-project/kgen/tests/testutil"
)

// TestKernelsHaveTheMethodsOfASet: who wants more of kernels than their launches, as an engine
// does, asks for methods that they may or may not have.
func TestKernelsHaveTheMethodsOfASet(t *testing.T) {
	set := reflect.TypeFor[*kernel.Set]()
	for _, kernels := range []reflect.Type{reflect.TypeFor[*llama2_7b.Kernels](), reflect.TypeFor[*llama3.Kernels](), reflect.TypeFor[*smollm2_135m.Kernels]()} {
		for i := range set.NumMethod() {
			want := set.Method(i)
			got, ok := kernels.MethodByName(want.Name)
			if !ok {
				t.Errorf("%v has no %s", kernels, want.Name)
				continue
			}
			if !slices.Equal(signature(got.Type), signature(want.Type)) {
				t.Errorf("%v.%s is %v, want %v", kernels, want.Name, got.Type, want.Type)
			}
		}
	}
}

// signature is the types of a method's parameters, behind the receiver, and of its results.
func signature(method reflect.Type) (types []reflect.Type) {
	for i := 1; i < method.NumIn(); i++ {
		types = append(types, method.In(i))
	}
	types = append(types, nil)
	for i := range method.NumOut() {
		types = append(types, method.Out(i))
	}
	return types
}

// TestManifests holds the committed folders to what they say of themselves, and
// every kernel to no spill and no local memory.
func TestManifests(t *testing.T) {
	for name, manifest := range map[string]func() (abi.Manifest, error){
		"llama2_7b": llama2_7b.Manifest, "llama3": llama3.Manifest, "smollm2_135m": smollm2_135m.Manifest,
	} {
		m, err := manifest()
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[abi.Kind]map[string]bool{}
		for _, k := range m.Kernels {
			source, err := os.ReadFile(filepath.Join("../../generated", name, k.Source))
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(source)
			if hex.EncodeToString(sum[:]) != k.SourceSHA256 {
				t.Errorf("%s: %s is not the source that the manifest names", name, k.Source)
			}
			if kinds[k.Kind] == nil {
				kinds[k.Kind] = map[string]bool{}
			}
			for _, target := range k.Targets {
				kinds[k.Kind][target.Target] = true
				if target.SpillStores+target.SpillLoads+target.StackBytes != 0 {
					t.Errorf("%s: %s for %s spills: %+v", name, k.Source, target.Target, target)
				}
				if target.Registers < 16 || target.Registers > 255 || len(target.CubinSHA256) != 64 {
					t.Errorf("%s: %s for %s: %+v", name, k.Source, target.Target, target)
				}
			}
		}
		for _, kind := range []abi.Kind{abi.KindAppend, abi.KindPrefill, abi.KindExtend, abi.KindDecode, abi.KindSharedDecode, abi.KindMerge, abi.KindMaterialise} {
			if !kinds[kind]["sm_80"] || !kinds[kind]["sm_90a"] {
				t.Errorf("%s: %s is made for %v", name, kind, kinds[kind])
			}
		}
	}
}

// Shapes of the spec; a launch has all of its heads here.
const (
	kvHeads    = smollm2_135m.KVHeads
	queryHeads = kvHeads * smollm2_135m.Group
	dim        = smollm2_135m.HeadDim
	pageSize   = smollm2_135m.PageSize
)

// chunk is an encoded document: its pages and what was encoded.
type chunk struct {
	tokens int
	page   int32 // its first; the rest follow
	k, v   []float64
}

// TestRequest encodes two documents once, at their own positions, and answers a
// request that places them somewhere else, in the other order.
func TestRequest(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip("the emulator needs a C++ compiler")
	}
	dev, err := emulate.Open(t.Context(), emulate.Options{CacheDir: testutil.Emulator(), Unoptimized: true, Seed: 1, Major: 8})
	if err != nil {
		t.Fatal(err)
	}
	d := memory{t: t, dev: dev}
	defer d.close()
	kernels, err := smollm2_135m.Open(t.Context(), dev, kernel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer kernels.Close()

	rng := rand.New(rand.NewPCG(1, 2))
	vectors := func(tokens, heads int) []float64 {
		x := make([]float64, tokens*heads*dim)
		for i := range x {
			x[i] = numeric.BF16.Round(rng.NormFloat64())
		}
		return x
	}
	bf16 := func(x []float64) []byte { return numeric.BF16.Encode(nil, x...) }

	const pages = 8
	kCache := d.alloc(pages * pageSize * kvHeads * dim * 2)
	vCache := d.alloc(pages * pageSize * kvHeads * dim * 2)
	rope := d.put(encoded(t, smollm2_135m.RopeTable()))
	encode := func(tokens int, page int32) chunk {
		c := chunk{tokens: tokens, page: page, k: vectors(tokens, kvHeads), v: vectors(tokens, kvHeads)}
		var slots, positions []int32
		for i := range int32(tokens) {
			slots = append(slots, page*pageSize+i)
			positions = append(positions, i)
		}
		if err := kernels.Append(0, abi.AppendParams{
			K: d.put(bf16(c.k)), V: d.put(bf16(c.v)), KCache: kCache, VCache: vCache,
			Slots: d.put(encoded(t, slots)), Positions: d.put(encoded(t, positions)), Rope: rope,
			KTokenStride: kvHeads * dim, VTokenStride: kvHeads * dim, KVHeads: kvHeads, Tokens: int32(tokens),
		}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second := encode(37, 0), encode(20, 3)

	// The second document comes first, far from where it was encoded.
	const tokens, begin = 5, 70_100
	positions := []int32{begin, begin + 1, begin + 2, begin + 3, begin + 4}
	own := encode(tokens, 5)
	var tile kernel.Artifact
	for _, a := range smollm2_135m.Bundle().Kernels {
		if a.Kind == abi.KindExtend {
			tile = a
			break
		}
	}
	lists, err := schedule.Build([]schedule.Sequence{{Positions: positions, Segments: []schedule.Segment{
		{Page: second.page, Tokens: int32(second.tokens), Offset: 70_000},
		{Page: first.page, Tokens: int32(first.tokens), Offset: 70_020},
		{Page: own.page, Tokens: tokens, Offset: begin, Own: true},
	}}}, schedule.Options{
		Rows: tile.Rows, Group: smollm2_135m.Group, Causal: smollm2_135m.Causal,
		MaxPosition: smollm2_135m.MaxPosition, PageSize: pageSize,
	})
	if err != nil {
		t.Fatal(err)
	}
	q := vectors(tokens, queryHeads)
	out := d.alloc(tokens * queryHeads * dim * 2)
	if err := kernels.Extend(0, abi.AttendParams{
		Q: d.put(bf16(q)), KCache: kCache, VCache: vCache, Out: out, Rope: rope,
		Items: d.put(encoded(t, lists.Items)), Runs: d.put(encoded(t, lists.Runs)),
		PageTable: d.put(encoded(t, []int32{0, 1, 2, 3, 4, 5, 6, 7})), Positions: d.put(encoded(t, positions)),
		QTokenStride: queryHeads * dim, OutTokenStride: queryHeads * dim, KVHeads: kvHeads,
		ItemCount: int32(len(lists.Items)), Scale: smollm2_135m.Scale, RopeScale: smollm2_135m.RopeScale,
	}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, tokens*queryHeads*dim*2)
	if err := dev.Download(got, out); err != nil {
		t.Fatal(err)
	}

	want := oracle.Attend(oracle.Problem{
		QueryHeads: queryHeads, KVHeads: kvHeads, HeadDim: dim, VHeadDim: dim,
		Rope: smollm2_135m.Rope(), Scale: smollm2_135m.Scale, Q: q,
		Positions: []int{begin, begin + 1, begin + 2, begin + 3, begin + 4},
		Segments: []oracle.Segment{
			{Offset: 70_000, Causal: oracle.All, K: second.k, V: second.v},
			{Offset: 70_020, Causal: oracle.All, K: first.k, V: first.v},
			{Offset: begin, Causal: 0, K: own.k, V: own.v},
		},
	}).Out
	var wrong, whole float64
	for i, x := range numeric.BF16.Decode(got) {
		wrong += (x - want[i]) * (x - want[i])
		whole += want[i] * want[i]
	}
	// A stored K, the rotated Q, the weights and the output are each rounded to 8 bits.
	if e := math.Sqrt(wrong / whole); !(e < 1e-2) {
		t.Errorf("relative error %.3g", e)
	}
}
