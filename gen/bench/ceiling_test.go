package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/templates"
	"github.com/kgen-project/kgen/tests/testutil"
)

func emulator(t *testing.T) cuda.Device {
	t.Helper()
	dev, err := emulate.Open(t.Context(), emulate.Options{CacheDir: testutil.Emulator(), Seed: 3})
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

func load(t *testing.T, dev cuda.Device, c emit.Ceiling, err error) probe {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	p, err := loadProbe(context.Background(), dev, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.unload)
	return p
}

// What is read adds up to what is there: no word is left out, and none read twice.
func TestReadReadsEachWordOnce(t *testing.T) {
	dev := emulator(t)
	c, err := emit.Read(templates.FS)
	p := load(t, dev, c, err)
	const blocks, turns = 2, 3
	words := make([]uint32, 4*turns*p.Words)
	var want uint32
	for i := range words {
		words[i] = uint32(i)*2654435761 + 12345
		want += words[i]
	}
	m := memory{dev: dev}
	defer m.free()
	params := emit.ReadParams{Words: m.upload(words), Sums: m.alloc(int64(4 * blocks * p.Threads())), Turns: turns}
	if err := errors.Join(m.err, p.launch(0, blocks, params)); err != nil {
		t.Fatal(err)
	}
	sums := make([]uint32, blocks*p.Threads())
	download(t, dev, sums, params.Sums)
	var got uint32
	for _, sum := range sums {
		got += sum
	}
	if got != want {
		t.Errorf("the words read add up to %d, want %d", got, want)
	}
}

// Every family multiplies: rounds * A * B^T, exact for small whole numbers.
func TestProductMultiplies(t *testing.T) {
	dev := emulator(t)
	for _, family := range []plan.Family{plan.SM80, plan.SM90} {
		t.Run(string(family), func(t *testing.T) {
			c, err := emit.Product(family, spec.BF16, templates.FS)
			p := load(t, dev, c, err)
			const rounds = 2
			rng := rand.New(rand.NewPCG(7, 7))
			matrix := func(rows int) ([]float32, []uint16) {
				x, bits := make([]float32, rows*p.Inner), make([]uint16, rows*p.Inner)
				for i := range x {
					x[i] = float32(rng.IntN(9) - 4)
					bits[i] = formatOf(spec.BF16).Bits(float64(x[i]))
				}
				return x, bits
			}
			a, aBits := matrix(p.Rows)
			b, bBits := matrix(p.Columns)
			m := memory{dev: dev}
			defer m.free()
			params := emit.ProductParams{A: m.upload(aBits), B: m.upload(bBits), Products: m.alloc(int64(4 * p.Rows * p.Columns)), Rounds: rounds}
			if err := errors.Join(m.err, p.launch(0, 1, params)); err != nil {
				t.Fatal(err)
			}
			got := make([]float32, p.Rows*p.Columns)
			download(t, dev, got, params.Products)
			for i := range got {
				var want float32
				for k := range p.Inner {
					want += a[i/p.Columns*p.Inner+k] * b[i%p.Columns*p.Inner+k]
				}
				if got[i] != rounds*want {
					t.Fatalf("element %d, %d: got %g, want %g", i/p.Columns, i%p.Columns, got[i], rounds*want)
				}
			}
		})
	}
}

func download[T any](t *testing.T, dev cuda.Device, to []T, from abi.DevicePtr) {
	t.Helper()
	raw := make([]byte, binary.Size(to))
	if err := dev.Download(raw, from); err != nil {
		t.Fatal(err)
	}
	if _, err := binary.Decode(raw, binary.LittleEndian, to); err != nil {
		t.Fatal(err)
	}
}
