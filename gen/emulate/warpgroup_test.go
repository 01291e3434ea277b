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
