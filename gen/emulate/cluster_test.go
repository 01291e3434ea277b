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

// launchClusters runs testdata/cluster.cu on fresh buffers; without an error its output must
// be right.
func launchClusters(t testing.TB, d *emulate.Device, k cuda.Kernel, clusters int, which int32) error {
	t.Helper()
	const tiles, n = 5, 64
	random := rand.New(rand.NewPCG(9, 10))
	q, keys := numbers(random, clusters*2*n*n), numbers(random, (tiles+clusters)*n*n)
	out := upload(t, d, make([]float32, clusters*n*n))
	params := raw(t, struct {
		Q, K, Out    abi.DevicePtr
		Which, Tiles int32
	}{
		upload(t, d, encode(bf16, q)),
		uploadMap(t, d, cuda.TensorMap{
			Base: upload(t, d, encode(bf16, keys)), Dims: [5]int64{n, n, 1, 1, int64(tiles + clusters)},
			Strides: [4]int64{2 * n, 2 * n * n, 2 * n * n, 2 * n * n}, Box: [5]int{64, n / 2, 1, 1, 1},
		}),
		out, which, tiles,
	})
	if err := k.Launch(0, row(2*clusters, 160, 3*64*128+4096+4096+7*8), params); err != nil {
		return err
	}
	got := download[float32](t, d, out, clusters*n*n)
	for at := range got {
		c, i, j := at/(n*n), at/n%n, at%n
		want := 0.0
		for tile := range tiles {
			for e := range n {
				key := keys[((c+tile)*n+j)*n+e]
				want += (q[(2*c*n+i)*n+e] + q[((2*c+1)*n+i)*n+e]) * key
			}
		}
		if float64(got[at]) != want {
			return fmt.Errorf("wrong output: (%d,%d) of cluster %d is %v, want %v", i, j, c, got[at], want)
		}
	}
	return nil
}

func TestClusters(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: seed})
			k := load(t, d, "cluster", "cluster")
			d.TakeCounters()
			for range 4 {
				if err := launchClusters(t, d, k, 3, 0); err != nil {
					t.Fatal(err)
				}
			}
			const launches, tiles, blocks = 4, 5, 6
			c := d.TakeCounters()
			if c.Blocks != launches*blocks || c.WGMMAs != launches*blocks*tiles*4 || c.TensorCopyBytes != launches*blocks*tiles*64*128 {
				t.Errorf("got %+v", c)
			}
		})
	}
}

// Each mistake must be found under every seed, and leave the device usable.
func TestMistakesOfClusters(t *testing.T) {
	const (
		deadlock = "deadlock: no thread can go on"
		begun    = "may not have begun: no cluster_start or cluster_sync before"
		product  = "with no wgmma_wait by its warp and barrier between"
		tensor   = "without having waited for that copy's phase"
		few      = "expected too few bytes"
		ended    = "whose shared memory this is in, has ended"
		later    = "in its shared memory may come later: no thread here has waited for it"
		foreign  = "is an address of the cluster, that shared_of made for rank"
	)
	for _, c := range []struct {
		which int32
		what  string
		want  []string // one of them
	}{
		{0, "no mistake", nil},
		{1, "sync_threads for cluster_sync", []string{begun}},
		{2, "cluster_sync before barrier_init", []string{"with no cluster_start or cluster_sync between", "nobody initialised it"}},
		{3, "only a block's own half expected", []string{few, deadlock, tensor, product}},
		{4, "more than both halves expected", []string{"and 16 bytes"}},
		{5, "a stage not given back to the other block", []string{product, tensor, few}},
		{6, "a stage given back before its product was waited for", []string{product}},
		{7, "fewer bytes expected than are stored", []string{few, deadlock}},
		{8, "no bytes expected", []string{few, deadlock, tensor}},
		{9, "no fence behind the queries", []string{"wrote it with no fence_async_shared afterwards"}},
		{10, "a store counted by the block's own barrier", []string{"store_8_async (line 70): the barrier is in block ("}},
		{12, "no cluster_sync at the end", []string{"the block ends, but barrier_arrive_at (line 29) of thread", ended}},
		{13, "a thread that does not reach cluster_sync", []string{"wait at cluster_sync (line 153), to which 318 of the cluster's 320 threads have come"}},
		{14, "an arrival at an address that is not the cluster's", []string{"is no address of the cluster: shared_of makes those"}},
		{15, "a block's own arrival at an address of the cluster", []string{foreign}},
		{16, "a copy to an address of the cluster", []string{foreign}},
		{17, "a store past shared memory", []string{"are outside of shared memory of block ("}},
		{18, "a rank that is not in the cluster", []string{"rank 2 is not one of the cluster's 2"}},
		{19, "a crooked store", []string{"is not a multiple of 8"}},
		{20, "one remote arrival too many", []string{"one arrival too many", product, tensor, few, deadlock}},
		{21, "two threads' stores in one place", []string{"race: store_8_async (line 70) writes byte"}},
		{22, "a store over what the other block's product reads", []string{product, tensor}},
		{23, "no wait for the other block's stores", []string{tensor, later, "read it, with no barrier between"}},
		{24, "stores that nobody waits for", []string{"a store_8_async (line 70) that was never waited for"}},
		{25, "a block that ends at once", []string{ended, later, "that was never waited for", deadlock}},
		{26, "a product with what is in the other block", []string{foreign}},
		{27, "a store at an address that is not the cluster's", []string{"is no address of the cluster: shared_of makes those"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: uint64(c.which), LaunchLimit: 5 * time.Second})
			k := load(t, d, "cluster", "cluster")
			for range 20 {
				err := launchClusters(t, d, k, 2, c.which)
				if len(c.want) == 0 {
					if err != nil {
						t.Fatal(err)
					}
					continue
				}
				if !containsOne(err, c.want) {
					t.Fatalf("got error %v, want one of %q", err, c.want)
				}
			}
			if err := launchClusters(t, d, k, 2, 0); err != nil {
				t.Errorf("a good launch afterwards: %v", err)
			}
		})
	}
}

