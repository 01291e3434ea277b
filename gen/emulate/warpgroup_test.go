package emulate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

const pageTokens, cacheHeads, cachePages = 16, 3, 20

// vectors are those of so many heads a token, `tokens` a page: [pages][tokens][heads][dim].
type vectors struct {
	tokens, heads, pages int
}

// tensorMap has boxes of a page's vectors of one head: all of their elements, or 64.
func (v vectors) tensorMap(base abi.DevicePtr, dim int, whole bool) cuda.TensorMap {
	blocks, token, columns := int64(v.heads*dim/64), int64(v.heads*dim*2), 1
	if whole {
		columns = dim / 64
	}
	return cuda.TensorMap{
		Base: base, Dims: [5]int64{64, 8, blocks, int64(v.tokens / 8), int64(v.pages)},
		Strides: [4]int64{token, 128, 8 * token, int64(v.tokens) * token}, Box: [5]int{64, 8, columns, v.tokens / 8, 1},
	}
}

// uploadMap returns the address of an encoded map, a multiple of 64.
func uploadMap(t testing.TB, d *emulate.Device, m cuda.TensorMap) abi.DevicePtr {
	t.Helper()
	encoded, err := d.EncodeTensorMap(m)
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Alloc(192)
	if err != nil {
		t.Fatal(err)
	}
	p = (p + 63) &^ 63
	if err := d.Upload(p, encoded[:]); err != nil {
		t.Fatal(err)
	}
	return p
}

// Small whole numbers: every sum is exact, and scores round to themselves.
func numbers(random *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(random.IntN(3) - 1)
	}
	return x
}

func encode(f format, x []float64) []uint16 {
	bits := map[float64]uint16{-1: f.round(-1), 0: 0, 1: f.round(1)}
	out := make([]uint16, len(x))
	for i, v := range x {
		out[i] = bits[v]
	}
	return out
}

func TestWarpgroupProducts(t *testing.T) {
	for _, c := range []struct {
		format    format
		keys, dim int
	}{
		{bf16, 64, 128}, {bf16, 128, 64}, {bf16, 256, 128}, {bf16, 64, 256}, {fp16, 128, 128}, {fp16, 64, 64}, {fp16, 256, 64},
	} {
		name := fmt.Sprintf("products_%s_%d_%d", c.format.name, c.keys, c.dim)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: uint64(c.keys)})
			kernel := load(t, d, "warpgroup", name)
			for launch := range 8 {
				random := rand.New(rand.NewPCG(uint64(launch), uint64(c.dim)))
				headMajor, whole := launch%2 == 0, launch/2%2
				q := numbers(random, 64*c.dim)
				cacheSize := cachePages * cacheHeads * pageTokens * c.dim
				k, v := numbers(random, cacheSize), numbers(random, cacheSize)
				pages := random.Perm(cachePages)[:c.keys/pageTokens]
				head := random.IntN(cacheHeads)
				index := func(key int) int { // of the key's first element
					page, place := pages[key/pageTokens], key%pageTokens
					if headMajor {
						return ((page*cacheHeads+head)*pageTokens + place) * c.dim
					}
					return ((page*pageTokens+place)*cacheHeads + head) * c.dim
				}
				// Where a head's tokens are one behind the other, it has pages of its own.
				cache, block, places := vectors{pageTokens, cacheHeads, cachePages}, int32(head*c.dim/64), make([]int32, len(pages))
				for i, p := range pages {
					places[i] = int32(p)
				}
				if headMajor {
					cache, block = vectors{pageTokens, 1, cachePages * cacheHeads}, 0
					for i, p := range pages {
						places[i] = int32(p*cacheHeads + head)
					}
				}
				mapOf := func(v vectors, x []float64) abi.DevicePtr {
					return uploadMap(t, d, v.tensorMap(upload(t, d, encode(c.format, x)), c.dim, whole == 1))
				}
				scores, out := upload(t, d, make([]float32, 64*c.keys)), upload(t, d, make([]float32, 64*c.dim))
				params := raw(t, struct {
					Q, K, V, Places, Scores, Out abi.DevicePtr
					Block, Whole                 int32
				}{
					mapOf(vectors{64, 1, 1}, q), mapOf(cache, k), mapOf(cache, v), upload(t, d, places), scores, out, block, int32(whole),
				})
				if err := kernel.Launch(0, one(256, 2*(64+2*c.keys)*c.dim+16), params); err != nil {
					t.Fatal(err)
				}
				gotScores, gotOut := download[float32](t, d, scores, 64*c.keys), download[float32](t, d, out, 64*c.dim)
				for i := range 64 {
					want := make([]float64, c.dim)
					for j := range c.keys {
						score := 0.0
						for e := range c.dim {
							score += q[i*c.dim+e] * k[index(j)+e]
						}
						if float64(gotScores[i*c.keys+j]) != score {
							t.Fatalf("launch %d: score (%d,%d) is %v, want %v", launch, i, j, gotScores[i*c.keys+j], score)
						}
						for e := range want {
							want[e] += score * v[index(j)+e]
						}
					}
					for e := range want {
						if float64(gotOut[i*c.dim+e]) != want[e] {
							t.Fatalf("launch %d: output (%d,%d) is %v, want %v", launch, i, e, gotOut[i*c.dim+e], want[e])
						}
					}
				}
			}
			counters := d.TakeCounters()
			if want := uint64(8 * (c.dim/16 + c.keys/16)); counters.WGMMAs != want {
				t.Errorf("%d products, want %d", counters.WGMMAs, want)
			}
			if want := uint64(8 * (64 + 2*c.keys) * c.dim * 2); counters.TensorCopyBytes != want {
				t.Errorf("%d bytes copied, want %d", counters.TensorCopyBytes, want)
			}
		})
	}
}

