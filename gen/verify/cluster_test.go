package verify

import (
	"fmt"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// clustered is a spec whose extend merges in clusters.
func clustered(t testing.TB, blocks int, change func(*spec.Spec)) spec.Spec {
	return emulated(t, func(s *spec.Spec) {
		s.Targets = []spec.Target{"sm_90a"}
		s.Kinds = []spec.Kind{spec.Extend, spec.Merge}
		s.Tiles = map[spec.Kind]spec.Tile{spec.Extend: {Keys: 64, Cluster: blocks}}
		if change != nil {
			change(s)
		}
	})
}

// Extend in clusters of every size, over masks that leave parts without keys, and over
// both widths of heads.
func TestClusters(t *testing.T) {
	for _, c := range []struct {
		blocks int
		name   string
		change func(*spec.Spec)
	}{
		{2, "plain", nil},
		{4, "plain", nil},
		{8, "plain", nil},
		{8, "128 keys", func(s *spec.Spec) { s.Tiles[spec.Extend] = spec.Tile{Keys: 128, Cluster: 8} }},
		{4, "64 rows", func(s *spec.Spec) { s.Tiles[spec.Extend] = spec.Tile{Rows: 64, Warps: 8, Cluster: 4} }},
		{4, "masks", func(s *spec.Spec) {
			s.Masks = spec.Masks{Causal: true, Window: 40, SinkTokens: 4, SinkLogits: true, SoftCap: 3}
		}},
		{8, "head dim 128", func(s *spec.Spec) {
			s.Model.HeadDim, s.Model.VHeadDim = 128, 128
			s.Model.DType = spec.FP16
		}},
		{8, "V head dim 64", func(s *spec.Spec) { s.Model.HeadDim = 128 }},
	} {
		t.Run(fmt.Sprintf("%d blocks, %s", c.blocks, c.name), func(t *testing.T) {
			t.Parallel()
			s := clustered(t, c.blocks, c.change)
			dev := emulator(t, uint64(c.blocks))
			r, err := Run(t.Context(), dev, s, Generated(dev, kernel.Options{}), Options{
				Kinds: []spec.Kind{spec.Extend}, Encodings: []spec.Encoding{spec.Segment}, Cases: 12, Seed: 9,
			})
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() {
				t.Error(r)
			}
			if dev.TakeCounters().PeerStoreBytes == 0 {
				t.Error("no block sent anything to a peer")
			}
		})
	}
}
