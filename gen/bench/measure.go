package bench

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kgen-project/kgen/runtime/abi"
	"github.com/kgen-project/kgen/runtime/cuda"
)

// Times are of one thing, again and again.
type Times struct {
	Median  time.Duration `json:"median_ns"`
	Fastest time.Duration `json:"fastest_ns"`
	Slowest time.Duration `json:"slowest_ns"`
	Low     time.Duration `json:"p10_ns"` // a tenth of the times are below it
	High    time.Duration `json:"p90_ns"` // and a tenth above it
}

// Spread is half of what lies between Low and High, as a part of the median.
func (t Times) Spread() float64 {
	if t.Median == 0 {
		return 0
	}
	return float64(t.High-t.Low) / 2 / float64(t.Median)
}

func timesOf(all []time.Duration) Times {
	slices.Sort(all)
	n := len(all)
	return Times{Median: all[n/2], Fastest: all[0], Slowest: all[n-1], Low: all[n/10], High: all[n-1-n/10]}
}

// timer replays launches with a cold L2 cache.
type timer struct {
	dev     cuda.GraphDevice
	stream  cuda.Stream
	repeats int
	layers  int           // of a graph, whose KV is larger than the L2 cache; 1: that is emptied
	cold    abi.DevicePtr // written between launches, to empty the L2 cache; 0: the cache is left as it is
	coldLen int64
	reader  *Reader // reads after that, where set
}

func newTimer(dev cuda.GraphDevice, repeats int) (*timer, error) {
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	t := &timer{dev: dev, stream: stream, repeats: repeats, layers: 1, coldLen: 4 * dev.Info().L2Bytes}
	if t.coldLen > 0 {
		if t.cold, err = dev.Alloc(t.coldLen); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

func (t *timer) close() error {
	var err error
	if t.cold != 0 {
		err = t.dev.Free(t.cold)
	}
	return errors.Join(err, t.dev.DestroyStream(t.stream))
}

// repeating is t for so many samples.
func (t *timer) repeating(repeats int) *timer {
	other := *t
	other.repeats = repeats
	return &other
}

// measure times what launch puts on the stream, recorded as one graph, or a layer's share of it.
func (t *timer) measure(ctx context.Context, launch func(cuda.Stream) error) (Times, error) {
	all, err := t.samples(ctx, launch)
	if err != nil {
		return Times{}, err
	}
	return timesOf(all), nil
}

// samples are the times in the order of measuring.
func (t *timer) samples(ctx context.Context, launch func(cuda.Stream) error) ([]time.Duration, error) {
	if err := launch(t.stream); err != nil { // fails here if it must
		return nil, err
	}
	if err := t.dev.Synchronize(ctx, t.stream); err != nil {
		return nil, err
	}
	graph, err := t.dev.Capture(t.stream, func() error { return launch(t.stream) })
	if err != nil {
		return nil, err
	}
	defer graph.Destroy()
	const warmUp = 2
	var all []time.Duration
	for i := range warmUp + t.repeats {
		if t.cold != 0 && t.layers == 1 {
			if err := t.dev.Fill(t.stream, t.cold, 0, t.coldLen); err != nil {
				return nil, err
			}
		}
		if t.reader != nil {
			if err := t.reader.Read(t.stream); err != nil {
				return nil, err
			}
		}
		took, err := t.dev.Time(ctx, t.stream, func() error { return graph.Launch(t.stream) })
		if err != nil {
			return nil, err
		}
		if i >= warmUp {
			all = append(all, took/time.Duration(t.layers))
		}
	}
	return all, nil
}
