package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Launcher launches one spec's kernels.
type Launcher interface {
	Append(s cuda.Stream, p abi.AppendParams) error
	Prefill(s cuda.Stream, p abi.AttendParams) error
	Extend(s cuda.Stream, p abi.AttendParams) error
	Decode(s cuda.Stream, p abi.AttendParams) error
	SharedDecode(s cuda.Stream, p abi.AttendParams) error
	Merge(s cuda.Stream, p abi.MergeParams) error
	Blocks(kind abi.Kind) int
}

// CacheMapper is a Launcher whose kernels may need tensor maps of the caches.
type CacheMapper interface {
	MapCache(kind abi.Kind, keys, values abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
}

// Chooser is a Launcher that has several kernels of a kind, for sequences of different
// lengths: a *kernel.Set.
type Chooser interface {
	Choose(kind abi.Kind, query, keys int) kernel.Choice
	Attend(s cuda.Stream, c kernel.Choice, p abi.AttendParams) error
	MapChoice(c kernel.Choice, keys, values abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
	MapKeys(c kernel.Choice, keys abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
	Materialiser
}

// Kernels are the loaded kernels of one spec.
type Kernels struct {
	Launcher
	Tiles map[spec.Kind]spec.Tile // of the kinds that attend; of a Chooser only shared decode's is read
}

// choose says what a case's work is listed by.
func (k Kernels) choose(s spec.Spec, c Case) kernel.Choice {
	if chooser, ok := k.Launcher.(Chooser); ok {
		return chooser.Choose(abi.Kind(c.Kind), c.Query, c.Keys(s))
	}
	tile := k.Tiles[c.Kind]
	return kernel.Choice{Kind: abi.Kind(c.Kind), Rows: tile.Rows, Keys: tile.Keys, Blocks: k.Blocks(abi.Kind(c.Kind)), Tokens: schedule.LeastPart(tile.Keys)}
}

// Options say how to measure. The zero value of a field is its default.
type Options struct {
	Repeats int    // timed launches of a case; default 20
	Seed    uint64 // of pages, offsets and values

	// Ceilings of the device, for the limit of a case: bytes a second and
	// floating-point operations a second. 0: no limit is given.
	ReadBandwidth, Product float64

	// Reader, where set, reads between launches, after the writes that empty the L2
	// cache. These leave it full of lines that a launch must first write to memory, one for
	// each that it reads; what was read can be dropped.
	Reader *Reader

	// FixedShares gives each block of family sm90 its share of the work from the start, as
	// decode's have it, in place of what is next when it comes to the end of what it has.
	FixedShares bool

	// PartsPerItem is how many parts an item has for kernels that fold them; 0: as many as
	// package schedule chooses.
	PartsPerItem int

	// Layers, where above 1, makes each graph one of so many layers as a model has them, one
	// behind the other: append, attend and merge, each with KV of its own. A time is then a
	// layer's share, and nothing empties the L2 cache between graphs: their KV is to be larger
	// than it by far.
	Layers int

	Against []Baseline // timed on each case right after it

	// Progress, where set, is called before each case and after the last.
	Progress func(done, total int, next string)
}

// Row is one measured case.
type Row struct {
	Case   string `json:"case"`
	Method string `json:"method,omitempty"` // of a case with Sharing: how it was computed
	Plan   string `json:"plan,omitempty"`   // tile of the kernel, such as r16k64s4w8
	Times
	TFLOPs     float64       `json:"tflops"`      // 10^12 operations a second
	TBs        float64       `json:"tb_per_s"`    // Bytes over Median, 10^12 a second
	Limit      time.Duration `json:"limit_ns"`    // the larger of bytes and operations over their ceilings
	Fraction   float64       `json:"of_limit"`    // Limit / Median
	Bytes      float64       `json:"bytes"`       // the fewest possible: each input read once, each output written once
	PlainBytes float64       `json:"plain_bytes"` // the same if every sequence reads all that it holds
	ReadBytes  float64       `json:"read_bytes"`  // the same as the work lists have it
	Operations float64       `json:"operations"`
	SplitCount int           `json:"splits"`          // of a sequence: items of each of its tiles
	Items      int           `json:"work_items"`      // for each KV head
	Parts      int           `json:"parts,omitempty"` // of an item, at most

	Regret  *float64 `json:"regret,omitempty"`  // Median over that of the best plan known, less 1; null without a tuned table
	Against []Peer   `json:"against,omitempty"` // in the order of the baselines
}

// The methods of a case with Sharing.
const (
	MethodPlain   = "plain"           // each sequence reads what it holds
	MethodShared  = "shared"          // what several hold is read once, where that is expected to be faster
	MethodBitwise = "shared, bitwise" // the same, with results that don't depend on who else holds a chunk
)

// Run times each case: attend, and merge where a sequence is split, recorded
// as one graph and replayed with a cold L2 cache.
func Run(ctx context.Context, dev cuda.GraphDevice, s spec.Spec, k Kernels, cases []Case, o Options) (rows []Row, err error) {
	if o.Repeats == 0 {
		o.Repeats = 20
	}
	if o.Progress == nil {
		o.Progress = func(int, int, string) {}
	}
	t, err := newTimer(dev, o.Repeats)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, t.close()) }()
	t.reader, t.layers = o.Reader, max(1, o.Layers)
	for i, c := range cases {
		o.Progress(i, len(cases), c.String())
		of, err := runCase(ctx, t, s, k, c, o)
		if err != nil {
			return rows, fmt.Errorf("bench %s: %w", c, err)
		}
		rows = append(rows, of...)
	}
	o.Progress(len(cases), len(cases), "")
	return rows, nil
}

func runCase(ctx context.Context, t *timer, s spec.Spec, k Kernels, c Case, o Options) ([]Row, error) {
	p, err := NewProblem(t.dev, s, c, o.Seed)
	if err != nil {
		return nil, err
	}
	p.FixedShares, p.PartsPerItem = o.FixedShares, o.PartsPerItem
	defer p.Free()
	if o.Layers > 1 {
		if err := p.addLayers(o.Layers); err != nil {
			return nil, err
		}
	}
	st, err := p.attend(k, s, p.layout.Sequences, p.cache)
	if err != nil {
		return nil, err
	}
	row := p.row(st, MethodPlain, o)
	if err := row.measure(ctx, t, st); err != nil {
		return nil, err
	}
	rows := []Row{row}
	if c.Sharing.Documents > 0 && slices.Contains(s.Kinds, spec.SharedDecode) {
		for _, method := range []string{MethodShared, MethodBitwise} {
			st, err := p.attendShared(k, method == MethodBitwise)
			if err != nil {
				return nil, err
			}
			row := p.row(st, method, o)
			if err := row.measure(ctx, t, st); err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
	}
	against, err := compare(ctx, t, p, o.Against)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		for _, peer := range against {
			peer.Ratio = float64(peer.Median) / float64(rows[i].Median)
			rows[i].Against = append(rows[i].Against, peer)
		}
	}
	return rows, nil
}

// compare times the baselines. What keeps one from a time is in its peer.
func compare(ctx context.Context, t *timer, p *Problem, baselines []Baseline) ([]Peer, error) {
	var all []Peer
	for _, baseline := range baselines {
		peers, err := baseline.time(ctx, t, p)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			peers = []Peer{{Name: baseline.Name(), Error: err.Error()}}
		}
		all = append(all, peers...)
	}
	return all, nil
}

