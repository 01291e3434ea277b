// Package golden uses generated code as its users do.
package golden

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	tiny "github.com/kgen-project/kgen/gen/emit/testdata/tiny/want"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// device records launches; methods that it lacks are not called.
type device struct {
	cuda.Device
	entries  []string
	launches []cuda.LaunchConfig
}

func (d *device) Info() cuda.Info                      { return cuda.Info{Name: "fake", Major: 9} }
func (d *device) Load(cuda.Image) (cuda.Module, error) { return d, nil }
func (d *device) Kernel(entry string) (cuda.Kernel, error) {
	d.entries = append(d.entries, entry)
	return d, nil
}
func (d *device) Unload() error { return nil }
func (d *device) Launch(_ cuda.Stream, c cuda.LaunchConfig, _ []byte) error {
	d.launches = append(d.launches, c)
	return nil
}

func TestOpenAndLaunch(t *testing.T) {
	var dev device
	compile := func(_ context.Context, s kernel.Source) ([]byte, error) {
		if s.Target != "sm_90a" || !strings.Contains(string(s.Text), "spec tiny, digest "+tiny.SpecDigest) {
			return nil, errors.New("not the source")
		}
		return []byte("code"), nil
	}
	k, err := tiny.Open(t.Context(), &dev, kernel.Options{Compile: compile})
	if err != nil {
		t.Fatal(err)
	}
	if rows, keys := k.Tile(abi.KindPrefill); rows < tiny.Group || keys == 0 || k.Blocks(abi.KindPrefill) < 1 {
		t.Errorf("a tile of %d rows and %d keys, %d blocks", rows, keys, k.Blocks(abi.KindPrefill))
	}
	if rows, keys := k.Tile(abi.KindDecode); rows+keys > 0 {
		t.Errorf("a tile of %d rows and %d keys of no kernel", rows, keys)
	}
	err = errors.Join(k.Prefill(0, abi.AttendParams{ItemCount: 5, KVHeads: tiny.KVHeads}),
		k.Merge(0, abi.MergeParams{Tokens: 3, QHeads: tiny.QueryHeads}), k.Close())
	if err != nil {
		t.Fatal(err)
	}
	want := []cuda.LaunchConfig{
		{GridX: 5, GridY: 2, GridZ: 1, Threads: 128, SharedBytes: 24576, Early: true},
		{GridX: 3, GridY: 1, GridZ: 1, Threads: 256, Early: true},
	}
	if len(dev.entries) != 2 || len(dev.launches) != 2 || dev.launches[0] != want[0] || dev.launches[1] != want[1] {
		t.Errorf("entries %v, launches %+v", dev.entries, dev.launches)
	}
}

func TestData(t *testing.T) {
	m, err := tiny.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if m.SpecDigest != tiny.SpecDigest || len(m.Kernels) != len(tiny.Bundle().Kernels) {
		t.Errorf("manifest %+v", m)
	}
	table := tiny.RopeTable()
	if want := (1<<abi.RopeLowBits + tiny.MaxPosition>>abi.RopeLowBits) * tiny.RotaryDim; len(table) != want {
		t.Errorf("a table of %d floats, want %d", len(table), want)
	}
	if row := table[tiny.RotaryDim:]; row[0] != float32(math.Cos(1)) || row[1] != float32(math.Sin(1)) {
		t.Errorf("angle of position 1: %v", row[:2])
	}
}
