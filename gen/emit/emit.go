// Package emit turns a spec and its plans into files: CUDA sources, Go
// bindings, a C header and a manifest. It is pure: values in, a map of path to
// content out, byte-identical from run to run.
package emit

import (
	"fmt"
	"io/fs"
	"slices"

	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
)

// Output is everything that a spec and its plans become before a compiler sees it.
type Output struct {
	Files    map[string][]byte // sources and C header, by path relative to the output folder
	Kernels  []Kernel          // in the order of the plans
	Manifest abi.Manifest      // but for Generator, Compiler, Flags and the figures of the targets
}

// Emit writes one CUDA source a plan, from the templates (package templates
// has them), and the C header. The Go bindings are made from the complete
// manifest, by [Bindings].
func Emit(s spec.Spec, plans []plan.Plan, templates fs.FS) (Output, error) {
	out := Output{Files: map[string][]byte{}}
	for _, p := range plans {
		k, err := emitKernel(s, p, templates)
		if err != nil {
			return Output{}, err
		}
		if _, taken := out.Files[k.File]; taken {
			return Output{}, fmt.Errorf("emit: two plans make %s; give kernels with one tile one plan, with both their targets", k.File)
		}
		out.Files[k.File] = k.Source
		out.Kernels = append(out.Kernels, k)
	}
	out.Files[s.Name+".h"] = Header(s, out.Kernels, "")
	out.Manifest = manifest(s, out.Kernels)
	return out, nil
}

// Tune adds the rules of GPU models and targets to the manifest. Their plans must be among
// the output's: see [plan.WithTuned].
func (o *Output) Tune(tuned []plan.Tuned) error {
	for _, t := range tuned {
		m := abi.ManifestTuned{GPU: t.GPU, Rules: []abi.ManifestRule{}}
		if t.GPU == "" {
			m.Target = string(t.Target)
		}
		for _, r := range t.Rules {
			i := slices.IndexFunc(o.Kernels, func(k Kernel) bool {
				return k.Plan.Kind == r.Kind && k.Plan.Layout() == r.Layout && slices.Contains(k.Plan.Targets, t.Target)
			})
			if i < 0 {
				return fmt.Errorf("emit: no kernel %s %s for %s, which a rule of %s has", r.Kind, r.Layout, t.Target, t.Of())
			}
			m.Rules = append(m.Rules, abi.ManifestRule{
				Kind: abi.Kind(r.Kind), Query: r.Query, Keys: r.Keys, Entry: o.Kernels[i].Entry, Fill: r.Cut.Fill, Tokens: r.Cut.Tokens,
			})
		}
		o.Manifest.Tuned = append(o.Manifest.Tuned, m)
	}
	return nil
}
