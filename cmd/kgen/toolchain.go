package main

import (
	"context"

	"github.com/kgen-project/kgen/gen/toolchain"
)

type toolchainCommand struct {
	Install toolchainInstall `cmd:"" help:"Put NVIDIA's compilers into the cache folder, with pip."`
	Show    toolchainShow    `cmd:"" help:"Show which compilers are found, and where."`
}

type toolchainInstall struct {
	NVCC      bool `name:"nvcc" help:"Install nvcc too."`
	IfMissing bool `help:"Do nothing where NVRTC is found, such as that of a CUDA toolkit."`
}

func (toolchainInstall) Help() string {
	return `NVRTC, which is all that a build needs, and a disassembler come as Python packages of fixed versions, so python3 with pip must be there. ` +
		`Nothing outside the cache folder is touched, and what is installed already is left alone.`
}

func (c *toolchainInstall) Run(ctx context.Context, a *app) error {
	p, err := a.places()
	if err != nil {
		return err
	}
	if c.IfMissing && !c.NVCC && toolchain.Find(p.toolchain).NVRTC != "" {
		return a.showTools(ctx)
	}
	o := toolchain.InstallOptions{NVCC: c.NVCC}
	if isTerminal(a.stderr) {
		o.Out = a.stderr
	}
	if err := toolchain.Install(ctx, p.toolchain, o); err != nil {
		return err
	}
	return a.showTools(ctx)
}

type toolchainShow struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

// tool is a program or library of NVIDIA's.
type tool struct {
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	Problem string `json:"problem,omitempty"`
}

func (c *toolchainShow) Run(ctx context.Context, a *app) error {
	if !c.JSON {
		return a.showTools(ctx)
	}
	tools, err := a.tools(ctx)
	if err != nil {
		return err
	}
	return a.json(tools)
}

func (a *app) tools(ctx context.Context) ([]tool, error) {
	p, err := a.places()
	if err != nil {
		return nil, err
	}
	return p.tools(ctx), nil
}

func (p places) tools(ctx context.Context) []tool {
	found := toolchain.Find(p.toolchain)
	tools := []tool{
		{Name: "nvrtc", Path: found.NVRTC, Problem: "not found: run `kgen toolchain install`"},
		{Name: "nvcc", Path: found.NVCC, Problem: "not found: run `kgen toolchain install --nvcc`"},
		{Name: "nvdisasm", Path: found.Nvdisasm, Problem: "not found: run `kgen toolchain install`"},
	}
	for i := range tools {
		t := &tools[i]
		if t.Path == "" {
			continue
		}
		t.Problem = ""
		var err error
		if t.Version, err = toolchain.Version(ctx, t.Path, p.versions); err != nil {
			t.Problem = err.Error()
		}
	}
	return tools
}

func (a *app) showTools(ctx context.Context) error {
	tools, err := a.tools(ctx)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, t := range tools {
		rows = append(rows, []string{t.Name, t.Version + t.Problem, t.Path})
	}
	return a.table(nil, rows)
}
