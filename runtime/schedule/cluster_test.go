package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// randomClusters is random, for a kernel with clusters.
func randomClusters(rng *rand.Rand) ([]schedule.Sequence, schedule.Options) {
	sequences, o := random(rng)
	o.Cluster = 2 << rng.IntN(3)
	o.SplitTokens, o.MaxItems = rng.IntN(12), rng.IntN(20)
	return sequences, o
}

// tiles checks the groups of some lists and returns the runs of each tile's parts, in
// their order.
func tiles(t *testing.T, lists schedule.Lists, o schedule.Options) map[string][][]abi.Run {
	t.Helper()
	all := map[string][][]abi.Run{}
	if len(lists.Items)%o.Cluster != 0 {
		t.Fatalf("%d items, in groups of %d", len(lists.Items), o.Cluster)
	}
	empty := abi.Item{}
	lightest := 1 << 30
	most := 0
	for i := 0; i < len(lists.Items); i++ {
		item := lists.Items[i]
		if i%o.Cluster == 0 && item == empty {
			t.Errorf("group %d has an empty place first", i/o.Cluster)
		}
		if item == empty {
			continue
		}
		if item.Slot != abi.Final || item.SlotStride != 0 || item.Peers < 0 || item.Peers == 1 {
			t.Errorf("item %d: %+v", i, item)
		}
		peers := max(1, int(item.Peers))
		if peers > o.Cluster || peers&(peers-1) != 0 || i%peers != 0 {
			t.Fatalf("item %d of a cluster of %d: %+v", i, o.Cluster, item)
		}
		var parts [][]abi.Run
		heaviest := 0
		for _, p := range lists.Items[i : i+peers] {
			parts = append(parts, slices.Clone(lists.Runs[p.RunBegin:p.RunEnd]))
			keys := 0
			last := parts[len(parts)-1]
			for i := range last {
				keys += int(last[i].End - last[i].Begin)
				last[i].Once = 0 // it says something of the others, and changes no result
			}
			heaviest = max(heaviest, keys)
			p.RunBegin, p.RunEnd = item.RunBegin, item.RunEnd
			if p != item {
				t.Errorf("peers %+v and %+v", item, p)
			}
		}
		for len(parts) > peers/2 && len(parts) > 1 && len(parts[len(parts)-1]) == 0 {
			parts = parts[:len(parts)-1]
		}
		if 2*len(parts) <= peers {
			t.Errorf("%d places for %d parts: %+v", peers, len(parts), item)
		}
		most = max(most, heaviest)
		if i%o.Cluster == 0 { // it opened the group
			if heaviest > lightest+most/8 {
				t.Errorf("a group of %d keys behind one of %d", heaviest, lightest)
			}
			lightest = min(lightest, heaviest)
		}
		name := fmt.Sprint(item.QBegin, item.QCount, item.QIndex)
		if all[name] != nil {
			t.Errorf("tile %s stands twice", name)
		}
		all[name] = parts
		i += peers - 1
	}
	if lists.Slots != 0 || slices.ContainsFunc(lists.SlotBegin, func(n int32) bool { return n != 0 }) {
		t.Errorf("%d slots: %v", lists.Slots, lists.SlotBegin)
	}
	return all
}

