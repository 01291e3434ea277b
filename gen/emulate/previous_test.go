package emulate_test

import (
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
)

// A kernel of an early launch sees what the one ahead writes only once it has waited.
func TestPrevious(t *testing.T) {
	for _, c := range []struct {
		which     int32
		what      string
		early     bool
		between   bool   // another call comes between the launches
		behind    int    // sums that are too small
		wantError string // of the second launch
	}{
		{which: 0, what: "waits", early: true},
		{which: 4, what: "waits, and for the block", early: true},
		{which: 1, what: "reads before it waits", early: true, behind: 64}, // of the block that runs first
		{which: 2, what: "a warp reads before it waits", early: true, behind: 32},
		{which: 3, what: "does not wait", early: true, wantError: "no thread waits for that one"},
		{which: 3, what: "does not wait, and is not early"},
		{which: 1, what: "reads before it waits, and is not early"},
		{which: 1, what: "reads before it waits, behind another call", early: true, between: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			for seed := range uint64(8) {
				d := open(t, emulate.Options{Seed: seed})
				k := load(t, d, "previous", "previous")
				const blocks, threads = 3, 64
				zeros := make([]int32, blocks*threads)
				first, second, third := upload(t, d, zeros), upload(t, d, zeros), upload(t, d, zeros)
				launch := func(which int32, in, out abi.DevicePtr, early bool) error {
					config := row(blocks, threads, 0)
					config.Early = early
					return k.Launch(0, config, raw(t, struct {
						In, Out     abi.DevicePtr
						Which, Zero int32
					}{in, out, which, 0}))
				}
				if err := launch(0, first, second, false); err != nil {
					t.Fatal(err)
				}
				if c.between {
					upload(t, d, zeros)
				}
				err := launch(c.which, second, third, c.early)
				if c.wantError != "" {
					if err == nil || !strings.Contains(err.Error(), c.wantError) {
						t.Fatalf("error %v, want one with %q", err, c.wantError)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				behind := 0
				for i, sum := range download[int32](t, d, third, blocks*threads) {
					switch sum {
					case 1:
						behind++
					case 2:
					default:
						t.Fatalf("element %d is %d", i, sum)
					}
				}
				if behind != c.behind {
					t.Errorf("seed %d: %d elements are of what was there before the launch ahead, want %d", seed, behind, c.behind)
				}
				for i, sum := range download[int32](t, d, second, blocks*threads) {
					if sum != 1 {
						t.Fatalf("element %d of the launch ahead is %d", i, sum)
					}
				}
			}
		})
	}
}