// A product of 16 columns whose four blocks lie anywhere in shared memory: also as those of a
// run's rotation, of which two are one.
func TestPlainProduct(t *testing.T) {
	const bytes, block = 4096, 128
	type place struct{ First, Leading, Stride, FromLeading, FromStride int32 } // as struct PlainParams has them
	places := []place{
		{0, block, 2 * block, 0, 0},
		{0, 2 * block, block, 0, 0},
		{0, 8 * block, 8 * block, 0, 0},
		{3 * block, 5 * block, 5 * block, 8 * block, 8 * block},
	}
	random := rand.New(rand.NewPCG(9, 10))
	distance := func() int32 { return 16 * int32(1+random.IntN(80)) } // three and a block are less than all bytes
	for range 10 {
		places = append(places, place{distance(), distance(), distance(), 0, 0}, place{distance(), distance(), distance(), distance(), distance()})
	}
	// The element that a thread has in a place of d, and of a's registers.
	element := func(thread, i int) (row, column int) {
		return thread/32*16 + thread%32/4 + i/2%2*8, thread%4*2 + i/4*8 + i%2
	}
	d := open(t, emulate.Options{})
	kernel := load(t, d, "warpgroup", "plain_product")
	for _, at := range places {
		for _, accumulate := range []int32{0, 1} {
			a, b, c := numbers(random, 64*16), numbers(random, bytes/2), numbers(random, 64*16)
			var registers []float64
			var sums []float32
			for i := range 128 * 8 {
				row, column := element(i/8, i%8)
				registers, sums = append(registers, a[row*16+column]), append(sums, float32(c[row*16+column]))
			}
			out := upload(t, d, sums)
			params := raw(t, struct {
				A, B, D              abi.DevicePtr
				Bytes                int32
				At                   place
				Accumulate, Reserved int32
			}{upload(t, d, encode(fp16, registers)), upload(t, d, encode(fp16, b)), out, bytes, at, accumulate, 0})
			if err := kernel.Launch(0, one(128, bytes), params); err != nil {
				t.Fatal(err)
			}
			for i, got := range download[float32](t, d, out, 128*8) {
				row, column := element(i/8, i%8)
				want := float64(accumulate) * c[row*16+column]
				for k := range 16 {
					offset := int(at.First) + k/8*int(at.Leading) + column/8*int(at.Stride) + column%8*16 + k%8*2
					want += a[row*16+k] * b[offset/2]
				}
				if float64(got) != want {
					t.Fatalf("%+v: (%d,%d) is %v, want %v", at, row, column, got, want)
				}
			}
		}
	}
	if counters, want := d.TakeCounters(), uint64(2*len(places)); counters.WGMMAs != want {
		t.Errorf("%d products, want %d", counters.WGMMAs, want)
	}
}