// launchExchange runs testdata/exchange.cu; without an error its output must be right.
func launchExchange(t testing.TB, d *emulate.Device, k cuda.Kernel, clusters, rounds int, which int32) error {
	t.Helper()
	const writers = 64
	out := upload(t, d, make([]float32, 2*clusters*rounds*writers))
	params := raw(t, struct {
		Out           abi.DevicePtr
		Which, Rounds int32
	}{out, which, int32(rounds)})
	if err := k.Launch(0, row(2*clusters, writers+32, 3*writers*16+3*8), params); err != nil {
		return err
	}
	number := func(block, round, thread int) float32 { return float32(block*10000 + round*100 + thread) }
	for at, got := range download[float32](t, d, out, 2*clusters*rounds*writers) {
		block, round, thread := at/writers/rounds, at/writers%rounds, at%writers^37
		want := number(block^1, round, thread)
		if which == 1 {
			want += number(block, round, thread)
		}
		if got != want {
			return fmt.Errorf("wrong output: thread %d of block %d has %v in round %d, want %v", at%writers, block, got, round, want)
		}
	}
	return nil
}

// Copies from one block's shared memory to the other's, and to its own beside.
func TestSharedCopies(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: seed})
			k := load(t, d, "exchange", "exchange")
			d.TakeCounters()
			const clusters, rounds, bytes = 3, 5, 1024
			for copies := range uint64(2) { // to its own
				for range 4 {
					if err := launchExchange(t, d, k, clusters, rounds, int32(copies)); err != nil {
						t.Fatal(err)
					}
				}
				if c, want := d.TakeCounters(), 4*2*clusters*rounds*bytes*(1+copies); c.SharedCopyBytes != want || c.TensorCopyBytes != 0 {
					t.Errorf("%d bytes copied, %d of tensors, want %d and none", c.SharedCopyBytes, c.TensorCopyBytes, want)
				}
			}
		})
	}
}

