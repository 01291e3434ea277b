package emulate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// EncodeTensorMap implements [cuda.TensorMapper]. The 128 bytes mean something
// to the emulator alone; templates/emu/tensors.hpp has the same layout.
func (d *Device) EncodeTensorMap(t cuda.TensorMap) ([128]byte, error) {
	var encoded [128]byte
	if err := t.Check(); err != nil {
		return encoded, fmt.Errorf("emulate: %w", err)
	}
	fields := struct {
		Name    [8]byte
		Base    uint64
		Dims    [5]int64
		Strides [4]int64
		Box     [5]int32
	}{[8]byte([]byte("kgen map")), uint64(t.Base), t.Dims, t.Strides, [5]int32{}}
	for i, n := range t.Box {
		fields.Box[i] = int32(n)
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, fields); err != nil {
		return encoded, fmt.Errorf("emulate: encode a tensor map: %w", err)
	}
	copy(encoded[:], b.Bytes())
	const sumAt = len(encoded) - 8
	sum := fnv.New64a()
	sum.Write(encoded[:sumAt])
	binary.LittleEndian.PutUint64(encoded[sumAt:], sum.Sum64())
	return encoded, nil
}