// row is what is known of a case before it is timed.
func (p *Problem) row(st *step, method string, o Options) Row {
	read, unique := p.layout.KVTokens()
	m, kind := p.spec.Model, p.c.Kind
	operations := p.c.operations(m, p.spec.Masks.Causal, float64(read))
	if p.spec.Masks.Window > 0 {
		var pairs float64
		read, unique, pairs = p.layout.seen(p.spec.Masks)
		operations = pairs * pairOperations(m)
	}
	if st.shared.ItemCount > 0 {
		kind = spec.SharedDecode
	}
	row := Row{
		Case: p.c.String(), Plan: st.plan(kind), SplitCount: st.splits, Items: st.items, Parts: st.parts,
		Bytes: p.c.bytes(m, float64(unique)), PlainBytes: p.c.bytes(m, float64(read)), ReadBytes: p.c.bytes(m, float64(read)-st.saved),
		Operations: operations,
	}
	if p.c.Sharing.Documents > 0 {
		row.Method = method
	}
	if o.ReadBandwidth > 0 && o.Product > 0 {
		row.Limit = time.Duration(max(row.Bytes/o.ReadBandwidth, row.Operations/o.Product) * float64(time.Second))
	}
	return row
}

// measure fills the times and what follows from them.
func (r *Row) measure(ctx context.Context, t *timer, st *step) (err error) {
	if r.Times, err = t.measure(ctx, st.launch); err != nil {
		return err
	}
	r.TBs = r.Bytes / r.Median.Seconds() / 1e12
	r.TFLOPs = r.Operations / r.Median.Seconds() / 1e12
	r.Fraction = float64(r.Limit) / float64(r.Median)
	return nil
}

// plan is the tile of the step's kernel of a kind.
func (st *step) plan(kind spec.Kind) string {
	if _, ok := st.kernels.Launcher.(Chooser); ok && kind == st.kind {
		return st.choice.Plan()
	}
	return planName(st.kernels.Tiles[kind])
}

func planName(t spec.Tile) string {
	if t.Warps == 0 {
		return ""
	}
	return fmt.Sprintf("r%dk%ds%dw%d", t.Rows, t.Keys, t.Stages, t.Warps)
}

// by is the launches of the kernels: a case with Sharing is computed by shared decode
// where they have a tile of it.
func (p *Problem) by(k Kernels) (*step, error) {
	if p.c.Sharing.Documents > 0 && k.Tiles[spec.SharedDecode].Rows > 0 {
		return p.attendShared(k, false)
	}
	return p.attend(k, p.spec, p.layout.Sequences, p.cache)
}

// Timer is what problems are timed with, one after the other: a stream, and memory that
// is written to empty the L2 cache.
type Timer struct{ timer *timer }

// NewTimer makes one for problems on dev.
func NewTimer(dev cuda.Device) (*Timer, error) {
	recorder, ok := dev.(cuda.GraphDevice)
	if !ok {
		return nil, fmt.Errorf("%s can't record graphs", dev.Info().Name)
	}
	t, err := newTimer(recorder, 0) // each call of Time says how often
	if err != nil {
		return nil, err
	}
	return &Timer{t}, nil
}

// Close frees the timer's memory and its stream.
func (t *Timer) Close() error { return t.timer.close() }

// Time times the problem by the kernels: attend, and merge where a sequence is
// split, recorded as one graph and replayed with a cold L2 cache. The times come in the
// order of measuring. The timer is of the problem's device.
func (p *Problem) Time(ctx context.Context, t *Timer, k Kernels, repeats int) ([]time.Duration, error) {
	defer p.mark()()
	st, err := p.by(k)
	if err != nil {
		return nil, err
	}
	return t.timer.repeating(repeats).samples(ctx, st.launch)
}

// Launch launches the problem once by the kernels and waits, on any device.
func (p *Problem) Launch(ctx context.Context, k Kernels) error {
	defer p.mark()()
	st, err := p.by(k)
	if err != nil {
		return err
	}
	if err := st.launch(0); err != nil {
		return err
	}
	return p.dev.Synchronize(ctx, 0)
}