func TestMistakesOfSharedCopies(t *testing.T) {
	const (
		deadlock = "deadlock: no thread can go on"
		few      = "expected too few bytes"
		early    = "without having waited for that copy's phase"
		reads    = "that a bulk copy of thread 64 reads, with no wait for that copy's phase of its barrier, and barrier between"
		read     = "read it, with no barrier between"
		wrote    = "wrote it, with no barrier between"
		local    = "is no address of the cluster: shared_of makes those"
		crooked  = "is not a multiple of 16"
		outside  = "are outside of shared memory"
		unread   = "the block ends, but shared_copy_to (line 29) may not have read its shared memory yet"
		many     = "one arrival too many"
	)
	for _, c := range []struct {
		which int32
		what  string
		want  []string // one of them
	}{
		{2, "a destination that is not the cluster's", []string{local}},
		{3, "a source that is the other block's", []string{"is an address of the cluster, that shared_of made for rank"}},
		{4, "a barrier that is not the cluster's", []string{local}},
		{5, "no wait for what is copied", []string{wrote, reads, few, early, read, many}},
		{6, "no fence behind what is copied", []string{"wrote it with no fence_async_shared afterwards"}},
		{7, "no wait for the copy", []string{early, read, reads, few, deadlock}},
		{8, "no bytes expected", []string{few, deadlock, early, read}},
		{9, "too few bytes expected", []string{few, deadlock, early, read}},
		{10, "too many bytes expected", []string{"and 16 bytes"}},
		{11, "a source overwritten before the other block has let go of it", []string{reads}},
		{12, "a source overwritten at once", []string{reads, wrote, "with no fence_async_shared"}},
		{13, "a crooked destination", []string{crooked}},
		{14, "a crooked source", []string{crooked}},
		{15, "half a chunk", []string{"1016 bytes are not 16 or a multiple"}},
		{16, "a destination past shared memory", []string{outside}},
		{17, "a source past shared memory", []string{outside}},
		{18, "a barrier of another block than the destination", []string{"the barrier is in block ("}},
		{19, "no barrier_init_fence", []string{"with no barrier_init_fence and, after that, cluster_start or cluster_sync between"}},
		{20, "a block that ends before its last copy is there", []string{unread}},
		{21, "no wait for the last copy", []string{unread, early, read, deadlock}},
		{22, "nothing copied", []string{"0 bytes are not 16 or a multiple"}},
		{23, "no cluster_start", []string{"may not have begun: no cluster_start or cluster_sync before", "nobody initialised it", "cluster_start or cluster_sync between"}},
		{24, "a block that ends at once", []string{"whose shared memory this is in, has ended", "may come later: no thread here has waited for it", deadlock}},
		{25, "no sync_threads ahead of cluster_start", []string{"with no sync_threads between"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: uint64(c.which), LaunchLimit: 5 * time.Second})
			k := load(t, d, "exchange", "exchange")
			for range 20 {
				if err := launchExchange(t, d, k, 2, 5, c.which); !containsOne(err, c.want) {
					t.Fatalf("got error %v, want one of %q", err, c.want)
				}
			}
			if err := launchExchange(t, d, k, 2, 5, 0); err != nil {
				t.Errorf("a good launch afterwards: %v", err)
			}
		})
	}
}

// A cluster of one block, whose entry point says so by a constant; and launches that no
// cluster of two can be of.
func TestClusterOfOne(t *testing.T) {
	d := open(t, emulate.Options{})
	k := load(t, d, "cluster", "alone")
	out := upload(t, d, make([]float32, 64))
	launch := func(which int32) error {
		params := raw(t, struct {
			Out             abi.DevicePtr
			Which, Reserved int32
		}{out, which, 0})
		return k.Launch(0, row(3, 64, 1032), params)
	}
	expect(t, "alone", launch(0), "")
	for i, x := range download[float32](t, d, out, 64) {
		if x != float32(i^37) {
			t.Errorf("thread %d has %v, want %d", i, x, i^37)
		}
	}
	expect(t, "a copy to both of one", launch(1), "the block is in no cluster of two")
	two := load(t, d, "cluster", "cluster")
	for _, c := range []struct {
		blocks, threads int
		want            string
	}{
		{3, 160, "a grid of 3 blocks in x is not whole clusters of 2"},
		{2, 544, "blocks of 544 threads: the emulator has blocks of up to 512 in clusters"},
	} {
		err := two.Launch(0, row(c.blocks, c.threads, 40000), make([]byte, 32))
		expect(t, fmt.Sprintf("%d blocks of %d threads", c.blocks, c.threads), err, c.want)
	}
	m, err := d.Load(cuda.Image{Name: "wide", Source: []byte(`extern "C" __global__ void __cluster_dims__(1, 2, 1) __launch_bounds__(32) wide(const int x) {}`)})
	if err != nil {
		t.Fatal(err)
	}
	wide, err := m.Kernel("wide")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "a cluster along y", wide.Launch(0, one(32, 0), make([]byte, 4)), "clusters of (1,1,1) and (2,1,1) blocks only")
}

func TestPlacesInClusters(t *testing.T) {
	const blocks, threads = 6, 512
	d := open(t, emulate.Options{})
	k := load(t, d, "cluster", "places")
	out := upload(t, d, make([][3]int32, blocks*threads))
	if err := k.Launch(0, row(blocks, threads, 56*8), raw(t, out)); err != nil {
		t.Fatal(err)
	}
	for i, got := range download[[3]int32](t, d, out, blocks*threads) {
		thread := i % threads
		if want := [3]int32{int32(i / threads % 2), int32(thread / 32), int32(thread % 32)}; got != want {
			t.Fatalf("thread %d of block %d is at %v, want %v", thread, i/threads, got, want)
		}
	}
	if c := d.TakeCounters(); c.Barriers != blocks/2*3 {
		t.Errorf("%d barriers", c.Barriers)
	}
}
