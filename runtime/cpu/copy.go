package cpu

import (
	"context"
	"fmt"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// blockCopy is a queued copy: each side is an address, or host memory.
type blockCopy struct {
	dst, src         abi.DevicePtr
	hostDst, hostSrc []byte
	blocks           cuda.Blocks
}

// AllocHost returns memory like any other of the process.
func (d *Device) AllocHost(n int64) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("alloc host: %d bytes: must be positive", n)
	}
	if err := d.open("alloc host"); err != nil {
		return nil, err
	}
	if n > d.most {
		return nil, fmt.Errorf("alloc host: %w: wanted %d bytes, the machine has %d", cuda.ErrOutOfMemory, n, d.most)
	}
	return make([]byte, n), nil
}

// FreeHost leaves the memory to the garbage collector.
func (d *Device) FreeHost([]byte) error { return d.open("free host") }

func (d *Device) CopyAsync(s cuda.Stream, dst, src abi.DevicePtr, b cuda.Blocks) error {
	return d.enqueueCopy(s, blockCopy{dst: dst, src: src, blocks: b})
}

func (d *Device) CopyToHostAsync(s cuda.Stream, dst []byte, src abi.DevicePtr, b cuda.Blocks) error {
	if int64(len(dst)) != b.Size() {
		return fmt.Errorf("copy: %d bytes of host memory for %+v", len(dst), b)
	}
	return d.enqueueCopy(s, blockCopy{hostDst: dst, src: src, blocks: b})
}

func (d *Device) CopyFromHostAsync(s cuda.Stream, dst abi.DevicePtr, src []byte, b cuda.Blocks) error {
	if int64(len(src)) != b.Size() {
		return fmt.Errorf("copy: %d bytes of host memory for %+v", len(src), b)
	}
	return d.enqueueCopy(s, blockCopy{dst: dst, hostSrc: src, blocks: b})
}

func (d *Device) enqueueCopy(s cuda.Stream, c blockCopy) error {
	b := c.blocks
	if b.Bytes < 0 || b.Count < 0 || b.Stride < b.Bytes {
		return fmt.Errorf("copy: %+v: negative or overlapping", b)
	}
	if b.Size() == 0 {
		return nil
	}
	if err := d.enqueue(operation{stream: s, copy: c}); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

func (d *Device) copyBlocks(c *blockCopy) error {
	for i := range int64(c.blocks.Count) {
		to, err := d.copySide("destination", c.hostDst, c.dst, i, &c.blocks)
		if err != nil {
			return fmt.Errorf("copy: block %d: %w", i, err)
		}
		from, err := d.copySide("source", c.hostSrc, c.src, i, &c.blocks)
		if err != nil {
			return fmt.Errorf("copy: block %d: %w", i, err)
		}
		copy(to, from)
	}
	return nil
}

func (d *Device) copySide(name string, host []byte, p abi.DevicePtr, i int64, b *cuda.Blocks) ([]byte, error) {
	if host != nil {
		return host[i*b.Bytes : (i+1)*b.Bytes], nil
	}
	return d.memory.bytes(name, p+abi.DevicePtr(i*b.Stride), b.Bytes)
}

func (d *Device) Upload(dst abi.DevicePtr, src []byte) error {
	to, err := d.settled("upload", dst, len(src))
	copy(to, src)
	return err
}

func (d *Device) Download(dst []byte, src abi.DevicePtr) error {
	from, err := d.settled("download", src, len(dst))
	copy(dst, from)
	return err
}

// settled is n bytes of memory after the work already launched. A launch that
// has failed fails it.
func (d *Device) settled(call string, p abi.DevicePtr, n int) ([]byte, error) {
	if err := d.wait(context.Background()); err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	if err := d.failure(); err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	if n == 0 {
		return nil, nil
	}
	return d.memory.bytes(call, p, int64(n))
}

func (d *Device) Fill(s cuda.Stream, dst abi.DevicePtr, value byte, n int64) error {
	if n == 0 {
		return nil
	}
	if err := d.enqueue(operation{stream: s, fill: fill{dst, value, n}}); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	return nil
}
