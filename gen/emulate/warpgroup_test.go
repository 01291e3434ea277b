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

// cacheMap is the tensor map of a cache [pages][heads][16][dim] or [pages][16][heads][dim].
func cacheMap(base abi.DevicePtr, dim int64, headMajor bool) cuda.TensorMap {
	place, head := cacheHeads*dim*2, dim*2
	if headMajor {
		place, head = dim*2, pageTokens*dim*2
	}
	return cuda.TensorMap{
		Base: base, Dims: [4]int64{dim, pageTokens, cacheHeads, cachePages},
		Strides: [3]int64{place, head, pageTokens * cacheHeads * dim * 2}, Box: [4]int{64, pageTokens, 1, 1},
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
				headMajor := launch%2 == 0
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
				qMap := cuda.TensorMap{
					Base: upload(t, d, encode(c.format, q)), Dims: [4]int64{int64(c.dim), 64, 1, 1},
					Strides: [3]int64{int64(c.dim) * 2, 16, 16}, Box: [4]int{64, 64, 1, 1},
				}
				table := make([]int32, len(pages))
				for i, p := range pages {
					table[i] = int32(p)
				}
				scores, out := upload(t, d, make([]float32, 64*c.keys)), upload(t, d, make([]float32, 64*c.dim))
				params := raw(t, struct {
					Q, K, V, Pages, Scores, Out abi.DevicePtr
					Head, Reserved              int32
				}{
					uploadMap(t, d, qMap),
					uploadMap(t, d, cacheMap(upload(t, d, encode(c.format, k)), int64(c.dim), headMajor)),
					uploadMap(t, d, cacheMap(upload(t, d, encode(c.format, v)), int64(c.dim), headMajor)),
					upload(t, d, table), scores, out, int32(head), 0,
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
