package tune

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/emulate"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/templates"
)

// Sources is a hash of the kernels that tuning chooses among for a target, and of merge, without
// their comments: times are of the kernels of their day. Of those that differ in constants
// alone it has the first.
func Sources(s spec.Spec, target spec.Target) (string, error) {
	var plans []plan.Plan
	seen := map[string]bool{}
	for _, kind := range KindsOf(s) {
		candidates, err := plan.Candidates(s, kind, target)
		if err != nil {
			return "", err
		}
		for _, p := range candidates {
			if v := emit.Variant(s, p); !seen[v] {
				seen[v], plans = true, append(plans, p)
			}
		}
	}
	if slices.Contains(s.Kinds, spec.Merge) {
		merge, err := plan.Choose(s, spec.Merge, target)
		if err != nil {
			return "", err
		}
		plans = append(plans, merge)
	}
	out, err := emit.Emit(s, plans, templates.FS)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, k := range out.Kernels {
		writeCode(sum, k.Source)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// writeCode writes a source's lines but for comments.
func writeCode(to io.Writer, source []byte) {
	for line := range strings.Lines(string(source)) {
		code, _, _ := strings.Cut(line, "//")
		if code = strings.TrimSpace(code); code != "" {
			fmt.Fprintln(to, code) // a hash has no errors
		}
	}
}

// Counted is what the emulator's counters stand for as a time, by about what each
// thing takes one multiprocessor of an H200, in nanoseconds: no GPU's time, but the
// same on every machine, so that a whole run can be had without a GPU.
func Counted(c emulate.Counters) time.Duration {
	const (
		mma, wgmma                  = 5, 60 // an m16n8k16; an m64nNk16 of a usual N
		ldmatrix, shuffle           = 2, 1
		barrier, warpBarrier, block = 30, 5, 2000
		globalBytes, sharedBytes    = 32, 128 // a nanosecond
	)
	ns := mma*c.MMAs + wgmma*c.WGMMAs + ldmatrix*c.LdMatrices + shuffle*c.Shuffles +
		barrier*c.Barriers + warpBarrier*c.WarpBarriers + block*c.Blocks +
		(c.CopyBytes+c.LoadBytes+c.StoreBytes+c.TensorCopyBytes)/globalBytes +
		(c.SharedLoadBytes+c.SharedStoreBytes+2*c.SharedCopyBytes)/sharedBytes
	return time.Duration(ns)
}
