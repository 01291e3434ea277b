package emulate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kgen-project/kgen/runtime/cuda"
)

type module struct {
	device  *Device
	name    string
	library uint64
}

// Load compiles image.Source unless the cache has it, and loads the result. A
// compiler's message is in the error.
func (d *Device) Load(image cuda.Image) (cuda.Module, error) {
	path, err := d.build.kernel(d.host.ctx, image.Name, image.Source)
	if err != nil {
		return nil, fmt.Errorf("emulate: compile %s: %w", image.Name, err)
	}
	library, err := d.host.call(callLoad, nil, []byte(path), nil)
	if err != nil {
		return nil, fmt.Errorf("emulate: load %s: %w", image.Name, err)
	}
	return &module{device: d, name: image.Name, library: library}, nil
}

func (m *module) Kernel(entry string) (cuda.Kernel, error) {
	k, err := m.device.host.call(callKernel, []uint64{m.library}, []byte(entry), nil)
	if err != nil {
		return nil, fmt.Errorf("emulate: kernel %s of %s: %w", entry, m.name, err)
	}
	return &kernel{device: m.device, entry: entry, id: k}, nil
}

func (m *module) Unload() error {
	return m.device.do("Unload", callUnload, []uint64{m.library}, nil, nil)
}

type kernel struct {
	device *Device
	entry  string
	id     uint64
}

// Launch runs the kernel to its end. The error says what a thread did wrong,
// where, and the seed of the launch; memory keeps what was written so far.
func (k *kernel) Launch(_ cuda.Stream, c cuda.LaunchConfig, params []byte) error {
	d := k.device
	if err := check(c); err != nil {
		return fmt.Errorf("emulate: launch %s: %w", k.entry, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.launches++
	seed := d.seed + (d.launches-1)*0x9e3779b97f4a7c15
	early := uint64(0)
	if c.Early {
		early = 1
	}
	raw := make([]byte, binary.Size(Counters{}))
	_, err := d.host.call(callLaunch, []uint64{
		k.id, uint64(c.GridX), uint64(c.GridY), uint64(c.GridZ), uint64(c.Threads), uint64(c.SharedBytes),
		seed, uint64(d.limit.Milliseconds()), early,
	}, params, raw)
	if err != nil {
		return fmt.Errorf("emulate: launch %s (seed %d): %w", k.entry, seed, d.withLine(err))
	}
	var counters Counters
	if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, &counters); err != nil {
		return fmt.Errorf("emulate: launch %s: read its counters: %w", k.entry, err)
	}
	d.counters.add(counters)
	return nil
}

// withLine replaces the place of a fault, the second line of the host's
// message, by the line of the source, where addr2line finds it.
func (d *Device) withLine(err error) error {
	message, place, found := strings.Cut(err.Error(), "\n")
	if !found {
		return err
	}
	if library, offset, ok := strings.Cut(place, "+0x"); ok {
		output, err := exec.CommandContext(d.host.ctx, "addr2line", "-e", library, offset).Output()
		// Such as "/directory/name.cu:12 (discriminator 3)", or "??:0".
		line, _, _ := strings.Cut(strings.TrimSpace(string(output)), " ")
		if err == nil && !strings.ContainsAny(line, "?<") {
			return fmt.Errorf("%s: %s", filepath.Base(line), message)
		}
	}
	return errors.New(message)
}

// check refuses what a GPU would refuse.
func check(c cuda.LaunchConfig) error {
	switch {
	case c.GridX < 1 || c.GridY < 1 || c.GridZ < 1 || c.GridY > maxGridYZ || c.GridZ > maxGridYZ ||
		c.GridX > maxBlocks/(c.GridY*c.GridZ):
		return fmt.Errorf("grid (%d,%d,%d): every size must be at least 1, y and z at most %d, their product at most %d",
			c.GridX, c.GridY, c.GridZ, maxGridYZ, maxBlocks)
	case c.Threads < warpSize || c.Threads > maxThreads || c.Threads%warpSize != 0:
		return fmt.Errorf("%d threads a block: must be a multiple of %d, at most %d", c.Threads, warpSize, maxThreads)
	case c.SharedBytes < 0 || c.SharedBytes > maxShared:
		return fmt.Errorf("%d bytes of shared memory a block: must be 0 to %d", c.SharedBytes, maxShared)
	}
	return nil
}
