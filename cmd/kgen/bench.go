package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kgen-project/kgen/gen/bench"
	"github.com/kgen-project/kgen/gen/bench/page"
	"github.com/kgen-project/kgen/gen/build"
	"github.com/kgen-project/kgen/gen/plan"
	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/tune"
	"github.com/kgen-project/kgen/gen/verify"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/cuda/driver"
)

type benchCommand struct {
	Spec     string   `arg:"" optional:"" help:"A YAML file; - is standard input." predictor:"spec"`
	Case     []string `placeholder:"CASE" help:"Cases in place of the usual ones; the forms are above."`
	Sweep    bool     `help:"Add cases over the length of a context and over Zipf's exponent."`
	Against  []string `placeholder:"B" help:"Time baselines too: copies, raw, batching, torch, or all." predictor:"baseline"`
	Encoding string   `placeholder:"E" help:"An encoding in place of the spec's: segment, raw or baked." predictor:"encoding"`
	Fixed    bool     `name:"fixed-shares" help:"Give each block of family sm90 its share of the work from the start, not what comes next when it is done."`
	Parts    int      `placeholder:"N" help:"Give each item of family sm90 up to so many parts of a sequence, a power of two, not as many as are expected to be the fastest."`
	Layers   int      `default:"1" placeholder:"N" help:"Time a layer of a graph of so many, as a model's step is one: append, attend and merge, each layer with KV of its own, which the L2 cache does not have (default: 1, attend and merge alone)."`
	Clean    bool     `help:"Leave the L2 cache full of what was read, not of what was written and must be written back first."`
	Repeats  int      `default:"20" placeholder:"N" help:"Timed launches of a case (default: 20)."`
	Seed     uint64   `default:"1" placeholder:"S" help:"Of pages, offsets and values (default: 1)."`
	Read     float64  `placeholder:"TB/s" help:"The device's read bandwidth, in place of measuring it."`
	Product  float64  `placeholder:"TFLOP/s" help:"The device's rate of matrix products, in place of measuring it."`
	From     string   `placeholder:"JSON" help:"Show what an earlier run printed with --json; needs no GPU."`
	JSON     bool     `name:"json" xor:"form" help:"Print the report as JSON."`
	Markdown bool     `xor:"form" help:"Print the table as Markdown."`
	HTML     string   `name:"html" placeholder:"FILE" help:"Write a page with charts too, which needs nothing else."`
}

func (benchCommand) Help() string {
	return `A sequence's KV lies in chunks of 512 tokens at arbitrary offsets (with a window one behind the other), in shuffled pages. Each time is the median of a replayed graph with ` +
		`a cold L2 cache, the merge of split sequences included; with --layers the share of a layer of a graph of several. TB/s counts every input and output once. The limit is the larger of the bytes and ` +
		`the operations over the device's ceilings, which a kernel that only reads and one that only multiplies measure in the same run.

Cases: ` + bench.CaseForms + `. shared is a decode step of sequences that hold one document, each at an offset of its own, and OWN tokens of ` +
		`their own; zipf one of sequences that hold HELD of many documents, drawn by Zipf's law with exponent S. OWN may be a range, such as 64-192.

Baselines: copies is Block-Attention: each request's documents copied to pages of its own and turned, then the classical kernel (baked), ` +
		`and where documents are shared the same with copies kept in an LRU list; raw rotates un-rotated keys as they come; batching is the same kernels with the spec's other batching, in steps of extend of several sequences; torch is cuDNN's and ` +
		`FlashAttention-2's by a python3 that has torch.`
}

// Baselines that --against names.
type baseline string

var allBaselines = []baseline{"copies", "raw", "batching", "torch", "all"}

func (c *benchCommand) Run(ctx context.Context, a *app) error {
	if c.HTML != "" {
		if err := checkFile(c.HTML); err != nil { // found out before the measuring, for it takes long
			return err
		}
	}
	report, err := c.report(ctx, a)
	if err != nil {
		return err
	}
	if c.HTML != "" {
		html, err := page.HTML(report)
		if err != nil {
			return err
		}
		if err := replaceFile(c.HTML, html); err != nil {
			return err
		}
	}
	switch {
	case c.JSON:
		return a.json(report)
	case c.Markdown:
		_, err := io.WriteString(a.stdout, page.Markdown(report))
		return err
	}
	for _, line := range report.About() {
		fmt.Fprintln(a.stdout, line)
	}
	fmt.Fprintln(a.stdout)
	heading, rows := report.Table()
	if err := a.table(heading, rows); err != nil {
		return err
	}
	for _, line := range report.Notes() {
		fmt.Fprintln(a.stdout, line)
	}
	return nil
}

