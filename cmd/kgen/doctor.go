package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
)

type doctorCommand struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

func (doctorCommand) Help() string {
	return `It exits 0 whatever it finds: the problems are in the list, each with what to do.`
}

// diagnosis is what kgen finds on this machine.
type diagnosis struct {
	Kgen     string   `json:"kgen"`
	Go       string   `json:"go"` // that kgen was built with
	Platform string   `json:"platform"`
	Tools    []tool   `json:"tools"`
	CXX      tool     `json:"cxx"`    // for the emulator
	Python   tool     `json:"python"` // for toolchain install
	Cache    cache    `json:"cache"`
	GPU      gpu      `json:"gpu"`
	Build    string   `json:"build"`  // what kgen build would compile with
	Verify   string   `json:"verify"` // what kgen verify would run on
	Plans    string   `json:"plans"`  // where the plans of the GPU's kernels come from; "" where there is none
	Problems []string `json:"problems"`
}

type cache struct {
	Dir     string `json:"dir"` // "": there is none
	Bytes   int64  `json:"bytes"`
	Files   int    `json:"files"`
	Problem string `json:"problem,omitempty"`
}

type gpu struct {
	Name       string `json:"name,omitempty"`
	Capability string `json:"capability,omitempty"`
	SMs        int    `json:"multiprocessors,omitempty"`
	Memory     int64  `json:"memory_bytes,omitempty"`
	Driver     string `json:"driver,omitempty"`
	Problem    string `json:"problem,omitempty"`
}

func (c *doctorCommand) Run(ctx context.Context, a *app) error {
	d := diagnosis{Kgen: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Problems: []string{}}
	p, err := a.places()
	d.Tools = p.tools(ctx)
	d.CXX = program(ctx, "c++", "g++", "clang++")
	d.Python = program(ctx, "python3")
	if err != nil {
		d.Cache.Problem = err.Error()
	} else {
		d.Cache = lookAtCache(p.root)
	}
	d.GPU = lookAtGPU(ctx)
	d.conclude()
	if d.GPU.Name != "" && d.GPU.Problem == "" {
		d.Plans = plansOf(ctx, d.GPU, d.Build, filepath.Join("specs", tunedFolder), tunedFolder)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.JSON {
		return a.json(d)
	}
	return a.printDiagnosis(d)
}

// program is the first of the programs that is in PATH, and the first line it
// gives as its version.
func program(ctx context.Context, names ...string) tool {
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		t := tool{Name: name, Path: path}
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil {
			t.Problem = fmt.Sprintf("it does not run: %v", err)
		}
		t.Version, _, _ = strings.Cut(string(out), "\n")
		return t
	}
	return tool{Name: strings.Join(names, ", "), Problem: "not found"}
}

func lookAtCache(dir string) cache {
	c := cache{Dir: dir}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			c.Files++
			c.Bytes += info.Size()
		}
		return nil
	})
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = tryCache(dir)
	}
	if err != nil {
		c.Problem = err.Error()
	}
	return c
}

