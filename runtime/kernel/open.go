package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Set is the kernels of a bundle, loaded on a device. Its methods are safe for
// concurrent use, but for Close.
type Set struct {
	name    string
	digest  string
	spec    Spec
	kernels map[abi.Kind]*loaded // the usual one of each kind
	routes  map[abi.Kind][]route // of the kinds that attend
	all     []*loaded

	device          cuda.Device
	multiprocessors int // of the device
	cache           CacheShape
}

type loaded struct {
	artifact Artifact
	target   string // "" where the device runs source
	early    bool   // the machine code waits by itself for the kernel ahead of it
	module   cuda.Module
	kernel   cuda.Kernel
}

// Open loads one kernel of each kind of the bundle, and those that Bundle.Tuned has for
// the device's model or, where it has none, for its target. Machine code comes from the
// bundle where it embeds some for the device's target, else from Options.Compile; a
// device that runs source gets the source.
func Open(ctx context.Context, dev cuda.Device, b Bundle, o Options) (*Set, error) {
	chosen, err := choose(b, dev.Info(), o.Target)
	if err != nil {
		return nil, fmt.Errorf("open the kernels of %s on %s: %w", b.Name, dev.Info().Name, err)
	}
	usual := len(chosen)
	byEntry := map[string]*loaded{}
	tuned, err := b.tunedFor(dev.Info(), o.Target)
	if err == nil {
		chosen, err = addTuned(chosen, byEntry, b, tuned, dev.Info(), o.Target)
	}
	if err != nil {
		return nil, fmt.Errorf("open the kernels of %s tuned for %s: %w", b.Name, cmp.Or(tuned.Device, dev.Info().Name), err)
	}
	if o.Compile == nil {
		o.Compile = defaultCompile()
	}
	errs := make([]error, len(chosen))
	var group sync.WaitGroup
	for i, l := range chosen { // side by side: a compilation takes seconds
		group.Go(func() {
			if err := l.load(ctx, dev, b, o); err != nil {
				errs[i] = fmt.Errorf("open kernel %s of %s on %s: %w", l.artifact.Entry, b.Name, dev.Info().Name, err)
			}
		})
	}
	group.Wait()
	s := &Set{
		name: b.Name, digest: b.SpecDigest, spec: b.Spec, kernels: map[abi.Kind]*loaded{}, all: chosen,
		device: dev, multiprocessors: max(1, dev.Info().Multiprocessors), cache: b.Cache,
	}
	for _, l := range chosen[:usual] {
		s.kernels[l.artifact.Kind] = l
	}
	for _, r := range tuned.Rules {
		if l := byEntry[r.Entry]; l != nil && r.Kind == abi.KindSharedDecode { // one launch for sequences of any length
			s.kernels[r.Kind] = l
		}
	}
	s.route(tuned.Rules, byEntry)
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// addTuned appends the kernels of a table that are not among the chosen, and fills
// byEntry with all of the table's. What was chosen for all GPUs of a target is left out
// where it does not fit this one.
func addTuned(chosen []*loaded, byEntry map[string]*loaded, b Bundle, t Tuned, device cuda.Info, target string) ([]*loaded, error) {
	for _, rule := range t.Rules {
		if byEntry[rule.Entry] != nil {
			continue
		}
		if i := slices.IndexFunc(chosen, func(l *loaded) bool { return l.artifact.Entry == rule.Entry }); i >= 0 {
			byEntry[rule.Entry] = chosen[i]
			continue
		}
		i := slices.IndexFunc(b.Kernels, func(a Artifact) bool { return a.Entry == rule.Entry && a.Kind == rule.Kind })
		if i < 0 {
			return nil, fmt.Errorf("the bundle has no %s kernel %s", rule.Kind, rule.Entry)
		}
		on, err := fit(b.Kernels[i], device, target)
		if err != nil && t.Device == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rule.Entry, err)
		}
		l := &loaded{artifact: b.Kernels[i], target: on}
		byEntry[rule.Entry] = l
		chosen = append(chosen, l)
	}
	return chosen, nil
}