// report reads a report, or measures one.
func (c *benchCommand) report(ctx context.Context, a *app) (bench.Report, error) {
	if c.From == "" {
		if c.Spec == "" {
			return bench.Report{}, usagef(`expected "<spec>", or --from; see kgen bench --help`)
		}
		return c.measure(ctx, a)
	}
	if c.Spec != "" {
		return bench.Report{}, usagef("--from shows what was measured; leave out the spec")
	}
	if others := a.besides("from", "json", "markdown", "html"); others != nil {
		return bench.Report{}, usagef("--from shows what was measured; leave out %s", strings.Join(others, ", "))
	}
	name, data, err := a.read(ctx, c.From)
	if err != nil {
		return bench.Report{}, err
	}
	report, err := bench.ParseReport(data)
	if err != nil {
		return bench.Report{}, usagef("%s: %w", name, err)
	}
	return report, nil
}

// cases are those given, or the usual ones that the spec's kernels can compute.
func (c *benchCommand) cases(s spec.Spec) ([]bench.Case, error) {
	var cases []bench.Case
	for _, text := range c.Case {
		one, err := bench.ParseCase(text)
		if err == nil {
			err = one.Check(s)
		}
		if err != nil {
			return nil, usageError{err}
		}
		cases = append(cases, one)
	}
	var more []bench.Case
	if len(c.Case) == 0 {
		more = bench.Usual()
	}
	if c.Sweep {
		more = append(more, bench.Sweep()...)
	}
	for _, one := range more {
		if one.Check(s) == nil && !slices.Contains(cases, one) {
			cases = append(cases, one)
		}
	}
	if len(cases) == 0 {
		return nil, usagef("none of the usual cases fits the spec %s: give --case", s.Name)
	}
	return cases, nil
}

