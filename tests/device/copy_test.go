package device

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// Copies in blocks, from and to page-locked and ordinary host memory and inside
// the device. The largest stride is more than the driver copies over at once.
func TestCopies(t *testing.T) { eachBinding(t, testCopies) }

func testCopies(t *testing.T, o opener) {
	d := o.gpu(t).(cuda.Copier)
	s := stream(t, d)
	const count, size, largest, apart = 3, 1000, 1<<31 + 4096, 1<<30 + 1
	p := alloc(t, d, apart+(count-1)*largest+size)
	host, err := d.AllocHost(count * size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.FreeHost(host); err != nil {
			t.Error(err)
		}
	}()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, stride := range []int64{size, size + 24, 1 << 20, 1<<31 - 1, 1 << 31, largest} {
		b := cuda.Blocks{Bytes: size, Stride: stride, Count: count}
		for _, from := range [][]byte{host, make([]byte, count*size)} {
			for i := range from {
				from[i] = byte(rng.Uint32())
			}
			want := bytes.Clone(from)
			got := make([]byte, count*size)
			err := errors.Join(d.CopyFromHostAsync(s, p, from, b), d.CopyAsync(s, p+apart, p, b),
				d.CopyToHostAsync(s, host, p+apart, b), d.Synchronize(context.Background(), s),
				d.CopyToHostAsync(s, got, p+apart, b), d.Synchronize(context.Background(), s))
			if err != nil || !bytes.Equal(got, want) || !bytes.Equal(host, want) {
				t.Errorf("stride %d: %v, or wrong bytes", stride, err)
			}
		}
	}
}
