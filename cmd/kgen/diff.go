package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
)

type diffCommand struct {
	A    string `arg:"" help:"A spec or a built folder; a spec may be -, standard input." predictor:"built"`
	B    string `arg:"" help:"Another of the same sort." predictor:"built"`
	JSON bool   `name:"json" help:"Print the differences as JSON."`
}

func (diffCommand) Help() string {
	return `Of specs it compares the resolved fields and the plans; of folders the manifests: plans, compiler, registers, spills and so on. ` +
		`It exits 0 if nothing differs, 1 if something does and 2 if it can't tell.`
}

// difference is a field that A and B have different values of; nil: none.
type difference struct {
	Field string `json:"field"`
	A     any    `json:"a"`
	B     any    `json:"b"`
}

func (c *diffCommand) Run(a *app) error {
	if c.A == "-" && c.B == "-" {
		return usagef("only one of the two can be standard input")
	}
	first, err := a.fields(c.A)
	if err != nil {
		return usageError{err}
	}
	second, err := a.fields(c.B)
	if err != nil {
		return usageError{err}
	}
	if first.built != second.built {
		return usagef("%s and %s: one is a spec and the other a folder; build the spec, then compare the folders", c.A, c.B)
	}
	differences := []difference{}
	for _, field := range slices.Sorted(maps.Keys(union(first.values, second.values))) {
		if x, y := first.values[field], second.values[field]; x != y {
			differences = append(differences, difference{field, x, y})
		}
	}
	if err := c.print(a, differences); err != nil {
		return usageError{err}
	}
	if len(differences) > 0 {
		return exitError(exitFailed)
	}
	return nil
}

func (c *diffCommand) print(a *app, differences []difference) error {
	if c.JSON {
		return a.json(differences)
	}
	if len(differences) == 0 {
		return nil
	}
	text := func(v any) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprint(v)
	}
	var rows [][]string
	for _, d := range differences {
		rows = append(rows, []string{d.Field, text(d.A), text(d.B)})
	}
	return a.table([]string{"field", c.A, c.B}, rows)
}

func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// described is a spec or a built folder as values by the path of their field.
type described struct {
	built  bool
	values map[string]any
}

func (a *app) fields(path string) (described, error) {
	if info, err := os.Stat(path); path != "-" && err == nil && info.IsDir() {
		data, err := os.ReadFile(filepath.Join(path, emit.ManifestFile))
		if err != nil {
			return described{}, fmt.Errorf("%s is not a folder that kgen built: %w", path, err)
		}
		m, err := abi.ParseManifest(data)
		if err != nil {
			return described{}, fmt.Errorf("%s: %w", path, err)
		}
		values, err := manifestFields(m)
		return described{true, values}, err
	}
	s, err := a.readSpec(path)
	if err != nil {
		return described{}, err
	}
	values, err := specFields(s)
	return described{false, values}, err
}

// specFields is the resolved fields by the paths they have in a file, the
// digest, and the plans.
func specFields(s spec.Spec) (map[string]any, error) {
	all, err := generate([]spec.Spec{s})
	if err != nil {
		return nil, err
	}
	var tree any
	if err := yaml.Unmarshal(spec.Marshal(s), &tree); err != nil {
		return nil, fmt.Errorf("read the resolved spec: %w", err)
	}
	values := map[string]any{"digest": spec.Digest(s)}
	flatten(values, "", tree)
	for _, k := range all[0].output.Kernels {
		p := k.Plan
		for _, t := range p.Targets {
			at := fmt.Sprintf("plan.%s.%s.", p.Kind, t)
			values[at+"family"] = string(p.Family)
			for name, n := range map[string]int{"rows": p.Rows, "keys": p.Keys, "stages": p.Stages, "warps": p.Warps, "shared_bytes": p.Shared} {
				values[at+name] = n
			}
		}
	}
	return values, nil
}

// manifestFields has what the manifest says of a kernel under its kind and
// target, so that kernels with other plans are compared.
func manifestFields(m abi.Manifest) (map[string]any, error) {
	kernels := m.Kernels
	m.Kernels = nil
	values := map[string]any{}
	add := func(path string, v any) error {
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		var tree any
		if err := json.Unmarshal(data, &tree); err != nil {
			return err
		}
		flatten(values, path, tree)
		return nil
	}
	if err := add("", m); err != nil {
		return nil, err
	}
	for _, k := range kernels {
		targets := k.Targets
		k.Targets = nil
		for _, t := range targets {
			path := fmt.Sprintf("%s.%s", k.Kind, t.Target)
			if err := cmp.Or(add(path, k), add(path, t)); err != nil {
				return nil, err
			}
		}
	}
	return values, nil
}

// flatten adds the leaves of a tree of maps and lists; a list of leaves is one.
func flatten(values map[string]any, path string, tree any) {
	switch t := tree.(type) {
	case map[string]any:
		for name, v := range t {
			at := name
			if path != "" {
				at = path + "." + name
			}
			flatten(values, at, v)
		}
	case []any:
		values[path] = fmt.Sprint(t)
	case nil:
	default:
		values[path] = t
	}
}
