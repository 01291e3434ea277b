package filelock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/kgen-project/kgen/runtime/filelock"
)

// Of two that write one folder, the second waits: here, not for long.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, ".lock")
	unlock, err := filelock.Lock(context.Background(), path)
	if err != nil {
		log.Fatal(err)
	}
	defer unlock()

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = filelock.Lock(ctx, path)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}
