package parallel

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

func TestEach(t *testing.T) {
	for _, atATime := range []int{0, 1, 3, 100} {
		var mu sync.Mutex
		var did, counts []int
		var now, most atomic.Int32
		err := Each(t.Context(), atATime, 20, func(_ context.Context, job int) error {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			mu.Lock()
			did = append(did, job)
			mu.Unlock()
			now.Add(-1)
			return nil
		}, func(_, count int) { counts = append(counts, count) })
		if err != nil {
			t.Fatal(err)
		}
		if atATime <= 1 && !slices.IsSorted(did) {
			t.Errorf("one at a time, they came as %v", did)
		}
		slices.Sort(did)
		if len(did) != 20 || did[0] != 0 || did[19] != 19 || len(slices.Compact(did)) != 20 || !slices.IsSorted(counts) || len(counts) != 20 {
			t.Errorf("%d at a time: did %v, counted %v", atATime, did, counts)
		}
		if int(most.Load()) > max(1, atATime) {
			t.Errorf("%d at a time, not %d", most.Load(), atATime)
		}
	}
	if err := Each(t.Context(), 2, 0, nil, nil); err != nil {
		t.Errorf("no jobs: %v", err)
	}
}

func TestEachFails(t *testing.T) {
	bad := errors.New("bad")
	var did atomic.Int32
	err := Each(t.Context(), 2, 100, func(ctx context.Context, job int) error {
		did.Add(1)
		if job == 0 {
			return bad
		}
		<-ctx.Done() // the failure ends the others
		return nil
	}, nil)
	if !errors.Is(err, bad) || did.Load() > 2 {
		t.Errorf("error %v after %d jobs", err, did.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = Each(ctx, 1, 100, func(_ context.Context, job int) error {
		if job == 3 {
			cancel()
		}
		return nil
	}, func(job, _ int) {
		if job > 3 {
			t.Errorf("job %d after the end", job)
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the context's end: %v", err)
	}
}
