// Package demo serves one skewed workload by three methods, and reports what
// each costs: lazy reuse (one copy of every document's KV, used by all requests
// at any position), a copy of every document for each request (Block-Attention),
// and full recomputation.
//
// The model is one attention layer of a spec's shape with random queries, keys
// and values in place of weights; the sequences, pages, work lists and kernels
// are those of a server. All methods compute the same outputs, which are held
// to attention in float64.
package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Options are the workload.
type Options struct {
	Seed       uint64
	Documents  int
	Zipf       float64 // exponent: the document of rank r is asked for in proportion to 1/r^Zipf
	Requests   int
	PerRequest int // documents of a request, all different
	Shortest   int // tokens of a document
	Longest    int
	Question   int // tokens of a request behind its documents
	Decode     int // tokens that each request goes on for
	Check      int // requests whose outputs are compared with the oracle's

	// Progress, where set, is called as requests are served.
	Progress func(done, total int)
}

// Defaults is a workload that takes a CPU a few seconds.
func Defaults() Options {
	return Options{
		Seed: 1, Documents: 200, Zipf: 1.07, Requests: 32, PerRequest: 5,
		Shortest: 64, Longest: 256, Question: 16, Decode: 8, Check: 3,
	}
}

// Validate says all that is wrong with the options, with a model of the spec.
func (o Options) Validate(s spec.Spec) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, n := range []struct {
		name      string
		n, lowest int
	}{
		{"documents", o.Documents, 1}, {"requests", o.Requests, 1}, {"documents of a request", o.PerRequest, 1},
		{"tokens of a document", o.Shortest, 1}, {"tokens of a question", o.Question, 1}, {"decode steps", o.Decode, 0},
		{"requests to check", o.Check, 0},
	} {
		if n.n < n.lowest || n.n > 1<<20 {
			wrong("%d %s: want %d to %d", n.n, n.name, n.lowest, 1<<20)
		}
	}
	if o.Longest < o.Shortest {
		wrong("documents of %d to %d tokens", o.Shortest, o.Longest)
	}
	if o.PerRequest > o.Documents {
		wrong("%d different documents a request, of %d", o.PerRequest, o.Documents)
	}
	if !(o.Zipf >= 0 && o.Zipf <= 10) {
		wrong("a Zipf exponent of %g: want 0 to 10", o.Zipf)
	}
	if most := o.PerRequest*o.Longest + o.Question + o.Decode; most > s.Rope.MaxPosition {
		wrong("a request may have %d tokens, and the spec's positions end at %d", most, s.Rope.MaxPosition)
	}
	for _, k := range spec.AllKinds {
		if !slices.Contains(s.Kinds, k) {
			wrong("the spec has no kind %s, and all are needed", k)
		}
	}
	return errors.Join(errs...)
}

// Run serves the workload by each method on dev, with kernels of the spec.
func Run(ctx context.Context, dev cuda.Device, s spec.Spec, provide verify.Provider, o Options) (_ Report, err error) {
	if err := o.Validate(s); err != nil {
		return Report{}, fmt.Errorf("demo: %w", err)
	}
	if o.Progress == nil {
		o.Progress = func(int, int) {}
	}
	w := newWorkload(o)
	m := newModel(s, w)
	d, err := newDevice(ctx, dev, s, provide, m.sinkLogits())
	if err != nil {
		return Report{}, fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var servers []*server
	for _, how := range []method{lazyReuse, copies, recomputation} {
		var v *server
		if v, err = d.server(how, m, w); err != nil {
			return Report{}, fmt.Errorf("demo: %s: %w", how.name, err)
		}
		defer func() { err = errors.Join(err, v.close()) }()
		servers = append(servers, v)
	}
	if err := serveAll(ctx, servers, w); err != nil {
		return Report{}, fmt.Errorf("demo: %w", err)
	}
	return newReport(dev.Info(), s, w, servers), nil
}
