package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kgen-project/kgen/gen/demo"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cpu"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
)

type demoCommand struct {
	Spec       string  `arg:"" optional:"" help:"A YAML file; - is standard input (default: the shape of SmolLM2-135M)." predictor:"spec"`
	Backend    string  `enum:"auto,cpu,gpu" default:"auto" help:"gpu, cpu, or auto: gpu if there is one."`
	Documents  int     `default:"${demo_documents}" placeholder:"N" help:"Documents that there are (default: ${default})."`
	Tokens     string  `default:"${demo_tokens}" placeholder:"A-B" help:"Tokens of a document, from A to B (default: ${default})."`
	Zipf       float64 `default:"${demo_zipf}" placeholder:"S" help:"The document of rank r is asked for in proportion to 1/r^S (default: ${default})."`
	Requests   int     `default:"${demo_requests}" placeholder:"N" help:"Requests (default: ${default})."`
	PerRequest int     `default:"${demo_per_request}" placeholder:"N" help:"Documents of a request (default: ${default})."`
	Question   int     `default:"${demo_question}" placeholder:"N" help:"Tokens of a request behind its documents (default: ${default})."`
	Decode     int     `default:"${demo_decode}" placeholder:"N" help:"Tokens that each request goes on for (default: ${default})."`
	Check      int     `default:"${demo_check}" placeholder:"N" help:"Requests whose outputs are compared with attention in float64 (default: ${default})."`
	Seed       uint64  `default:"${demo_seed}" placeholder:"S" help:"Of everything random (default: ${default})."`
	JSON       bool    `name:"json" help:"Print the report as JSON."`
}

func (demoCommand) Help() string {
	return `One attention layer serves requests that share popular documents, by three methods: one copy of each document's KV that every ` +
		`request uses at its own position, a copy for each request (Block-Attention), and full recomputation. All give the same outputs, ` +
		`which are compared with attention in float64.`
}

// demoDefaults are what the command's tags name.
func demoDefaults() map[string]string {
	o := demo.Defaults()
	return map[string]string{
		"demo_documents":   strconv.Itoa(o.Documents),
		"demo_tokens":      fmt.Sprintf("%d-%d", o.Shortest, o.Longest),
		"demo_zipf":        strconv.FormatFloat(o.Zipf, 'g', -1, 64),
		"demo_requests":    strconv.Itoa(o.Requests),
		"demo_per_request": strconv.Itoa(o.PerRequest),
		"demo_question":    strconv.Itoa(o.Question),
		"demo_decode":      strconv.Itoa(o.Decode),
		"demo_check":       strconv.Itoa(o.Check),
		"demo_seed":        strconv.FormatUint(o.Seed, 10),
	}
}

func (c *demoCommand) Run(ctx context.Context, a *app) error {
	s, err := demo.SmolLM2()
	if c.Spec != "" {
		s, err = a.readSpec(ctx, c.Spec)
	}
	if err != nil {
		return err
	}
	o := demo.Options{
		Seed: c.Seed, Documents: c.Documents, Zipf: c.Zipf, Requests: c.Requests, PerRequest: c.PerRequest,
		Question: c.Question, Decode: c.Decode, Check: c.Check,
	}
	if o.Shortest, o.Longest, err = parseRange(c.Tokens); err != nil {
		return usagef("--tokens %s: %w", c.Tokens, err)
	}
	if err := o.Validate(s); err != nil {
		return usageError{err}
	}
	s.Targets = []spec.Target{"sm_80"} // of the family that runs on every GPU and needs no tensor maps
	dev, provide, err := a.demoBackend(ctx, c.Backend)
	if err != nil {
		return err
	}
	bar := a.progress()
	o.Progress = func(done, total int) { bar.set(done, total, "requests") }
	report, err := demo.Run(ctx, dev, s, provide, o)
	bar.end()
	if err = errors.Join(err, dev.Close()); err != nil {
		return err
	}
	if c.JSON {
		return a.json(report)
	}
	_, err = fmt.Fprint(a.stdout, report)
	return err
}

// parseRange reads A-B, or A alone.
func parseRange(text string) (from, to int, err error) {
	first, last, both := strings.Cut(text, "-")
	if !both {
		last = first
	}
	from, err = strconv.Atoi(first)
	if err == nil {
		to, err = strconv.Atoi(last)
	}
	if err != nil {
		return 0, 0, errors.New("want two numbers, such as 64-256")
	}
	return from, to, nil
}

// demoBackend opens the GPU, or the CPU backend where there is none.
func (a *app) demoBackend(ctx context.Context, name string) (cuda.Device, verify.Provider, error) {
	if name != "cpu" {
		dev, err := driver.Open(ctx, 0)
		if err == nil {
			p, err := a.places()
			if err != nil {
				return nil, nil, errors.Join(err, dev.Close())
			}
			return dev, verify.Generated(dev, compileWith(p)), nil
		}
		if name == "gpu" || !errors.Is(err, cuda.ErrNoDevice) && !errors.Is(err, cuda.ErrNoLibrary) {
			return nil, nil, err
		}
	}
	dev := cpu.Open(cpu.Options{})
	return dev, verify.CPU(dev), nil
}
