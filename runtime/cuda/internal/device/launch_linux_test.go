package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/kgen-project/kgen/runtime/cuda"
)

func TestLaunch(t *testing.T) {
	f := newFake()
	d := mustOpen(t, f)
	m, err := d.Load(cuda.Image{Name: "add", Cubin: []byte(".ptx")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unload()
	if want := ".ptx\x00"; string(f.images[0]) != want {
		t.Errorf("image %q, want %q", f.images[0], want)
	}
	k, err := m.Kernel("add")
	if err != nil {
		t.Fatal(err)
	}
	params := binary.LittleEndian.AppendUint64(nil, 0x0123456789abcdef)
	for _, shared := range []int{0, 200 << 10, 100 << 10} {
		err := k.Launch(5, cuda.LaunchConfig{GridX: 7, GridY: 8, GridZ: 9, Threads: 96, SharedBytes: shared}, params)
		if err != nil {
			t.Fatal(err)
		}
		l := f.launches[len(f.launches)-1]
		l.Params[0] = nil
		want := Launch{Function: 1234, GridX: 7, GridY: 8, GridZ: 9, Threads: 96, Shared: uint32(shared), Stream: 5}
		if l != want || !bytes.Equal(f.params[len(f.params)-1], params) {
			t.Errorf("launched %+v, want %+v; parameters %x", l, want, f.params)
		}
	}
	if f.shared[1234] != 200<<10 || f.calls["cuFuncSetAttribute"] != 1 {
		t.Errorf("shared memory limit %d after %d calls", f.shared[1234], f.calls["cuFuncSetAttribute"])
	}
	tests := []struct {
		name   string
		config cuda.LaunchConfig
		params []byte
		text   string
	}{
		{"shared", cuda.LaunchConfig{GridX: 1, GridY: 1, GridZ: 1, Threads: 32, SharedBytes: 300 << 10}, params,
			"add, grid (1, 1, 1), 32 threads, 307200 bytes of shared memory: cuFuncSetAttribute: CUDA_ERROR_INVALID_VALUE (1): " +
				"described (a block of this device has at most 232448)"},
		{"negative", cuda.LaunchConfig{GridX: -1, GridY: 1, GridZ: 1, Threads: 32}, params, "cuLaunchKernel: -1 is out of range"},
		{"wide", cuda.LaunchConfig{GridX: 1<<32 + 1, GridY: 1, GridZ: 1, Threads: 32}, params, "4294967297 is out of range"},
		{"no parameters", cuda.LaunchConfig{GridX: 1, GridY: 1, GridZ: 1, Threads: 32}, nil, "cuLaunchKernel: no parameters"},
	}
	for _, test := range tests {
		if err := k.Launch(0, test.config, test.params); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: error %v", test.name, err)
		}
	}
	if _, err := m.Kernel("sub"); err == nil || !strings.Contains(err.Error(), "sub: cuModuleGetFunction: ") {
		t.Errorf("absent entry: error %v", err)
	}
}

func TestEarlyLaunch(t *testing.T) {
	for _, test := range []struct {
		name           string
		major, version int32
		absent         bool
		early          bool
	}{
		{name: "Hopper", major: 9, version: 12030, early: true},
		{name: "Blackwell", major: 10, version: 13000, early: true},
		{name: "Ampere", major: 8, version: 13000},
		{name: "a driver whose graphs lack it", major: 9, version: 12020},
		{name: "a driver that lacks it", major: 9, version: 12030, absent: true},
	} {
		f := newFake()
		l := f.library()
		l.DriverGetVersion = func(v *int32) Code { *v = test.version; return Success }
		attribute := l.DeviceGetAttribute
		l.DeviceGetAttribute = func(v *int32, a, d int32) Code {
			if a == attributeMajor {
				*v = test.major
				return Success
			}
			return attribute(v, a, d)
		}
		if test.absent {
			l.LaunchKernelEx = nil
		}
		d, err := open(t.Context(), l, 0)
		if err != nil {
			t.Fatal(err)
		}
		k := &kernel{device: d, entry: "add", handle: 1234}
		config := cuda.LaunchConfig{GridX: 7, GridY: 8, GridZ: 9, Threads: 96, SharedBytes: 64}
		params := make([]byte, 8)
		err = k.Launch(5, config, params)
		config.Early = true
		if err = errors.Join(err, k.Launch(5, config, params)); err != nil {
			t.Fatal(err)
		}
		want := earlyLaunch{Launch{Function: 1234, GridX: 7, GridY: 8, GridZ: 9, Threads: 96, Shared: 64, Stream: 5, Params: [1]*byte{&params[0]}}, 6, 1}
		switch {
		case !test.early && len(f.launches) != 2:
			t.Errorf("%s: %d plain launches and %d early", test.name, len(f.launches), len(f.early))
		case test.early && (len(f.launches) != 1 || len(f.early) != 1 || f.early[0] != want):
			t.Errorf("%s: %d plain launches, early ones %+v, want %+v", test.name, len(f.launches), f.early, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
