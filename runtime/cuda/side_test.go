package cuda_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// plain hides what a device has beside cuda.Device.
type plain struct{ cuda.Device }

func TestSide(t *testing.T) {
	dev := cpu.Open(cpu.Options{Workers: 1})
	defer dev.Close()
	none, err := cuda.OpenSide(plain{dev})
	if none != nil || err != nil {
		t.Errorf("%v, %v for a device whose streams don't follow each other", none, err)
	}
	side, err := cuda.OpenSide(dev)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	p, err := dev.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	for _, s := range []*cuda.Side{none, side} {
		var streams []cuda.Stream
		fill := func(at int, value byte, err error) func(cuda.Stream) error {
			return func(s cuda.Stream) error {
				streams = append(streams, s)
				return errors.Join(err, dev.Fill(s, p+abi.DevicePtr(at), value, 4))
			}
		}
		work := func() error {
			return errors.Join(s.Both(stream, fill(0, 1, nil), fill(4, 2, nil)), dev.Fill(stream, p+3, 3, 2))
		}
		g, err := dev.Capture(stream, work)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(dev.Fill(stream, p, 0, 8), g.Launch(stream), dev.Synchronize(t.Context(), stream)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 8)
		if err := dev.Download(got, p); err != nil || !bytes.Equal(got, []byte{1, 1, 1, 3, 3, 2, 2, 2}) {
			t.Errorf("memory %v, %v", got, err)
		}
		if streams[0] != stream || (streams[1] == stream) != (s == nil) {
			t.Errorf("streams %v, the first is %v", streams, stream)
		}
		if err := s.Both(stream, fill(0, 1, failed), fill(4, 2, nil)); !errors.Is(err, failed) || len(streams) != 3 {
			t.Errorf("error %v, streams %v", err, streams)
		}
		if err := s.Both(stream, fill(0, 1, nil), fill(4, 2, failed)); !errors.Is(err, failed) {
			t.Errorf("error %v", err)
		}
		// What fails beside the stream is told to whoever waits for that.
		if err := s.Both(stream, fill(0, 1, nil), fill(8, 2, nil)); err != nil {
			t.Error(err)
		}
		if err := dev.Synchronize(t.Context(), stream); !errors.Is(err, cuda.ErrLaunch) {
			t.Errorf("error %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := side.Both(stream, nil, nil); err == nil {
		t.Error("a side that is closed was used")
	}
}
