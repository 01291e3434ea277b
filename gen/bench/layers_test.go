package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// listening writes down what is launched, in order, and by which keys.
type listening struct {
	cpuKernels
	launches *[]string
	keys     *[]abi.DevicePtr
}

func (l listening) Append(s cuda.Stream, p abi.AppendParams) error {
	*l.launches = append(*l.launches, "append")
	return l.cpuKernels.Append(s, p)
}

func (l listening) Decode(s cuda.Stream, p abi.AttendParams) error {
	*l.launches, *l.keys = append(*l.launches, "decode"), append(*l.keys, p.KCache)
	return l.cpuKernels.Decode(s, p)
}

func (l listening) SharedDecode(s cuda.Stream, p abi.AttendParams) error {
	*l.launches, *l.keys = append(*l.launches, "shared decode"), append(*l.keys, p.KCache)
	return l.cpuKernels.SharedDecode(s, p)
}

func (l listening) Merge(s cuda.Stream, p abi.MergeParams) error {
	*l.launches = append(*l.launches, "merge")
	return l.cpuKernels.Merge(s, p)
}

// A graph of layers has each one's append, attend and merge, by keys of its own.
func TestLayers(t *testing.T) {
	dev, s := openCPU(t), small(t)
	for _, test := range []struct {
		name   string
		layers int
		build  func(*Problem, Kernels) (*step, error)
		c      string
		layer  []string
	}{
		{"one", 1, (*Problem).by, "decode:3x1/600", []string{"decode", "merge"}},
		{"three", 3, (*Problem).by, "decode:3x1/600", []string{"append", "decode", "merge"}},
		{"shared decode", 2, (*Problem).by, "shared:12x2080+30", []string{"append", "decode", "shared decode", "merge"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := ParseCase(test.c)
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewProblem(dev, s, c, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Free()
			if test.layers > 1 {
				if err := p.addLayers(test.layers); err != nil {
					t.Fatal(err)
				}
			}
			k := onCPU(t, dev, s)
			var launches []string
			var keys []abi.DevicePtr
			st, err := test.build(p, Kernels{Launcher: listening{k.Launcher.(cpuKernels), &launches, &keys}, Tiles: k.Tiles})
			if err != nil {
				t.Fatal(err)
			}
			if err := st.launch(0); err != nil {
				t.Fatal(err)
			}
			if want := slices.Repeat(test.layer, test.layers); !slices.Equal(launches, want) {
				t.Errorf("launches %q, want %q", launches, want)
			}
			slices.Sort(keys)
			if n := len(slices.Compact(keys)); n != test.layers {
				t.Errorf("%d layers read %d caches of keys", test.layers, n)
			}
		})
	}
}

// cached is a device with an L2 cache.
type cached struct{ *cpu.Device }

func (c cached) Info() cuda.Info {
	info := c.Device.Info()
	info.L2Bytes = 1 << 20
	return info
}

func TestLayersNeedAColdCache(t *testing.T) {
	dev, s := openCPU(t), small(t)
	c := Case{Kind: spec.Decode, Batch: 1, Query: 1, Context: 600}
	run := func(layers int) error {
		_, err := Run(t.Context(), cached{dev}, s, onCPU(t, dev, s), []Case{c}, Options{Repeats: 1, Layers: layers})
		return err
	}
	err := run(3)
	if err == nil || !strings.Contains(err.Error(), "the KV of 3 layers is 0.467 MB, which the L2 cache may still have in the next graph: give ") {
		t.Fatalf("error %v", err)
	}
	if err := run(100); err != nil {
		t.Error(err)
	}
}

// Copies are of single launches: a time of one must not pass for a layer's share.
func TestLayersHaveNoCopies(t *testing.T) {
	dev, s := openCPU(t), small(t)
	k := onCPU(t, dev, s)
	copies := Copies(s, k.Launcher.(Materialiser), onCPU(t, dev, spec.WithEncoding(s, spec.Baked)))
	c, err := ParseCase("shared:12x2080+30")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Run(t.Context(), dev, s, k, []Case{c}, Options{Repeats: 1, Layers: 2, Against: []Baseline{copies}})
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range rows[0].Against {
		if !strings.Contains(peer.Error, "no KV but the case's own") {
			t.Errorf("%s: error %q, median %v", peer.Name, peer.Error, peer.Median)
		}
	}
	if len(rows[0].Against) == 0 {
		t.Error("no baseline was asked")
	}
}