// choose takes one artifact of each kind: the first that was planned for a
// target that runs on the device, or else the first that can be compiled for it.
// Those for which only a table chooses are left out.
func choose(b Bundle, device cuda.Info, target string) ([]*loaded, error) {
	var chosen []*loaded
	var refused []error
	place := map[abi.Kind]int{} // in chosen
	planned := map[abi.Kind]bool{}
	for _, a := range b.Kernels {
		at, have := place[a.Kind]
		if planned[a.Kind] || a.tunedOnly(device) {
			continue
		}
		t, err := fit(a, device, target)
		if err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", a.Entry, err))
			continue
		}
		l := &loaded{artifact: a, target: t}
		if device.EmulatesSource { // which compiles for no target
			if t, err = Closest(a.Targets, device); err != nil {
				return nil, fmt.Errorf("%s: %w", a.Entry, err)
			}
		}
		planned[a.Kind] = slices.Contains(a.Targets, t)
		switch {
		case !have:
			place[a.Kind] = len(chosen)
			chosen = append(chosen, l)
		case planned[a.Kind]:
			chosen[at] = l
		}
	}
	for _, a := range b.Kernels {
		if _, have := place[a.Kind]; !have && !a.tunedOnly(device) {
			return nil, fmt.Errorf("no %s kernel fits: %w", a.Kind, errors.Join(refused...))
		}
	}
	return chosen, nil
}

// tunedOnly tells whether none but a table chooses the artifact for the device.
func (a *Artifact) tunedOnly(device cuda.Info) bool {
	if len(a.Tuned) == len(a.Targets) {
		return len(a.Tuned) > 0
	}
	return !device.EmulatesSource && slices.ContainsFunc(a.Tuned, func(target string) bool {
		arch, err := parseTarget(target)
		return err == nil && arch.runsOn(device.Major, device.Minor)
	})
}

// fit returns the target to take the artifact's machine code for, or why it
// can't run on the device.
func fit(a Artifact, device cuda.Info, target string) (string, error) {
	if a.Warps < 1 {
		return "", fmt.Errorf("its plan has %d warps", a.Warps)
	}
	if device.SharedPerBlock > 0 && a.SharedBytes > device.SharedPerBlock {
		return "", fmt.Errorf("wants %d bytes of shared memory a block, the device has %d", a.SharedBytes, device.SharedPerBlock)
	}
	if device.EmulatesSource {
		return "", nil
	}
	if target == "" {
		return chooseTarget(a, device)
	}
	arch, err := parseTarget(target)
	if err != nil {
		return "", err
	}
	if !arch.runsOn(device.Major, device.Minor) {
		return "", fmt.Errorf("machine code for %s does not run on compute capability %d.%d", target, device.Major, device.Minor)
	}
	return target, nil
}

func (l *loaded) load(ctx context.Context, dev cuda.Device, b Bundle, o Options) error {
	image := cuda.Image{Name: strings.TrimSuffix(l.artifact.File, ".cu")}
	if dev.Info().EmulatesSource {
		image.Source = l.artifact.Source
		l.early = dev.Info().Major >= 9
	} else {
		cubin, err := l.cubin(ctx, b, o)
		if err != nil {
			return err
		}
		image.Cubin = cubin
		arch, err := parseTarget(l.target)
		if err != nil {
			return err
		}
		l.early = arch.major >= 9
	}
	module, err := dev.Load(image)
	if err != nil {
		return err
	}
	l.module = module
	l.kernel, err = module.Kernel(l.artifact.Entry)
	return err
}

func (l *loaded) cubin(ctx context.Context, b Bundle, o Options) ([]byte, error) {
	if cubin := l.artifact.Cubins[l.target]; len(cubin) > 0 {
		return cubin, nil
	}
	return o.Compile(ctx, Source{Name: l.artifact.File, Text: l.artifact.Source, Target: l.target, Flags: b.Flags, Compiler: b.Compiler})
}

// Artifact returns the kernel of a kind that launches use.
func (s *Set) Artifact(kind abi.Kind) (Artifact, bool) {
	l, ok := s.kernels[kind]
	if !ok {
		return Artifact{}, false
	}
	return l.artifact, true
}

// Tile is the rows (query tokens x heads of one KV head) and the keys of a tile
// of the kernel that launches of a kind use; 0 where there is none.
func (s *Set) Tile(kind abi.Kind) (rows, keys int) {
	a, _ := s.Artifact(kind)
	return a.Rows, a.Keys
}

// SpecDigest is the identity of the spec that the kernels were made from.
func (s *Set) SpecDigest() string { return s.digest }

// Spec is the constants of that spec.
func (s *Set) Spec() Spec { return s.spec }

// Close unloads the kernels. No launch may be under way.
func (s *Set) Close() error {
	var errs []error
	for _, l := range s.all {
		if l.module == nil {
			continue
		}
		if err := l.module.Unload(); err != nil {
			errs = append(errs, fmt.Errorf("close %s of %s: %w", l.artifact.Kind, s.name, err))
		}
		l.module, l.kernel = nil, nil
	}
	return errors.Join(errs...)
}
