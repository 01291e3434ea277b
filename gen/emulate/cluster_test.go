package emulate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

const clusterThreads, clusterBlocks = 128, 4

func clusterConfig(blocks int) cuda.LaunchConfig {
	const shared = clusterBlocks*clusterThreads*16 + 2*clusterBlocks*16 + 3*8 + 8
	return cuda.LaunchConfig{GridX: blocks, GridY: 1, GridZ: 1, Threads: clusterThreads, SharedBytes: shared}
}

// launchCluster runs testdata/cluster.cu; without an error its output must be right.
func launchCluster(t testing.TB, d *emulate.Device, k cuda.Kernel, which int32) error {
	t.Helper()
	const clusters, rounds = 2, 3
	out := upload(t, d, make([]uint32, clusters*clusterBlocks*clusterThreads))
	params := raw(t, struct {
		Out           abi.DevicePtr
		Which, Rounds int32
	}{out, which, rounds})
	if err := k.Launch(0, clusterConfig(clusters*clusterBlocks), params); err != nil {
		return err
	}
	want := uint32(0)
	for round := range uint32(rounds) {
		want += round
		for rank := range uint32(clusterBlocks) {
			want += round + rank
		}
	}
	for i, got := range download[uint32](t, d, out, clusters*clusterBlocks*clusterThreads) {
		if got != want {
			return fmt.Errorf("wrong output: element %d is %d, want %d", i, got, want)
		}
	}
	return nil
}

// Each mistake must be found under every seed, and leave the device usable.
func TestClusterMistakes(t *testing.T) {
	const (
		deadlock = "deadlock: no thread can go on"
		unwaited = "without having waited for that copy's phase"
		few      = "expected too few bytes"
		many     = "one arrival too many"
		ends     = "ends without having waited for what"
	)
	for _, c := range []struct {
		which int32
		what  string
		want  []string // one of them
	}{
		{0, "no mistake", nil},
		{1, "sync_threads in place of cluster_sync", []string{"nobody initialised it", "with no cluster_sync between"}},
		{2, "room given before all threads have read", []string{"read it, with no barrier between", "wrote it, with no barrier between"}},
		{3, "no wait for room", []string{"wrote it, with no barrier between", "read it, with no barrier between", unwaited, few, many}},
		{4, "a wait that does not see other blocks", []string{"which takes barrier_wait_cluster"}},
		{5, "a store that counts towards another block's barrier", []string{"and counts towards a barrier of rank 0"}},
		{6, "too few bytes expected", []string{few, deadlock}},
		{7, "room given before what is there was read", []string{"read it, with no barrier between", unwaited, few, many}},
		{8, "a block that ends before what others send it has come", []string{ends, "whose shared memory this is, has ended", "that was never waited for"}},
		{9, "a rank that there is not", []string{"there is no rank 4 in a cluster of 4 blocks"}},
		{10, "an address of the block's own", []string{"is no address that peer_address gave"}},
		{11, "an arrival at a block that does not wait for it", []string{ends, "whose shared memory this is, has ended"}},
		{12, "an arrival at another rank", []string{deadlock, many, unwaited, "wrote it, with no barrier between"}},
		{13, "values in one place", []string{unwaited}},
		{14, "notes in one place", []string{"wrote it, with no barrier between"}},
		{15, "no wait for what comes", []string{unwaited}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: uint64(c.which), LaunchLimit: 5 * time.Second})
			k := load(t, d, "cluster", "exchange")
			for range 20 {
				err := launchCluster(t, d, k, c.which)
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
			if err := launchCluster(t, d, k, 0); err != nil {
				t.Errorf("a good launch afterwards: %v", err)
			}
		})
	}
}

func TestClusterGrid(t *testing.T) {
	d := open(t, emulate.Options{})
	k := load(t, d, "cluster", "exchange")
	err := k.Launch(0, clusterConfig(6), make([]byte, 16))
	if err == nil || !strings.Contains(err.Error(), "6 blocks along x is not a whole number of clusters of 4") {
		t.Errorf("a grid of 6 blocks: error %v", err)
	}
}
