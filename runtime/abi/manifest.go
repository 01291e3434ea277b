package abi

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// ManifestSchema is the version of the manifest that this package reads and
// writes. It changes when a field is renamed, removed or given a new meaning.
const ManifestSchema = 1

// Manifest says what a build made, and from what. It holds no times and no
// paths: the same spec, generator, compiler and flags give the same bytes.
type Manifest struct {
	Schema     int              `json:"schema"`      // ManifestSchema
	Spec       string           `json:"spec"`        // name of the spec
	SpecDigest string           `json:"spec_digest"` // identity of the resolved spec
	Generator  string           `json:"generator"`   // version of the generator
	Compiler   Compiler         `json:"compiler"`
	Flags      []string         `json:"flags"` // given to the compiler beside the target
	Kernels    []ManifestKernel `json:"kernels"`
	Tuned      []ManifestTuned  `json:"tuned,omitempty"` // by GPU model; where none is the device's, by target
}

// ManifestTuned is the kernels that were measured to be the fastest on a GPU model, or
// that the cost model chooses for the GPUs of a target that were not measured.
type ManifestTuned struct {
	GPU    string         `json:"gpu,omitempty"`    // as the driver gives it
	Target string         `json:"target,omitempty"` // in its place
	Rules  []ManifestRule `json:"rules"`
}

// ManifestRule is a kernel for sequences up to some lengths. Of one kind, the first
// that a sequence is within is used.
type ManifestRule struct {
	Kind   Kind   `json:"kind"`
	Query  int    `json:"query,omitempty"` // the most query tokens; 0: any number
	Keys   int    `json:"keys,omitempty"`  // the most tokens of KV; 0: any number
	Entry  string `json:"entry"`
	Fill   int    `json:"fill,omitempty"`   // blocks that a sequence is cut for, in percent of the multiprocessors; 0: as many as they hold
	Tokens int    `json:"tokens,omitempty"` // of the smallest part of a sequence; 0: max(4 keys of a tile, 256)
}

// Compiler is what turned source into machine code.
type Compiler struct {
	ID      string `json:"id"` // nvrtc or nvcc
	Version string `json:"version"`
}

// ManifestKernel is one compiled entry point.
type ManifestKernel struct {
	Kind         Kind             `json:"kind"`
	Entry        string           `json:"entry"` // C name
	Family       string           `json:"family"`
	Plan         ManifestPlan     `json:"plan"`
	Threads      int              `json:"threads"`       // a block
	SharedBytes  int              `json:"shared_bytes"`  // dynamic, a block
	Source       string           `json:"source"`        // file name
	SourceSHA256 string           `json:"source_sha256"` // hexadecimal
	Targets      []ManifestTarget `json:"targets"`       // in the spec's order
}

// ManifestPlan is the layout of a kernel: see [Kind] for which fields a kind has.
type ManifestPlan struct {
	Rows    int  `json:"rows"`   // rows of a tile
	Keys    int  `json:"keys"`   // keys of a tile
	Stages  int  `json:"stages"` // K/V tiles in flight
	Warps   int  `json:"warps"`
	Blocks  int  `json:"blocks,omitempty"`  // of a persistent grid, a multiprocessor; 0: 1
	Cluster int  `json:"cluster,omitempty"` // blocks that take an item together; 0: 1
	Folds   bool `json:"folds,omitempty"`   // it takes items of several parts

	KeysAhead bool `json:"keys_ahead,omitempty"` // it reads raw keys that were rotated ahead of it
}

// ManifestTarget is one kernel's machine code for one target and what it uses.
type ManifestTarget struct {
	Target      string `json:"target"`
	Tuned       bool   `json:"tuned,omitempty"`     // only a tuned table chooses the kernel here
	CubinSHA256 string `json:"cubin_sha256"`        // hexadecimal
	Registers   int    `json:"registers"`           // a thread
	StaticBytes int    `json:"static_shared_bytes"` // shared memory besides the dynamic, a block
	SpillStores int    `json:"spill_store_bytes"`   // a thread
	SpillLoads  int    `json:"spill_load_bytes"`    // a thread
	StackBytes  int    `json:"stack_bytes"`         // a thread
	ConstBytes  int    `json:"const_bytes"`
}

// Kind is a kernel kind.
type Kind string

// The attention kinds have every field of a plan; the others have Warps alone.
const (
	KindAppend       Kind = "append"
	KindPrefill      Kind = "prefill"
	KindExtend       Kind = "extend"
	KindDecode       Kind = "decode"
	KindSharedDecode Kind = "shared_decode"
	KindMerge        Kind = "merge"
	KindMaterialise  Kind = "materialise"
	KindSchedule     Kind = "schedule"
)

// Encode returns the manifest as indented JSON that ends in a newline. It sets
// Schema, and writes absent lists as empty ones.
func (m Manifest) Encode() ([]byte, error) {
	m.Schema = ManifestSchema
	if m.Flags == nil {
		m.Flags = []string{}
	}
	kernels := make([]ManifestKernel, len(m.Kernels))
	for i, k := range m.Kernels {
		if k.Targets == nil {
			k.Targets = []ManifestTarget{}
		}
		kernels[i] = k
	}
	m.Kernels = kernels
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return b.Bytes(), nil
}

// ParseManifest reads what [Manifest.Encode] wrote. It refuses unknown fields
// and other schema versions.
func ParseManifest(data []byte) (Manifest, error) {
	var version struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	if version.Schema != ManifestSchema {
		return Manifest{}, fmt.Errorf("manifest: schema %d, this kgen reads %d: build the spec again", version.Schema, ManifestSchema)
	}
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}
