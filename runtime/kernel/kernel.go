// Package kernel loads the kernels of one spec on a device and launches them.
//
// From compute capability 9.0 on a kernel may start before the one ahead of it on the stream has
// ended: it gets ready, and waits by itself before it reads or writes anything but the work
// lists (Items, Runs, PageTable, SlotBegin). So a copy may write those ahead of it, but a kernel only
// where something comes between that is not launched by this package: a copy, a wait for an event,
// a kernel of one's own.
//
// Generated bindings hold a [Bundle]; [Open] finds or makes the machine code
// that fits the device and gives a [Set], whose methods compute the grids.
package kernel

import (
	"context"

	"github.com/kgen-project/kgen/runtime/abi"
)

// Bundle is what the generator made from one spec.
type Bundle struct {
	Name       string       // name of the spec
	SpecDigest string       // identity of the resolved spec
	Spec       Spec         // its constants
	Compiler   abi.Compiler // of the build; zero: not known
	Flags      []string     // for the compiler, beside the target
	Cache      CacheShape
	Kernels    []Artifact // of one kind, the first that fits a device is used
	Tuned      []Tuned    // which kernels are for which lengths, by GPU model and by target
}

// Artifact is one kernel: its layout, its source and the machine code there is.
type Artifact struct {
	Kind    abi.Kind
	Entry   string // C name
	File    string // source file name, for messages and the cache
	Family  string
	Targets []string // that cubins were made or meant for
	Tuned   []string // those of Targets for which only Bundle.Tuned chooses it

	Rows, Keys, Stages, Warps int // the plan; see [abi.ManifestPlan]

	SharedBytes int // dynamic shared memory of a block
	Blocks      int // of a persistent grid, a multiprocessor; 0: 1
	Cluster     int // blocks that take an item together, as a thread-block cluster; 0: 1
	// KeysAhead is true of a kernel that reads raw keys which were rotated ahead of it:
	// Choice.KeysAhead.
	KeysAhead bool

	// Folds is true of a kernel that takes items of several parts: schedule.Options.Fold.
	Folds bool

	Source []byte            // CUDA C++
	Cubins map[string][]byte // embedded machine code by target; may be nil
}

// Source is what a compiler needs to make one kernel's machine code.
type Source struct {
	Name   string // file name
	Text   []byte // CUDA C++
	Target string // such as sm_90a
	Flags  []string
	// Compiler is the one of the build that the source is from: what it made is as good as what
	// another makes. Zero: not known.
	Compiler abi.Compiler
}

// Options changes how a bundle is opened. The zero value is usual.
type Options struct {
	// Compile makes machine code where the bundle embeds none for the device.
	// Nil: [NVRTC] with the folders cubins and toolchain of KGEN_CACHE_DIR, or
	// else of kgen in the user's cache directory, which kgen build fills.
	Compile func(ctx context.Context, s Source) (cubin []byte, err error)
	// Target is used in place of the one that fits the device best.
	Target string
}
