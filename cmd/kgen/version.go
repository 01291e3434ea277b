package main

import (
	"fmt"
	"runtime"

	"github.com/kgen-project/kgen/runtime/abi"
)

// version is that of kgen; manifests carry it, so it changes with what a build
// makes and not with each commit.
const version = "0.1.0"

const generator = "kgen " + version

type versionCommand struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

func (c *versionCommand) Run(a *app) error {
	v := struct {
		Kgen     string `json:"kgen"`
		Go       string `json:"go"`
		Platform string `json:"platform"`
		ABI      int    `json:"abi"`
		Manifest int    `json:"manifest"`
	}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, abi.Version, abi.ManifestSchema}
	if c.JSON {
		return a.json(v)
	}
	fmt.Fprintf(a.stdout, "kgen %s, %s, %s, launch parameters %d, manifest %d\n", v.Kgen, v.Go, v.Platform, v.ABI, v.Manifest)
	return nil
}
