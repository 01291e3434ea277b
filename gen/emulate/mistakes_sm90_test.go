package emulate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// launchSM90 runs testdata/mistakes_sm90.cu on fresh buffers; without an error
// its output must be right. All blocks do the same.
func launchSM90(t testing.TB, d *emulate.Device, k cuda.Kernel, blocks int, which int32) error {
	t.Helper()
	const tiles, n = 5, 64
	random := rand.New(rand.NewPCG(7, 8))
	q, keys := numbers(random, n*n), numbers(random, tiles*n*n)
	out := upload(t, d, make([]float32, n*n))
	params := raw(t, struct {
		Q, K, Out    abi.DevicePtr
		Which, Tiles int32
	}{
		upload(t, d, encode(bf16, q)),
		uploadMap(t, d, cuda.TensorMap{
			Base: upload(t, d, encode(bf16, keys)), Dims: [5]int64{n, n, 1, 1, tiles},
			Strides: [4]int64{2 * n, 2 * n * n, 2 * n * n, 2 * n * n}, Box: [5]int{64, n, 1, 1, 1},
		}),
		out, which, tiles,
	})
	if err := k.Launch(0, row(blocks, 256, 3*64*128+4*128+5*8+8), params); err != nil {
		return err
	}
	got := download[float32](t, d, out, n*n)
	for i := range n {
		for j := range n {
			want := 0.0
			for tile := range tiles {
				for e := range n {
					want += q[i*n+e] * keys[(tile*n+j)*n+e]
				}
			}
			if float64(got[i*n+j]) != want {
				return fmt.Errorf("wrong output: (%d,%d) is %v, want %v", i, j, got[i*n+j], want)
			}
		}
	}
	return nil
}

// Each mistake must be found under every seed, and leave the device usable.
func TestMistakesSM90(t *testing.T) {
	const (
		deadlock = "deadlock: no thread can go on"
		lacks    = "arrivals and"
	)
	for _, c := range []struct {
		which int32
		what  string
		want  []string // one of them
	}{
		{0, "no mistake", nil},
		{1, "no fence for the asynchronous proxy", []string{"wrote it with no fence_async_shared afterwards"}},
		{2, "no barrier after ordinary stores", []string{"wrote it, with no barrier between", "with no wgmma_wait by its warp and barrier between"}},
		{3, "no wait for a tensor copy", []string{"without having waited for that copy's phase"}},
		{4, "no wait for an empty stage", []string{"with no wgmma_wait by its warp", "without having waited for that copy's phase", "expected too few bytes", "one arrival too many"}},
		{5, "a stage given back before its product was waited for", []string{"with no wgmma_wait by its warp"}},
		{6, "no wait for the last product", []string{"that was never waited for; warp"}},
		{7, "too few bytes expected", []string{"expected too few bytes", deadlock}},
		{8, "too many bytes expected", []string{"and 16 bytes"}},
		{9, "a barrier of too many arrivals", []string{lacks}},
		{10, "one arrival too many", []string{"one arrival too many: all 1 of phase 0"}},
		{11, "no barrier_init_fence", []string{"with no barrier_init_fence afterwards"}},
		{12, "no sync_threads after barrier_init", []string{"nobody initialised it", "with no sync_threads between"}},
		{13, "no wgmma_fence", []string{"no wgmma_fence since"}},
		{14, "an accumulator written to before the wait", []string{"was written to before the wait"}},
		{15, "no tensor map", []string{"are no tensor map"}},
		{16, "a crooked tensor map", []string{"is not a multiple of 64"}},
		{17, "a crooked destination", []string{"is not a multiple of 128"}},
		{18, "a warp without its products", []string{"that warps 0 to 3 have not all issued", "all warps of a warpgroup must execute the same"}},
		{19, "a lane with another operand", []string{"the lanes of a warp do not give the same operands"}},
		{20, "a warp with another operand", []string{"another warp of the warpgroup issued this product with other operands"}},
		{21, "a parity of 2", []string{"a parity of 2"}},
		{22, "two counts of one named barrier", []string{"threads here and of", deadlock}},
		{23, "more registers than there are", []string{"for registers that no warp gives"}},
		{24, "a warp that gives registers twice, another never", []string{"registers set (registers_take, registers_give)"}},
		{25, "a descriptor of another swizzle", []string{"has swizzle 3"}},
		{26, "a barrier overwritten", []string{"was overwritten"}},
		{27, "no commit", []string{"that was never waited for; warp", "with no wgmma_wait", "no wgmma_fence", deadlock}},
		{28, "a wait on another stage's barrier", []string{"without having waited for that copy's phase", deadlock}},
		{29, "a parity that does not change", []string{"with no wgmma_wait by its warp", "without having waited for that copy's phase", deadlock}},
		{30, "a copy that nobody waits for", []string{"a tensor_copy (line 44) that was never waited for"}},
		{31, "a barrier that nobody initialised", []string{"nobody initialised it"}},
		{32, "a barrier initialised twice", []string{"holds a barrier already"}},
		{33, "an accumulator read before the wait", []string{"wrong output: (0,0) is NaN"}},
		{34, "no mistake, by stmatrix", nil},
		{35, "no fence behind stmatrix", []string{"wrote it with no fence_async_shared afterwards"}},
		{36, "no barrier behind stmatrix", []string{"wrote it, with no barrier between", "with no wgmma_wait by its warp"}},
		{37, "two rows of stmatrix in one place", []string{"race: stmatrix_x4 (line 60) writes byte"}},
		{38, "a crooked row of stmatrix", []string{"stmatrix_x4 (line 60): shared address 0x"}},
		{39, "stmatrix over what a product reads", []string{"with no wgmma_wait by its warp", "wrote it, with no barrier between"}},
		{40, "a lane without its stmatrix", []string{"diverged warp"}},
		{41, "a descriptor without a swizzle", []string{"wrong output"}},
		{42, "a descriptor of a distance below zero", []string{"has bits that must be zero"}},
		{43, "one warp gives a stage back for all four", []string{"with no wgmma_wait by its warp"}},
		{44, "keys that begin amid eight rows", []string{"the descriptor of b begins 512 bytes behind a multiple of 1024"}},
		{45, "a warp with other registers than its warpgroup", []string{"registers a thread, but"}},
		{46, "the elected lane taken for lane 0", []string{"race: load_16", "race: store_16"}},
		{47, "a tensor map that nobody acquired", []string{"no thread of the block is known to have acquired the tensor map"}},
		{48, "a tensor map acquired with no barrier behind", []string{"no thread of the block is known to have acquired the tensor map"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: uint64(c.which), LaunchLimit: 5 * time.Second})
			for _, blocks := range []int{1, 2} { // of a cluster
				k := loadClustered(t, d, "mistakes_sm90", "mistakes_sm90", blocks)
				for range 20 / blocks {
					err := launchSM90(t, d, k, blocks, c.which)
					if len(c.want) == 0 {
						if err != nil {
							t.Fatal(err)
						}
						continue
					}
					if !containsOne(err, c.want) {
						t.Fatalf("cluster of %d: got error %v, want one of %q", blocks, err, c.want)
					}
				}
				if err := launchSM90(t, d, k, blocks, 0); err != nil {
					t.Errorf("a good launch afterwards: %v", err)
				}
			}
		})
	}
}