func (c *benchCommand) measure(ctx context.Context, a *app) (_ bench.Report, err error) {
	s, err := a.readSpec(ctx, c.Spec)
	if err != nil {
		return bench.Report{}, err
	}
	entries, err := a.tables(ctx, s)
	if err != nil {
		return bench.Report{}, err
	}
	encoding := s.Cache.Encoding
	if c.Encoding != "" {
		words, err := parseWords("encoding", []string{c.Encoding}, spec.AllEncodings)
		if err != nil {
			return bench.Report{}, err
		}
		s = spec.WithEncoding(s, words[0])
	}
	cases, err := c.cases(s)
	if err != nil {
		return bench.Report{}, err
	}
	against, err := parseWords("baseline", c.Against, allBaselines)
	if err != nil {
		return bench.Report{}, err
	}
	if slices.Contains(against, "all") {
		against = allBaselines
	}
	const most = 1e9 // of no device; and neither NaN nor infinite is below it
	if c.Repeats < 1 || !(c.Read >= 0 && c.Read < most) || !(c.Product >= 0 && c.Product < most) {
		return bench.Report{}, usagef("--repeats, --read and --product are positive numbers")
	}
	switch {
	case c.Layers < 1 || c.Layers > 1000:
		return bench.Report{}, usagef("--layers is %d, want 1 to 1000", c.Layers)
	case c.Layers > 1 && c.Clean:
		return bench.Report{}, usagef("--clean is of single launches: nothing is written between the layers of a graph")
	case c.Layers > 1 && slices.Contains(against, "copies"):
		return bench.Report{}, usagef("--against copies is timed by single launches: leave out --layers")
	case c.Layers > 1 && !slices.Contains(s.Kinds, spec.Append):
		return bench.Report{}, usagef("--layers: a layer begins with append, which the spec %s leaves out of its kernels", s.Name)
	}
	if c.Parts < 0 || c.Parts&(c.Parts-1) != 0 {
		return bench.Report{}, usagef("--parts is %d, want a power of two", c.Parts)
	}
	if _, err := plannable([]spec.Spec{s}); err != nil { // a spec that can't be planned, before a device is opened
		return bench.Report{}, err
	}
	p, err := a.places()
	if err != nil {
		return bench.Report{}, err
	}
	dev, err := driver.Open(ctx, 0)
	if errors.Is(err, cuda.ErrNoDevice) || errors.Is(err, cuda.ErrNoLibrary) {
		return bench.Report{}, fmt.Errorf("bench needs an NVIDIA GPU; `kgen bench --from FILE.json` shows what was measured on another machine: %w", err)
	}
	if err != nil {
		return bench.Report{}, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	graphs, ok := dev.(cuda.GraphDevice)
	if !ok {
		return bench.Report{}, fmt.Errorf("bench: %s can't record graphs", dev.Info().Name)
	}
	m := measurement{command: c, app: a, dev: graphs, spec: s, places: p}
	info := dev.Info()
	now := tune.Identity{GPU: info.Name, Driver: info.Driver}
	now.Compiler = p.usualCompiler(ctx, build.NVRTC) // without one from the cache alone, whatever compiled it
	tuned, err := a.rules(s, s, entries, now)
	if err != nil {
		return bench.Report{}, err
	}
	m.provide = verify.Emitted(dev, tunedOnly(encoding, tuned), compileWith(p))
	if tuned != nil && s.Cache.Encoding == encoding {
		m.tuned = entries
	}
	return m.run(ctx, cases, against)
}

// measurement is one run on a device.
type measurement struct {
	command *benchCommand
	app     *app
	dev     cuda.GraphDevice
	spec    spec.Spec
	places  places
	provide verify.Provider
	tuned   []tune.Entry // that the kernels were chosen by
}

func (m *measurement) run(ctx context.Context, cases []bench.Case, against []baseline) (_ bench.Report, err error) {
	k, set, err := m.kernels(ctx, m.spec)
	if err != nil {
		return bench.Report{}, err
	}
	o := bench.Options{Repeats: m.command.Repeats, Seed: m.command.Seed, FixedShares: m.command.Fixed, PartsPerItem: m.command.Parts, Layers: m.command.Layers}
	report := bench.NewReport(m.spec, m.dev.Info(), o)
	report.Kgen, report.Date = version, time.Now().UTC().Truncate(time.Second)
	report.Command = strings.Join(append([]string{"kgen"}, m.app.args...), " ")
	for _, b := range against {
		switch b {
		case "copies":
			baked, _, err := m.kernels(ctx, attending(plan.WithEncoding(m.spec, spec.Baked)))
			if err != nil {
				return report, err
			}
			o.Against = append(o.Against, bench.Copies(m.spec, set, baked))
		case "raw":
			rotating, _, err := m.kernels(ctx, attending(plan.WithEncoding(m.spec, spec.Raw)))
			if err != nil {
				return report, err
			}
			o.Against = append(o.Against, bench.Raw(m.spec, rotating))
		case "batching":
			o.Against = append(o.Against, bench.Batching(m.spec, k))
		case "torch":
			torch, err := bench.StartTorch(ctx, m.spec, bench.TorchOptions{Repeats: o.Repeats, Clean: m.command.Clean, Layers: m.command.Layers})
			if err != nil {
				return report, err
			}
			defer func() { err = errors.Join(err, torch.Close()) }()
			report.Torch = torch.About()
			o.Against = append(o.Against, torch)
		}
	}
	if report.Ceilings, err = m.ceilings(ctx); err != nil {
		return report, err
	}
	o.ReadBandwidth, o.Product = report.Ceilings.Read.Median, report.Ceilings.Product.Median
	if m.command.Clean {
		if o.Reader, err = bench.NewReader(ctx, m.dev, compileWith(m.places).Compile, 4*m.dev.Info().L2Bytes); err != nil {
			return report, err
		}
		defer o.Reader.Close()
		report.Clean = true
	}
	bar := m.app.progress()
	o.Progress = bar.set
	report.Rows, err = bench.Run(ctx, m.dev, m.spec, k, cases, o)
	bar.end()
	if o.Layers == 1 { // as tuning times launches
		m.regret(report.Rows)
	}
	return report, err
}

// regret compares rows with the best that tuning found for their cases.
func (m *measurement) regret(rows []bench.Row) {
	for _, e := range m.tuned {
		for _, k := range e.Kinds {
			if e.GPU != m.dev.Info().Name {
				continue
			}
			for _, c := range k.Cases {
				for i := range rows {
					if _, best := c.Best(); rows[i].Case == c.Case.String() && rows[i].Method != bench.MethodPlain && best > 0 {
						regret := float64(rows[i].Median)/float64(best) - 1
						rows[i].Regret = &regret
					}
				}
			}
		}
	}
}

// attending is the spec with the kinds alone that baselines are timed by.
func attending(s spec.Spec) spec.Spec {
	s.Kinds = slices.DeleteFunc(slices.Clone(s.Kinds), func(k spec.Kind) bool {
		return !slices.Contains([]spec.Kind{spec.Append, spec.Prefill, spec.Extend, spec.Decode, spec.Merge}, k)
	})
	return s
}

// kernels are a spec's; the launcher may do more than what is timed.
func (m *measurement) kernels(ctx context.Context, s spec.Spec) (bench.Kernels, verify.Launcher, error) {
	k, err := m.provide(ctx, s, s.Kinds)
	if err != nil {
		return bench.Kernels{}, nil, err
	}
	launcher, ok := k.Launcher.(bench.Launcher)
	if !ok {
		return bench.Kernels{}, nil, fmt.Errorf("bench: the kernels of %s can't be timed", s.Name)
	}
	return bench.Kernels{Launcher: launcher, Tiles: k.Tiles}, k.Launcher, nil
}

// ceilings are those given, the others measured.
func (m *measurement) ceilings(ctx context.Context) (*bench.Ceilings, error) {
	var c bench.Ceilings
	if m.command.Read == 0 || m.command.Product == 0 {
		var err error
		if c, err = bench.MeasureCeilings(ctx, m.dev, m.spec.Model.DType, compileWith(m.places).Compile, m.command.Repeats); err != nil {
			return nil, err
		}
	}
	if m.command.Read > 0 {
		c.Read = bench.Given(m.command.Read * 1e12)
	}
	if m.command.Product > 0 {
		c.Product = bench.Given(m.command.Product * 1e12)
	}
	return &c, nil
}