// Cut for clusters, tiles see the keys that they see uncut, in the same order, and are
// the same alone and in a batch.
func TestClusters(t *testing.T) {
	joined := func(parts [][]abi.Run) (runs []abi.Run) {
		for _, r := range slices.Concat(parts...) {
			if n := len(runs); n > 0 && runs[n-1].Page == r.Page && runs[n-1].End == r.Begin {
				runs[n-1].End = r.End
				continue
			}
			runs = append(runs, r)
		}
		return runs
	}
	cuts := map[int]int{}
	for seed := range uint64(2000) {
		sequences, o := randomClusters(rand.New(rand.NewPCG(seed, 4)))
		lists, err := schedule.Build(sequences, o)
		if err != nil {
			t.Fatal(err)
		}
		got := tiles(t, lists, o)
		whole := o
		whole.SplitTokens = 0
		uncut, err := schedule.Build(sequences, whole)
		if err != nil {
			t.Fatal(err)
		}
		want := tiles(t, uncut, whole)
		if len(got) != len(want) {
			t.Errorf("%d tiles, want %d", len(got), len(want))
		}
		for name, parts := range got {
			cuts[len(parts)]++
			if !reflect.DeepEqual(joined(parts), joined(want[name])) {
				t.Errorf("tile %s has %+v, want %+v", name, parts, want[name])
			}
		}
		for _, s := range sequences {
			lists, err := schedule.Build([]schedule.Sequence{s}, o)
			if err != nil {
				t.Fatal(err)
			}
			for name, parts := range tiles(t, lists, o) {
				if !reflect.DeepEqual(parts, got[name]) {
					t.Errorf("tile %s alone has %+v, in the batch %+v", name, parts, got[name])
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d: options %+v, sequences %+v, items %+v", seed, o, sequences, lists.Items)
		}
	}
	for _, n := range []int{1, 2, 4, 8} {
		if cuts[n] < 50 {
			t.Errorf("%d tiles of %d parts", cuts[n], n)
		}
	}
}

func TestClusterCuts(t *testing.T) {
	for _, c := range []struct {
		cluster, query, keys int
		want                 []int32 // keys of the parts of a tile
	}{
		{8, 32, 8192, []int32{1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024}},
		{8, 32, 65536, []int32{8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192}},
		{8, 96, 8192, []int32{2048, 2048, 2048, 2048}}, // 16 / 3 = 5
		{8, 32, 2047, []int32{1024, 1023}},             // 512 each at least, and 2047 / 512 = 3
		{4, 32, 8192, []int32{2048, 2048, 2048, 2048}},
		{8, 1024, 8192, []int32{8192}},
	} {
		o := schedule.Options{Rows: 128, Group: 4, MaxPosition: 1 << 20, PageSize: 16, Cluster: c.cluster}.Fill(132, 8, 128)
		lists, err := schedule.Build([]schedule.Sequence{{Positions: make([]int32, c.query), Segments: []schedule.Segment{{Tokens: int32(c.keys)}}}}, o)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for _, item := range lists.Items[:max(1, lists.Items[0].Peers)] {
			got = append(got, lists.Runs[item.RunBegin].End-lists.Runs[item.RunBegin].Begin)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: parts of %v keys", c, got)
		}
	}
}

func TestClusterErrors(t *testing.T) {
	o := schedule.Options{Rows: 16, Group: 4, MaxPosition: 100, Cluster: 3}
	if _, err := schedule.Build(nil, o); err == nil || !strings.Contains(err.Error(), "a cluster of 3 blocks, want 1, 2, 4 or 8") {
		t.Errorf("error %v", err)
	}
	o.Cluster, o.PadItems = 4, 6
	if _, err := schedule.Build(nil, o); err == nil || !strings.Contains(err.Error(), "PadItems is 6, want a multiple of the cluster's 4 blocks") {
		t.Errorf("error %v", err)
	}
	o.PadItems = 0
	_, err := new(schedule.SharedBuilder).Build(nil, o, sharedOptions())
	if err == nil || !strings.Contains(err.Error(), "not in clusters") {
		t.Errorf("error %v", err)
	}
}

// A builder makes clusters and other lists by turns, and allocates nothing.
func TestClusterBuilderReuse(t *testing.T) {
	var b schedule.Builder
	sequences, o := batch(64, 20, func() int32 { return 512 }), options()
	clusters := o
	clusters.Cluster, clusters.PadItems = 8, 64*8+16
	build := func() {
		for _, o := range []schedule.Options{o, clusters} {
			got, err := b.Build(sequences, o)
			if err != nil {
				t.Fatal(err)
			}
			if i := slices.IndexFunc(got.Items, func(i abi.Item) bool { return i.Peers > 0 && o.Cluster == 0 }); i >= 0 {
				t.Fatalf("without clusters, item %+v", got.Items[i])
			}
		}
	}
	build()
	if n := testing.AllocsPerRun(20, build); n > 0 {
		t.Errorf("%v allocations", n)
	}
	want, err := schedule.Build(sequences, clusters)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := b.Build(sequences, clusters); !same(got, want) {
		t.Error("a used builder gives other lists than a fresh one")
	}
}
