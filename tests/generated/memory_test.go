package generated

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// memory is a device's memory until the test's end.
type memory struct {
	t   *testing.T
	dev cuda.Device
}

func (m memory) alloc(bytes int) abi.DevicePtr {
	m.t.Helper()
	p, err := m.dev.Alloc(int64(bytes))
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m memory) put(data []byte) abi.DevicePtr {
	m.t.Helper()
	p := m.alloc(len(data))
	if err := m.dev.Upload(p, data); err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m memory) close() {
	if err := m.dev.Close(); err != nil {
		m.t.Error(err)
	}
}

// encoded is the bytes of a list of structs.
func encoded(t *testing.T, list any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, list); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
