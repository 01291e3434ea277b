package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, most := 0, 0
	var check sync.Mutex
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 5 {
				unlock, err := Lock(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				check.Lock()
				held++
				most = max(most, held)
				check.Unlock()
				time.Sleep(time.Millisecond)
				check.Lock()
				held--
				check.Unlock()
				unlock()
			}
		})
	}
	wait.Wait()
	if most != 1 {
		t.Errorf("%d held the lock at a time", most)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock's file is left: %v", err)
	}
}

func TestLockErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for a held lock: %v", err)
	}
	if _, err := Try(path); !errors.Is(err, ErrHeld) {
		t.Errorf("try a held lock: %v", err)
	}
	if _, err := Lock(t.Context(), filepath.Join(path, "lock")); err == nil {
		t.Error("a lock in no folder")
	}
}
