package emulate_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// mistake is a launch of testdata/mistakes.cu.
type mistake struct{ which int32 }

// launch runs the kernel on fresh buffers; without an error its output must be right. All
// blocks do the same.
func (m mistake) launch(t testing.TB, d cuda.Device, k cuda.Kernel, blocks int) error {
	t.Helper()
	in := make([]byte, 1024)
	for i := range in {
		in[i] = byte(i * 7)
	}
	src, dst := upload(t, d, in), upload(t, d, make([]byte, 1024))
	params := raw(t, struct {
		In, Out     abi.DevicePtr
		Which, Zero int32
	}{src, dst, m.which, 0})
	if err := k.Launch(0, row(blocks, 64, 1024), params); err != nil {
		return err
	}
	if got := download[byte](t, d, dst, 1024); !bytes.Equal(got, in) {
		return fmt.Errorf("wrong output")
	}
	return nil
}

// Each mistake must be found under every seed, and leave the device usable.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		which int32
		what  string
		want  []string // one of them
	}{
		{1, "write past the end", []string{"mistakes.cu:22: out-of-bounds write at"}},
		{2, "read just before the start", nil}, // in the gap that alignment leaves: poison, not an error
		{3, "read far before the start", []string{"5000 bytes before the start of buffer #"}},
		{4, "write past shared memory", []string{"bytes past the end of shared memory (1024 bytes)"}},
		{5, "copy past shared memory", []string{"outside of shared memory"}},
		{6, "copy to a crooked address", []string{"not a multiple of 16"}},
		{7, "copy from a crooked address", []string{"not a multiple of 16"}},
		{8, "one lane returns", []string{"1 lanes of its warp have returned", "this lane returns, but", "31 lanes of its warp wait"}},
		{9, "copy from past the end", []string{"bytes past the end of buffer #"}},
		{10, "copy that is not valid", []string{"wrong output"}},
		{11, "no commit", []string{"has not waited for its copy to it"}},
		{12, "no wait", []string{"has not waited for its copy to it"}},
		{13, "wait for one group too few", []string{"has not waited for its copy to it"}},
		{14, "two barriers", []string{"diverged block"}},
		{15, "half a warp at sync_warp", []string{"diverged warp"}},
		{16, "two kinds of barrier", []string{"diverged warp"}},
		{17, "lane mask", []string{"lane mask 32"}},
		{18, "division by zero", []string{"division by zero"}},
		{19, "endless loop", []string{"limit of processor time"}},
		{20, "no barrier", []string{"wrote it, with no barrier", "has not waited for its copy to it", "read it, with no barrier"}},
		{21, "overwrite what is read", []string{"read it, with no barrier", "has not waited for its copy to it"}},
		{22, "two lanes, one place", []string{"race"}},
		{23, "crooked store", []string{"not a multiple of 16"}},
		{24, "endless recursion", []string{"stack is full"}},
		{25, "null pointer", []string{"null pointer"}},
		{26, "crooked pointer", []string{"not aligned"}},
		{27, "index past an array", []string{"index outside of an array"}},
		{28, "variable never set", []string{"wrong output"}},
		{0, "no mistake", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			d := open(t, emulate.Options{Seed: uint64(c.which), LaunchLimit: 100 * time.Millisecond})
			for _, blocks := range []int{1, 2} { // of a cluster
				k := loadClustered(t, d, "mistakes", "mistakes", blocks)
				launches := 20
				if c.which == 19 {
					launches = 2
				}
				for range launches {
					err := mistake{c.which}.launch(t, d, k, blocks)
					if len(c.want) == 0 {
						if err != nil && c.which == 0 {
							t.Fatal(err)
						}
						continue
					}
					if !containsOne(err, c.want) {
						t.Fatalf("cluster of %d: got error %v, want one of %q", blocks, err, c.want)
					}
				}
				if err := (mistake{}).launch(t, d, k, blocks); err != nil {
					t.Errorf("a good launch afterwards: %v", err)
				}
			}
		})
	}
}

func containsOne(err error, texts []string) bool {
	for _, text := range texts {
		if err != nil && bytes.Contains([]byte(err.Error()), []byte(text)) {
			return true
		}
	}
	return false
}
