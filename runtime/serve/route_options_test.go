package serve

import (
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// A prompt's tiles stay together.
func TestPrefillTilesTogether(t *testing.T) {
	m := Model{KVHeads: 8, Group: 4, Causal: true}
	for _, c := range []struct {
		name   string
		choice kernel.Choice
	}{
		{"resident", kernel.Choice{Kind: abi.KindPrefill, Rows: 128, Blocks: 66, Resident: 132}},
		{"of kernels that do not say", kernel.Choice{Kind: abi.KindPrefill, Rows: 128, Blocks: 132}},
	} {
		if o := scheduleOptions(m, c.choice); o.SplitTokens != 0 || o.Wave != 16 {
			t.Errorf("%s: cut at %d, in groups of %d; want 0 and 16", c.name, o.SplitTokens, o.Wave)
		}
	}
}
