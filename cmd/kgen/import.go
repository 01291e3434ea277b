package main

import (
	"context"

	"github.com/kgen-project/kgen/gen/importer"
)

type importCommand struct {
	Config string `arg:"" help:"A Hugging Face config.json; - is standard input." predictor:"config"`
	Output string `short:"o" placeholder:"SPEC" help:"File to write; without it the spec goes to standard output."`
}

func (importCommand) Help() string {
	return `A field that changes attention and that a spec can't express is refused by name, as is one that kgen does not know; ` +
		`none is dropped.`
}

func (c *importCommand) Run(ctx context.Context, a *app) error {
	name, data, err := a.read(ctx, c.Config)
	if err != nil {
		return err
	}
	yaml, err := importer.Import(name, data)
	if err != nil {
		return err
	}
	if c.Output == "" || c.Output == "-" {
		_, err := a.stdout.Write(yaml)
		return err
	}
	return replaceFile(c.Output, yaml)
}
