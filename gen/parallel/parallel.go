// Package parallel does many like jobs a few at a time.
package parallel

import (
	"context"
	"sync"
)

// Each calls do for every job from 0 to jobs-1, at most so many at a time, and starts them
// in that order. It ends early where the context does, or a job fails; the error is the
// first such one, and the others' contexts end with it. done, which may be nil, is told of
// each job that did not fail, one call at a time, with how many that makes.
func Each(parent context.Context, atATime, jobs int, do func(ctx context.Context, job int) error, done func(job, count int)) error {
	ctx, stop := context.WithCancelCause(parent)
	defer stop(nil)
	var group sync.WaitGroup
	var mu sync.Mutex
	next, count := 0, 0
	for range min(max(1, atATime), jobs) {
		group.Go(func() {
			for {
				mu.Lock()
				job := next
				next++
				mu.Unlock()
				if job >= jobs || ctx.Err() != nil {
					return
				}
				if err := do(ctx, job); err != nil {
					stop(err)
					return
				}
				mu.Lock()
				if count++; done != nil {
					done(job, count)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if err := parent.Err(); err != nil {
		return err
	}
	return context.Cause(ctx)
}