// tryCache writes to the cache as much as a small cubin, which a full disk does not take.
func tryCache(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "doctor-*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 64<<10))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

func lookAtGPU(ctx context.Context) gpu {
	dev, err := driver.Open(ctx, 0)
	switch {
	case errors.Is(err, cuda.ErrNoLibrary), errors.Is(err, cuda.ErrNoDevice):
		return gpu{}
	case err != nil:
		return gpu{Problem: err.Error()}
	}
	i := dev.Info()
	g := gpu{Name: i.Name, Capability: fmt.Sprintf("%d.%d", i.Major, i.Minor), SMs: i.Multiprocessors, Memory: i.MemoryBytes, Driver: i.Driver}
	if err := dev.Close(); err != nil {
		g.Problem = err.Error()
	}
	return g
}

// conclude says what the commands would use, and what is wrong.
func (d *diagnosis) conclude() {
	problem := func(format string, args ...any) { d.Problems = append(d.Problems, fmt.Sprintf(format, args...)) }
	for _, t := range d.Tools {
		if t.Path != "" && t.Problem != "" {
			problem("%s: %s", t.Name, t.Problem)
		}
		if d.Build == "" && t.Version != "" && t.Name != "nvdisasm" {
			d.Build = t.Name + " " + t.Version
		}
	}
	if d.Build == "" {
		problem("no compiler for kernels: run `kgen toolchain install`, or set CUDA_HOME to a CUDA toolkit")
		if d.Python.Path == "" {
			problem("no python3, which `kgen toolchain install` needs: install python3 with pip")
		}
	}
	switch {
	case d.Cache.Problem == "":
	case d.Cache.Dir == "":
		problem("%s", d.Cache.Problem)
	default:
		problem("the cache can't be used: %s; set KGEN_CACHE_DIR to a folder that can be written", d.Cache.Problem)
	}
	if d.GPU.Problem != "" {
		problem("the GPU can't be used: %s", d.GPU.Problem)
	}
	switch {
	case d.CXX.Path == "":
		problem("no C++ compiler, which the emulator needs: install g++ or clang++")
	case d.CXX.Problem != "":
		problem("%s: %s", d.CXX.Path, d.CXX.Problem)
	}
	switch {
	case d.GPU.Name != "" && d.GPU.Problem == "":
		d.Verify = d.GPU.Name
	case d.CXX.Path != "" && d.CXX.Problem == "":
		d.Verify = "the emulator"
	}
}

// plansOf says who chooses the plans of a GPU's kernels: a table in one of the folders, or
// the cost model.
func plansOf(ctx context.Context, g gpu, compiler string, folders ...string) string {
	for _, folder := range folders {
		path := filepath.Join(folder, tune.FileName(g.Name))
		table, err := readTable(ctx, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return fmt.Sprintf("%s can't be read: %v", path, err)
		case table.GPU != g.Name:
			continue
		}
		var parts []string
		for _, e := range table.Entries {
			part := fmt.Sprintf("%s (%s)", e.Spec, e.Date)
			if why := e.Differs(tune.Identity{GPU: g.Name, Driver: g.Driver, Compiler: compiler}); why != "" {
				part = fmt.Sprintf("%s (%s, but %s: run kgen tune again)", e.Spec, e.Date, why)
			}
			parts = append(parts, part)
		}
		return fmt.Sprintf("tuned by %s: %s; of other specs the cost model's", path, strings.Join(parts, ", "))
	}
	return fmt.Sprintf("the cost model's: %s has no table in %s; kgen tune SPEC makes one", g.Name, strings.Join(folders, " or "))
}

func (a *app) printDiagnosis(d diagnosis) error {
	orNothing := func(s string) string {
		if s == "" {
			return "nothing: see below"
		}
		return s
	}
	rows := [][]string{{"kgen", d.Kgen + ", " + d.Go + ", " + d.Platform}}
	for _, t := range append(d.Tools, d.CXX, d.Python) {
		text := t.Version
		if t.Problem != "" {
			text = t.Problem
		}
		rows = append(rows, []string{t.Name, text, t.Path})
	}
	kept := "none: see below"
	if d.Cache.Dir != "" {
		kept = fmt.Sprintf("%d files, %s", d.Cache.Files, sizeText(d.Cache.Bytes))
	}
	rows = append(rows, []string{"cache", kept, d.Cache.Dir})
	g := "none"
	if d.GPU.Name != "" {
		g = fmt.Sprintf("%s, capability %s, %d multiprocessors, %s, %s", d.GPU.Name, d.GPU.Capability, d.GPU.SMs, sizeText(d.GPU.Memory), d.GPU.Driver)
	}
	rows = append(rows, []string{"GPU", g},
		[]string{"build", "compiles with " + orNothing(d.Build)},
		[]string{"verify", "runs on " + orNothing(d.Verify)})
	if d.Plans != "" {
		rows = append(rows, []string{"plans", d.Plans})
	}
	if err := a.table(nil, rows); err != nil {
		return err
	}
	if len(d.Problems) == 0 {
		fmt.Fprintln(a.stdout, "no problems")
	}
	for _, p := range d.Problems {
		fmt.Fprintln(a.stdout, "problem:", p)
	}
	return nil
}
