package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
)

type benchCommand struct {
	Spec     string   `arg:"" help:"A YAML file; - is standard input." predictor:"spec"`
	Case     []string `placeholder:"CASE" help:"Cases in place of the usual ones: prefill:BATCHxTOKENS, extend:BATCHxQUERY/CONTEXT, decode:BATCHxQUERY/CONTEXT."`
	Encoding string   `placeholder:"E" help:"An encoding in place of the spec's: segment, raw or baked." predictor:"encoding"`
	Repeats  int      `default:"20" placeholder:"N" help:"Timed launches of a case (default: 20)."`
	Seed     uint64   `default:"1" placeholder:"S" help:"Of pages, offsets and values (default: 1)."`
	Read     float64  `placeholder:"TB/s" help:"The device's read bandwidth; with --product, each row gets the limit that they set."`
	Product  float64  `placeholder:"TFLOP/s" help:"The device's rate of matrix products."`
	JSON     bool     `name:"json" help:"Print the rows as JSON."`
}

func (benchCommand) Help() string {
	return `A sequence's KV lies in chunks of 512 tokens at arbitrary offsets, in shuffled pages. Each time is the median of a replayed graph with ` +
		`a cold L2 cache, the merge of split sequences included. It needs a GPU. TB/s counts every input and output once.`
}

func (c *benchCommand) Run(ctx context.Context, a *app) error {
	s, err := a.readSpec(c.Spec)
	if err != nil {
		return err
	}
	if c.Encoding != "" {
		words, err := parseWords("encoding", []string{c.Encoding}, spec.AllEncodings)
		if err != nil {
			return err
		}
		s = spec.WithEncoding(s, words[0])
	}
	cases := bench.Usual()
	if len(c.Case) > 0 {
		cases = nil
		for _, text := range c.Case {
			one, err := bench.ParseCase(text)
			if err != nil {
				return usagef("%v", err)
			}
			cases = append(cases, one)
		}
	}
	if c.Repeats < 1 || c.Read < 0 || c.Product < 0 {
		return usagef("--repeats, --read and --product are positive numbers")
	}
	if _, err := generate([]spec.Spec{s}); err != nil { // a spec that can't be planned, before a device is opened
		return err
	}
	p, err := a.places()
	if err != nil {
		return err
	}
	dev, err := driver.Open(ctx, 0)
	if err != nil {
		return err
	}
	rows, err := c.measure(ctx, dev, s, verify.Generated(dev, compileWith(p)), cases)
	if err = errors.Join(err, dev.Close()); err != nil {
		return err
	}
	if c.JSON {
		return a.json(rows)
	}
	return a.table([]string{"case", "median us", "fastest", "slowest", "TFLOP/s", "TB/s", "limit us", "of limit", "splits"}, benchRows(rows))
}

func (c *benchCommand) measure(ctx context.Context, dev cuda.Device, s spec.Spec, provide verify.Provider, cases []bench.Case) ([]bench.Row, error) {
	graphs, ok := dev.(cuda.GraphDevice)
	if !ok {
		return nil, fmt.Errorf("bench: %s can't record graphs", dev.Info().Name)
	}
	k, err := provide(ctx, s)
	if err != nil {
		return nil, err
	}
	launcher, ok := k.Launcher.(bench.Launcher)
	if !ok {
		return nil, fmt.Errorf("bench: the kernels of %s can't be timed", s.Name)
	}
	return bench.Run(ctx, graphs, s, bench.Kernels{Launcher: launcher, Tiles: k.Tiles}, cases, bench.Options{
		Repeats: c.Repeats, Seed: c.Seed, ReadBandwidth: c.Read * 1e12, Product: c.Product * 1e12,
	})
}

func benchRows(rows []bench.Row) [][]string {
	us := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Nanoseconds())/1e3) }
	var table [][]string
	for _, r := range rows {
		limit, fraction := "", ""
		if r.Limit > 0 {
			limit, fraction = us(r.Limit), fmt.Sprintf("%.2f", r.Fraction)
		}
		table = append(table, []string{
			r.Case, us(r.Median), us(r.Fastest), us(r.Slowest), fmt.Sprintf("%.1f", r.TFLOPs), fmt.Sprintf("%.2f", r.TBs), limit, fraction, fmt.Sprint(r.SplitCount),
		})
	}
	return table
}
