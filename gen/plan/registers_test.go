package plan

import (
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/tests/testutil"
)

// The registers of a thread that attends are those that the kernel takes for it.
func TestRegisterLimit(t *testing.T) {
	segment := testutil.Spec(t, "../../specs/llama3.yaml")
	raw, baked := spec.WithEncoding(segment, spec.Raw), spec.WithEncoding(segment, spec.Baked)
	small, wide := segment, segment
	small.Model.HeadDim, small.Model.VHeadDim = 64, 64
	small.Rope.RotaryDim = 64
	wide.Model.HeadDim, wide.Model.VHeadDim = 256, 256
	wide.Rope.RotaryDim = 256
	for _, c := range []struct {
		name                      string
		s                         spec.Spec
		kind                      spec.Kind
		family                    Family
		rows, keys, stages, warps int
		ahead                     bool
		want                      int
	}{
		{"prefill's queries rotated by a warpgroup", segment, spec.Prefill, SM90, 128, 128, 2, 16, false, 200},
		{"by two blocks", segment, spec.Prefill, SM90, 256, 128, 2, 16, false, 200},
		{"raw keys rotated by a warpgroup", raw, spec.Prefill, SM90, 128, 64, 2, 16, false, 192},
		{"raw keys rotated ahead", raw, spec.Prefill, SM90, 128, 128, 2, 16, true, 200},
		{"extend's queries aligned by a warpgroup", segment, spec.Extend, SM90, 128, 128, 2, 16, false, 192},
		{"of 256 dimensions", wide, spec.Extend, SM90, 128, 64, 2, 16, false, 208},
		{"queries rotated by the copiers' warpgroup", segment, spec.Extend, SM90, 128, 128, 2, 12, false, 200},
		{"of keys as they are", baked, spec.Extend, SM90, 128, 128, 2, 12, false, 200},
		{"of raw keys", raw, spec.Extend, SM90, 128, 64, 2, 12, false, 192},
		{"three warpgroups, each with its own queries", small, spec.Prefill, SM90, 192, 128, 2, 16, false, 160},
		{"one warpgroup that attends", segment, spec.Extend, SM90, 64, 64, 2, 8, false, 255},
		{"family sm80", segment, spec.Extend, SM80, 128, 64, 1, 8, false, 255},
		{"decode", segment, spec.Decode, SM90, 16, 64, 3, 7, false, 255},
	} {
		tile := spec.Tile{Rows: c.rows, Keys: c.keys, Stages: c.stages, Warps: c.warps}
		p, misfit := Make(c.s, c.kind, "sm_90a", Layout{Family: c.family, Tile: tile, Blocks: 1, KeysAhead: c.ahead})
		if misfit != nil {
			t.Errorf("%s: %v", c.name, misfit)
			continue
		}
		if got := registerLimit(c.s, p); got != c.want {
			t.Errorf("%s: %d registers, want %d", c.name, got, c.want)
		}
	}
}
