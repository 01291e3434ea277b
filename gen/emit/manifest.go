package emit

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
)

// manifest is what is known before a compiler runs: all but Generator,
// Compiler, Flags and the figures of each target.
func manifest(s spec.Spec, kernels []Kernel) abi.Manifest {
	m := abi.Manifest{Schema: abi.ManifestSchema, Spec: s.Name, SpecDigest: spec.Digest(s)}
	for _, k := range kernels {
		sum := sha256.Sum256(k.Source)
		entry := abi.ManifestKernel{
			Kind: abi.Kind(k.Plan.Kind), Entry: k.Entry, Family: string(k.Plan.Family),
			Plan:    abi.ManifestPlan{Warps: k.Plan.Warps},
			Threads: k.Plan.Threads(), SharedBytes: k.Plan.Shared,
			Source: k.File, SourceSHA256: hex.EncodeToString(sum[:]),
		}
		if tiled(k.Plan.Kind) {
			entry.Plan.Rows, entry.Plan.Keys, entry.Plan.Stages = k.Plan.ItemRows(s.Model.Group()), k.Plan.Keys, k.Plan.Stages
			entry.Plan.Blocks, entry.Plan.Cluster, entry.Plan.Folds = moreThanOne(k.Plan.MinBlocks), moreThanOne(k.Plan.Cluster), k.Plan.Folds
			entry.Plan.KeysAhead = k.Plan.KeysAhead
		}
		for _, t := range k.Plan.Targets {
			entry.Targets = append(entry.Targets, abi.ManifestTarget{Target: string(t), Tuned: slices.Contains(k.Plan.Tuned, t)})
		}
		m.Kernels = append(m.Kernels, entry)
	}
	return m
}

// moreThanOne is n, or 0 where it is 1 and the manifest says nothing of it.
func moreThanOne(n int) int {
	if n > 1 {
		return n
	}
	return 0
}

// CubinFile is the name of a kernel's machine code for a target, beside its
// source: prefill_sm80_r128k64s2w4.sm_90a.cubin of prefill_sm80_r128k64s2w4.cu.
func CubinFile(source, target string) string {
	return strings.TrimSuffix(source, ".cu") + "." + target + ".cubin"
}
