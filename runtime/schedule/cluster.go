package schedule

import (
	"fmt"
	"math/bits"

	"github.com/kgen-project/kgen/runtime/abi"
)

// clusterUnit is the distance of the cuts of a sequence of so many tokens whose query
// tokens fill so many tiles: see Options.Cluster.
func (o *Options) clusterUnit(total, tiles int) int {
	most := min(o.Cluster, total/o.SplitTokens)
	if o.MaxItems > 0 {
		most = min(most, o.MaxItems/tiles)
	}
	parts := 1 << (bits.Len(uint(max(1, most))) - 1)
	return max(1, (total+parts-1)/parts)
}

// places is how many places of a group a tile takes: the next power of two. Those
// behind its parts are items without keys, as all peers take part in a merge.
func (t *tile) places() int { return 1 << bits.Len(uint(t.parts-1)) }

const clusterSizes = 4 // 1, 2, 4 and 8 places

// countGroups is the groups that the tiles fill: those of one number of places share
// groups, so that each tile is at a multiple of its own.
func (b *Builder) countGroups(cluster int) int {
	var tiles [clusterSizes]int
	for i := range b.tiles {
		tiles[bits.Len(uint(b.tiles[i].places()))-1]++
	}
	groups := 0
	for i, n := range tiles {
		groups += (n<<i + cluster - 1) / cluster
	}
	return groups
}

// placeGroups makes the items of the parts in groups of `cluster`: tiles in the order of
// their heaviest parts, each in the group that was last begun for as many places, if it
// has room. So the groups are in the order of their heaviest items.
func (b *Builder) placeGroups(cluster int) {
	clear(b.items)
	most := b.weigh()
	shift := bits.Len32(uint32(most) / sortBuckets)
	b.sortTiles(most, shift)
	var open [clusterSizes]int // the next place of a group that was begun; a multiple of cluster: none is
	next := 0                  // place of the next group
	for _, i := range b.sorted {
		t := &b.tiles[i]
		places := t.places()
		at := &open[bits.Len(uint(places))-1]
		if *at%cluster == 0 {
			*at = next
			next += cluster
		}
		run := t.firstRun
		for j := range places {
			end := run
			if j < int(t.parts) {
				end = b.parts[int(t.firstPart)+j].end
			}
			item := &b.items[*at+j]
			item.QBegin, item.QCount, item.QIndex, item.RunBegin, item.RunEnd = t.begin, t.count, t.index, run, end
			item.Slot, item.SlotStride = abi.Final, 0
			if places > 1 {
				item.Peers = int32(places)
			}
			run = end
		}
		*at += places
	}
}

// weigh finds each tile's parts and the keys of the heaviest, and returns the most.
func (b *Builder) weigh() int32 {
	most, first, run := int32(0), int32(0), int32(0)
	for i := range b.tiles {
		t := &b.tiles[i]
		t.firstPart, t.firstRun, t.heaviest = first, run, 0
		for _, p := range b.parts[first : first+t.parts] {
			t.heaviest = max(t.heaviest, p.keys)
			run = p.end
		}
		first += t.parts
		most = max(most, t.heaviest)
	}
	return most
}

// sortTiles is the counting sort of place, of tiles.
func (b *Builder) sortTiles(most int32, shift int) {
	clear(b.buckets[:])
	for i := range b.tiles {
		b.buckets[(most-b.tiles[i].heaviest)>>shift]++
	}
	b.endBuckets()
	b.sorted = resize(b.sorted, len(b.tiles))
	for i := range b.tiles {
		at := &b.buckets[(most-b.tiles[i].heaviest)>>shift]
		b.sorted[*at] = int32(i)
		*at--
	}
}

func (o *Options) checkCluster() error {
	switch {
	case o.Cluster != 0 && o.Cluster != 1 && o.Cluster != 2 && o.Cluster != 4 && o.Cluster != 8:
		return fmt.Errorf("a cluster of %d blocks, want 1, 2, 4 or 8", o.Cluster)
	case o.Cluster > 1 && o.PadItems%o.Cluster != 0:
		return fmt.Errorf("PadItems is %d, want a multiple of the cluster's %d blocks", o.PadItems, o.Cluster)
	}
	return nil
}
