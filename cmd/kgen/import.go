package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kgen-project/kgen/gen/importer"
)

type importCommand struct {
	Config string `arg:"" help:"A Hugging Face config.json; - is standard input." predictor:"config"`
	Output string `short:"o" placeholder:"SPEC" help:"File to write; without it the spec goes to standard output."`
}

func (importCommand) Help() string {
	return `The spec says which field each value came from. A field that changes the result of attention and that a spec ` +
		`can't express is refused by name; none is dropped.`
}

func (c *importCommand) Run(a *app) error {
	name, data, err := a.read(c.Config)
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
	if err := replaceFile(c.Output, yaml); err != nil {
		return fmt.Errorf("write the spec: %w", err)
	}
	return nil
}

// replaceFile writes a file whole or not at all.
func replaceFile(path string, data []byte) error {
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+stagedSuffix)
	if err := os.RemoveAll(temp); err != nil { // of a process that was killed
		return err
	}
	if err := writeSynced(temp, data); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.RemoveAll(temp))
	}
	return syncFolder(filepath.Dir(path))
}
