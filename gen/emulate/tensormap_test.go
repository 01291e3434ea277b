package emulate_test

import (
	"testing"

	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// A box lies in shared memory row after row of 128 bytes, z after y, w after z and v
// after w, with 16-byte chunk c of a row at c xor bits 7 to 9 of the row's address;
// what is outside of the tensor is zero.
func TestTensorCopy(t *testing.T) {
	const rowBytes = 128
	d := open(t, emulate.Options{})
	kernel := load(t, d, "boxes", "box")
	dims := [5]int{96, 5, 3, 4, 2}
	elements := make([]uint16, 96*5*3*4*2)
	for i := range elements {
		elements[i] = uint16(i + 1)
	}
	base := upload(t, d, elements)
	// Dimensions 1 to 4 lie in another order than they are counted.
	strides := [4]int64{2 * 3 * 96 * 2, 96 * 2, 5 * 2 * 3 * 96 * 2, 3 * 96 * 2}
	value := func(at [5]int) uint16 {
		for i, n := range dims {
			if at[i] < 0 || at[i] >= n {
				return 0
			}
		}
		return uint16(at[3]*5*2*3*96 + at[1]*2*3*96 + at[4]*3*96 + at[2]*96 + at[0] + 1)
	}
	for _, c := range []struct {
		box    [5]int
		at     [5]int32
		offset int32
	}{
		{[5]int{64, 5, 1, 1, 1}, [5]int32{0, 0, 0, 0, 0}, 0},
		{[5]int{64, 5, 1, 1, 1}, [5]int32{64, 0, 2, 3, 1}, 128 * 3},
		{[5]int{64, 2, 3, 2, 1}, [5]int32{16, 1, 0, 2, 1}, 1024},
		{[5]int{64, 2, 3, 2, 2}, [5]int32{16, 1, 0, 2, 0}, 1024},
		{[5]int{64, 4, 2, 1, 1}, [5]int32{-8, -1, -1, 1, 0}, 128},
		{[5]int{64, 2, 2, 3, 3}, [5]int32{8, 2, 1, -2, -1}, 128},
		{[5]int{64, 4, 1, 2, 1}, [5]int32{40, 3, 2, 3, 1}, 0},
		{[5]int{64, 2, 3, 3, 4}, [5]int32{40, 4, 1, 2, 1}, 0},
		{[5]int{64, 8, 1, 1, 1}, [5]int32{0, 0, 0, -1, 0}, 0},
		{[5]int{64, 8, 1, 1, 1}, [5]int32{0, 0, 0, 1 << 30, 0}, 0},
		{[5]int{64, 8, 1, 1, 1}, [5]int32{0, 0, 0, 0, -1}, 0},
		{[5]int{64, 8, 1, 1, 1}, [5]int32{0, 0, 0, 0, 1 << 30}, 0},
	} {
		m := uploadMap(t, d, cuda.TensorMap{
			Base: base, Dims: [5]int64{96, 5, 3, 4, 2}, Strides: strides, Box: c.box,
		})
		rows := c.box[1] * c.box[2] * c.box[3] * c.box[4]
		out := upload(t, d, make([]byte, rows*rowBytes))
		params := raw(t, struct {
			Map, Out                abi.DevicePtr
			At                      [5]int32
			Bytes, Offset, Reserved int32
		}{m, out, c.at, int32(rows * rowBytes), c.offset, 0})
		for range 5 {
			if err := kernel.Launch(0, one(32, int(c.offset)+rows*rowBytes+8), params); err != nil {
				t.Fatal(err)
			}
			got := download[uint16](t, d, out, rows*rowBytes/2)
			for i, x := range got {
				row, column := i/64, i%64
				permuted := (int(c.offset)/rowBytes + row) % 8 // shared memory starts at a multiple of 1024
				element := (column/8^permuted)*8 + column%8
				want := value([5]int{
					int(c.at[0]) + element,
					int(c.at[1]) + row%c.box[1],
					int(c.at[2]) + row/c.box[1]%c.box[2],
					int(c.at[3]) + row/c.box[1]/c.box[2]%c.box[3],
					int(c.at[4]) + row/c.box[1]/c.box[2]/c.box[3],
				})
				if x != want {
					t.Fatalf("box %v at %v: row %d, place %d is %d, want %d", c.box, c.at, row, column, x, want)
				}
			}
		}
	}
}

func TestNamedBarriers(t *testing.T) {
	const rounds = 40
	d := open(t, emulate.Options{})
	out := upload(t, d, make([]int32, rounds*32))
	params := raw(t, struct {
		Out              abi.DevicePtr
		Rounds, Reserved int32
	}{out, rounds, 0})
	kernel := load(t, d, "boxes", "ring")
	for range 20 {
		if err := kernel.Launch(0, one(64, 512), params); err != nil {
			t.Fatal(err)
		}
		for i, x := range download[int32](t, d, out, rounds*32) {
			if want := int32(i/32 + (i%32 ^ 1)); x != want {
				t.Fatalf("round %d, lane %d: %d, want %d", i/32, i%32, x, want)
			}
		}
	}
}

func TestEncodeTensorMapErrors(t *testing.T) {
	d := open(t, emulate.Options{})
	good := cuda.TensorMap{Base: 1 << 12, Dims: [5]int64{64, 1, 1, 1, 1}, Strides: [4]int64{128, 128, 128, 128}, Box: [5]int{64, 1, 1, 1, 1}}
	for _, c := range []struct {
		want string
		with func(m *cuda.TensorMap)
	}{
		{"", func(*cuda.TensorMap) {}},
		{"base 0x1008 is not a multiple of 16", func(m *cuda.TensorMap) { m.Base += 8 }},
		{"base 0x0 is", func(m *cuda.TensorMap) { m.Base = 0 }},
		{"dimension 3 has 0 elements", func(m *cuda.TensorMap) { m.Dims[3] = 0 }},
		{"dimension 4 has 4294967297 elements", func(m *cuda.TensorMap) { m.Dims[4] = 1<<32 + 1 }},
		{"dimension 2 has a stride of 8 bytes", func(m *cuda.TensorMap) { m.Strides[1] = 8 }},
		{"dimension 1 has a stride of 1099511627776 bytes", func(m *cuda.TensorMap) { m.Strides[0] = 1 << 40 }},
		{"dimension 4 has a stride of 24 bytes", func(m *cuda.TensorMap) { m.Strides[3] = 24 }},
		{"a row of the box has 32 elements", func(m *cuda.TensorMap) { m.Box[0] = 32 }},
		{"the box has 257 elements of dimension 1", func(m *cuda.TensorMap) { m.Box[1] = 257 }},
		{"the box has 0 elements of dimension 4", func(m *cuda.TensorMap) { m.Box[4] = 0 }},
	} {
		m := good
		c.with(&m)
		_, err := d.EncodeTensorMap(m)
		expect(t, c.want, err, c.want)
	}
}

func TestCapability(t *testing.T) {
	for _, c := range []struct{ options, want [2]int }{{[2]int{}, [2]int{9, 0}}, {[2]int{8, 6}, [2]int{8, 6}}} {
		info := open(t, emulate.Options{Major: c.options[0], Minor: c.options[1]}).Info()
		if got := [2]int{info.Major, info.Minor}; got != c.want {
			t.Errorf("capability %v, want %v", got, c.want)
		}
	}
}
