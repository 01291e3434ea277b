package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/plan"
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

func (c *diffCommand) Run(ctx context.Context, a *app) error {
	if c.A == "-" && c.B == "-" {
		return usagef("only one of the two can be standard input")
	}
	first, err := a.fields(ctx, c.A)
	if err != nil {
		return usageError{err}
	}
	second, err := a.fields(ctx, c.B)
	if err != nil {
		return usageError{err}
	}
	if first.built != second.built {
		return usagef("%s and %s: one is a spec and the other a folder; build the spec, then compare the folders", c.A, c.B)
	}
	differences := compare(first, second)
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

// described is a spec or a built folder as values by the path of their field,
// some of them in groups: one a kernel and target.
type described struct {
	built  bool
	values map[string]any
	groups map[string]string // of a field; absent: none
}

func newDescribed(built bool) described {
	return described{built: built, values: map[string]any{}, groups: map[string]string{}}
}

func (d described) add(group, name string, value any) {
	field := name
	if group != "" {
		field = group + "." + name
		d.groups[field] = group
		d.values[group] = "there"
	}
	d.values[field] = value
}

// compare gives one difference for a group that only one of the two has.
func compare(a, b described) []difference {
	fields := maps.Clone(a.values)
	maps.Copy(fields, b.values)
	differences := []difference{}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		group := cmp.Or(a.groups[field], b.groups[field])
		if group != "" && a.values[group] != b.values[group] {
			continue
		}
		if x, y := a.values[field], b.values[field]; x != y {
			differences = append(differences, difference{field, x, y})
		}
	}
	return differences
}

func (a *app) fields(ctx context.Context, path string) (described, error) {
	if info, err := os.Stat(path); path != "-" && err == nil && info.IsDir() {
		data, err := os.ReadFile(filepath.Join(path, emit.ManifestFile))
		if err != nil {
			return described{}, fmt.Errorf("%s is not a folder that kgen built: %w", path, err)
		}
		m, err := abi.ParseManifest(data)
		if err != nil {
			return described{}, fmt.Errorf("%s: %w", path, err)
		}
		return describeManifest(m)
	}
	s, err := a.readSpec(ctx, path)
	if err != nil {
		return described{}, err
	}
	return describeSpec(s)
}

// describeSpec has the resolved fields by the paths they have in a file, the
// digest, and the plans.
func describeSpec(s spec.Spec) (described, error) {
	plans, err := plan.All(s)
	if err != nil {
		return described{}, err
	}
	var tree any
	if err := yaml.Unmarshal(spec.Marshal(s), &tree); err != nil {
		return described{}, fmt.Errorf("read the resolved spec: %w", err)
	}
	d := newDescribed(false)
	d.add("", "digest", spec.Digest(s))
	d.flatten("", "", tree)
	for _, p := range plans {
		for _, t := range p.Targets {
			group := fmt.Sprintf("plan.%s.%s", p.Kind, t)
			d.add(group, "family", string(p.Family))
			d.add(group, "rows", p.Rows)
			d.add(group, "keys", p.Keys)
			d.add(group, "stages", p.Stages)
			d.add(group, "warps", p.Warps)
			d.add(group, "shared_bytes", p.Shared)
		}
	}
	return d, nil
}

// describeManifest has what the manifest says of a kernel under its kind and
// target, so that kernels with other plans are compared.
func describeManifest(m abi.Manifest) (described, error) {
	d := newDescribed(true)
	kernels := m.Kernels
	m.Kernels = nil
	if err := d.addJSON("", m); err != nil {
		return described{}, err
	}
	for _, k := range kernels {
		targets := k.Targets
		k.Targets = nil
		for _, t := range targets {
			group := fmt.Sprintf("%s.%s", k.Kind, t.Target)
			if t.Tuned { // one beside the default
				group = fmt.Sprintf("%s.%s", strings.TrimSuffix(k.Source, ".cu"), t.Target)
			}
			if err := cmp.Or(d.addJSON(group, k), d.addJSON(group, t)); err != nil {
				return described{}, err
			}
		}
	}
	return d, nil
}

func (d described) addJSON(group string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return err
	}
	d.flatten(group, "", tree)
	return nil
}

// flatten adds the leaves of a tree of maps; a list is a leaf.
func (d described) flatten(group, path string, tree any) {
	switch t := tree.(type) {
	case map[string]any:
		for name, v := range t {
			if path != "" {
				name = path + "." + name
			}
			d.flatten(group, name, v)
		}
	case []any:
		d.add(group, path, fmt.Sprint(t))
	case nil:
	default:
		d.add(group, path, t)
	}
}
