package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kernel"
)

// Launcher launches one spec's kernels.
type Launcher interface {
	Prefill(s cuda.Stream, p abi.AttendParams) error
	Extend(s cuda.Stream, p abi.AttendParams) error
	Decode(s cuda.Stream, p abi.AttendParams) error
	Merge(s cuda.Stream, p abi.MergeParams) error
	Blocks(kind abi.Kind) int
}

// CacheMapper is a Launcher whose kernels may need tensor maps of the caches.
type CacheMapper interface {
	MapCache(kind abi.Kind, keys, values abi.DevicePtr, pages, kvHeads int) (*kernel.CacheMaps, error)
}

// Kernels are the loaded kernels of one spec.
type Kernels struct {
	Launcher
	Tiles map[spec.Kind]spec.Tile // of prefill, extend and decode
}

// Options say how to measure. The zero value of a field is its default.
type Options struct {
	Repeats int    // timed launches of a case; default 20
	Seed    uint64 // of pages, offsets and values

	// Ceilings of the device, for the limit of a case: bytes a second and
	// floating-point operations a second. 0: no limit is given.
	ReadBandwidth, Product float64
}

// Row is one measured case.
type Row struct {
	Case       string        `json:"case"`
	Median     time.Duration `json:"median_ns"`
	Fastest    time.Duration `json:"fastest_ns"`
	Slowest    time.Duration `json:"slowest_ns"`
	TFLOPs     float64       `json:"tflops"`     // 10^12 operations a second
	TBs        float64       `json:"tb_per_s"`   // 10^12 bytes a second, of the fewest possible bytes
	Limit      time.Duration `json:"limit_ns"`   // the larger of bytes and operations over their ceilings
	Fraction   float64       `json:"of_limit"`   // Limit / Median
	SplitCount int           `json:"splits"`     // of a sequence
	Items      int           `json:"work_items"` // for each KV head
}

// Run times each case: attend, and merge where a sequence is split, recorded
// as one graph and replayed with a cold L2 cache.
func Run(ctx context.Context, dev cuda.GraphDevice, s spec.Spec, k Kernels, cases []Case, o Options) ([]Row, error) {
	if o.Repeats == 0 {
		o.Repeats = 20
	}
	var rows []Row
	for _, c := range cases {
		row, err := runCase(ctx, dev, s, k, c, o)
		if err != nil {
			return rows, fmt.Errorf("bench %s: %w", c, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func runCase(ctx context.Context, dev cuda.GraphDevice, s spec.Spec, k Kernels, c Case, o Options) (row Row, err error) {
	stream, err := dev.NewStream()
	if err != nil {
		return Row{}, err
	}
	defer dev.DestroyStream(stream)
	step, err := newStep(dev, s, k, c, o.Seed)
	defer step.free()
	if err != nil {
		return Row{}, err
	}
	if err := step.launch(k, c.Kind, stream); err != nil { // warms up, and fails here if it must
		return Row{}, err
	}
	if err := dev.Synchronize(ctx, stream); err != nil {
		return Row{}, err
	}
	graph, err := dev.Capture(stream, func() error { return step.launch(k, c.Kind, stream) })
	if err != nil {
		return Row{}, err
	}
	defer graph.Destroy()

	times := make([]time.Duration, o.Repeats)
	for i := range times {
		if err := step.coolCache(stream); err != nil {
			return Row{}, err
		}
		if times[i], err = dev.Time(ctx, stream, func() error { return graph.Launch(stream) }); err != nil {
			return Row{}, err
		}
	}
	slices.Sort(times)
	row = Row{Case: c.String(), Median: times[len(times)/2], Fastest: times[0], Slowest: times[len(times)-1], SplitCount: step.splits, Items: step.items}
	bytes, operations := c.Bytes(s.Model), c.Operations(s.Model, s.Masks.Causal)
	row.TBs = bytes / row.Median.Seconds() / 1e12
	row.TFLOPs = operations / row.Median.Seconds() / 1e12
	if o.ReadBandwidth > 0 && o.Product > 0 {
		limit := max(bytes/o.ReadBandwidth, operations/o.Product)
		row.Limit = time.Duration(limit * float64(time.Second))
		row.Fraction = limit / row.Median.Seconds()
	}
	return row, nil
}