// Warps of a warpgroup must execute the same products, fences, commits and waits. Those of
// two warpgroups need not.
func TestWarpgroupsExecuteTheSame(t *testing.T) {
	const (
		others   = "all warps of a warpgroup must execute the same"
		fromCall = "from another call than warp"
	)
	for _, c := range []struct {
		which     int32
		what      string
		want      []string // all of them
		optimized bool     // it is found in an optimized library as well
	}{
		{0, "no mistake", nil, true},
		{1, "a fence called from two places", []string{"wgmma_fence (line 22): warp ", fromCall, others}, false},
		{2, "a product called from two places", []string{"Wgmma (line 23): warp ", fromCall, others}, false},
		{3, "a commit called from two places", []string{"wgmma_commit (line 24): warp ", fromCall, others}, false},
		{4, "a wait called from two places", []string{"wgmma_wait (line 25): warp ", fromCall, others}, false},
		{5, "a product called from two places by lanes of a warp", []string{"diverged warp: this lane arrives at Wgmma (line 23) from another call than lane"}, false},
		{6, "a warp with a fence of its own", []string{"wgmma_fence (line 36)", "wgmma_fence (line 38)", others}, true},
		{7, "a fence on two lines", []string{"wgmma_fence (line 37)", "wgmma_fence (line 38)", others}, true},
		{8, "a warp without its commits", []string{"wgmma_commit (line 24)", "wgmma_wait (line 25)", others}, true},
		{9, "a warp with one more fence", []string{"a wgmma_fence (line 46) that not all warps of a warpgroup have executed; warp 5"}, true},
		{10, "a warp with fences without an end", []string{"warp 5 is 65536 instructions ahead of another warp of its warpgroup"}, true},
	} {
		for _, unoptimized := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, unoptimized %v", c.what, unoptimized), func(t *testing.T) {
				t.Parallel()
				d := open(t, emulate.Options{Seed: uint64(c.which), Unoptimized: unoptimized})
				k := load(t, d, "together", "together")
				for range 20 {
					out := upload(t, d, make([]float32, 256*8))
					params := raw(t, struct {
						Out             abi.DevicePtr
						Which, Reserved int32
					}{out, c.which, 0})
					err := k.Launch(0, one(256, 1024), params)
					if c.want != nil && (c.optimized || unoptimized) {
						for _, want := range c.want {
							if !containsOne(err, []string{want}) {
								t.Fatalf("got error %v, want %q", err, want)
							}
						}
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					for i, got := range download[float32](t, d, out, 256*8) {
						if got != 4*16 { // rounds
							t.Fatalf("element %d is %v, want 64", i, got)
						}
					}
				}
			})
		}
	}
}
