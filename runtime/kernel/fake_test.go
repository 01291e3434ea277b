package kernel

import (
	"errors"
	"slices"
	"sync"

	"github.com/kgen-project/kgen/runtime/cuda"
)

// fake records what is loaded and launched; methods that it lacks are not
// called by this package.
type fake struct {
	cuda.Device
	info cuda.Info

	mu       sync.Mutex
	loaded   int
	images   []cuda.Image
	launches []launched
	badImage string // Image.Name that does not load
	badEntry string // entry that no module has
}

type launched struct {
	entry  string
	stream cuda.Stream
	config cuda.LaunchConfig
	params []byte
}

func (f *fake) Info() cuda.Info { return f.info }

func (f *fake) Load(image cuda.Image) (cuda.Module, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.badImage != "" && image.Name == f.badImage {
		return nil, errors.New("bad image")
	}
	f.loaded++
	f.images = append(f.images, image)
	return fakeModule{f}, nil
}

type fakeModule struct{ *fake }

func (m fakeModule) Kernel(entry string) (cuda.Kernel, error) {
	if m.badEntry != "" && entry == m.badEntry {
		return nil, errors.New("bad entry")
	}
	return fakeKernel{m.fake, entry}, nil
}

func (m fakeModule) Unload() error { m.loaded--; return nil }

type fakeKernel struct {
	*fake
	entry string
}

func (k fakeKernel) Launch(s cuda.Stream, c cuda.LaunchConfig, params []byte) error {
	if s == 99 {
		return errors.New("bad stream")
	}
	k.launches = append(k.launches, launched{k.entry, s, c, slices.Clone(params)})
	return nil
}
