// Package filelock lets one goroutine of all processes at a time do something.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// poll is how often a waiter looks whether the lock is free: to wait in the system
// can't be interrupted by a context.
const poll = 10 * time.Millisecond

// ErrHeld is [Try]'s error where someone else holds the lock.
var ErrHeld = errors.New("the lock is held")

// Lock takes the lock that the file at path stands for, and makes the file,
// whose folder must exist. If this process dies the system frees the lock.
// unlock removes the file.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if unlock, err := Try(path); !errors.Is(err, ErrHeld) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

// Try is [Lock] for who does not want to wait.
func Try(path string) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		err = flock(f)
		if err == nil && isStill(f, path) {
			return func() {
				os.Remove(path) // if it stays, as on Windows, the next holder locks the same file
				f.Close()
			}, nil
		}
		f.Close()
		switch {
		case err == nil:
			continue
		case errors.Is(err, ErrHeld):
			return nil, ErrHeld
		default:
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// isStill reports whether path names the open file: its last holder removes it,
// and a lock on a removed file excludes nobody.
func isStill(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(open, named)
}
