package serve

import (
	"errors"
	"fmt"
	"math"

	"github.com/kgen-project/kgen/runtime/abi"
)

// IO is a layer's tensors in device memory, of the spec's element type. Rows are
// query tokens: see [Engine.Schedule]. Q, K, V and Out begin at multiples of 16 bytes;
// they may be parts of one tensor. Strides are elements from one token to the next, a
// multiple of 8 of them; 0: the rows lie one behind the other.
type IO struct {
	Q   abi.DevicePtr // [tokens][query heads][head dim], un-rotated
	K   abi.DevicePtr // [tokens][KV heads][head dim], un-rotated
	V   abi.DevicePtr // [tokens][KV heads][v head dim]
	Out abi.DevicePtr // [tokens][query heads][v head dim]

	QStride, KStride, VStride, OutStride int

	LSE        abi.DevicePtr // float32 [tokens][query heads], natural log; may be null
	SinkLogits abi.DevicePtr // float32 [query heads], of a Model with SinkLogits; null of another
}

// check says what a kernel would read or write in a wrong place. On a GPU that ends the
// process's use of the device.
func (io *IO) check(m *Model) error {
	switch {
	case io.Q == 0 || io.K == 0 || io.V == 0 || io.Out == 0:
		return fmt.Errorf("q %#x, k %#x, v %#x, out %#x: none may be null", io.Q, io.K, io.V, io.Out)
	case !abi.Aligned(io.Q, io.K, io.V, io.Out):
		return fmt.Errorf("q %#x, k %#x, v %#x, out %#x: all must be multiples of 16 bytes", io.Q, io.K, io.V, io.Out)
	case (io.LSE|io.SinkLogits)%4 != 0:
		return fmt.Errorf("lse %#x, sink logits %#x: both must be multiples of 4 bytes", io.LSE, io.SinkLogits)
	}
	switch has := io.SinkLogits != 0; {
	case m.SinkLogits && !has:
		return errors.New("sink logits are null, and the model has SinkLogits")
	case has && !m.SinkLogits:
		return fmt.Errorf("sink logits %#x: they must be null, as the model has no SinkLogits", io.SinkLogits)
	}
	for _, s := range [...]struct {
		name       string
		stride, of int
	}{
		{"q", io.QStride, m.queryHeads() * m.HeadDim}, {"k", io.KStride, m.KVHeads * m.HeadDim},
		{"v", io.VStride, m.KVHeads * m.VHeadDim}, {"out", io.OutStride, m.queryHeads() * m.VHeadDim},
	} {
		if s.stride != 0 && (s.stride < s.of || s.stride > math.MaxInt32 || s.stride%8 != 0) {
			return fmt.Errorf("the stride of %s is %d elements, want 0 or a multiple of 8 from %d to %d", s.name, s.stride, s.of, math.MaxInt32)
		}
	}
	return nil
}
