package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/kgen-project/kgen/runtime/cuda"
	"github.com/kgen-project/kgen/runtime/kvcache"
	"github.com/kgen-project/kgen/runtime/schedule"
)

// Kinds of failure that callers tell apart with errors.Is. Whatever fails
// leaves the sequences and the registry as they were, and later calls are
// served. A context that ended gives the error of the context.
var (
	// ErrNoPages is always a *kvcache.NoPagesError, which says what is needed and
	// what is free.
	ErrNoPages = kvcache.ErrNoPages
	// ErrClosed is a call of an engine, a graph or a sequence that was closed.
	ErrClosed = kvcache.ErrClosed
	// ErrLaunch is work that the device refused or did not do. The step that it
	// belongs to can only be aborted.
	ErrLaunch = cuda.ErrLaunch
	// ErrOutOfMemory is device memory, for a step's lists or a graph, that there is
	// none of.
	ErrOutOfMemory = cuda.ErrOutOfMemory
	// ErrFixedSize is a step that does not fit the graph it was given to.
	ErrFixedSize = schedule.ErrFixedSize
	// ErrBusy is a sequence, or a graph, that is in an open step.
	ErrBusy = errors.New("in a step that is neither committed nor aborted")
	// ErrEnded is a step that was committed or aborted already.
	ErrEnded = errors.New("the step has ended")
	// ErrIncomplete is a step that some layer was not attended in.
	ErrIncomplete = errors.New("the step is incomplete")
)

// launchError makes an error of the device an ErrLaunch. That a device is closed, or
// that the context ended, stays as it is.
func launchError(err error) error {
	for _, is := range []error{nil, ErrLaunch, cuda.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, is) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrLaunch, err)
}
