package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Of several that write one file, each writes it whole, and a reader never sees a part.
func TestReplaceFileByManyAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	whole := func(data []byte) bool {
		return len(data) == 1<<20 && bytes.Count(data, data[:1]) == len(data)
	}
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			for range 5 {
				if err := replaceFile(path, bytes.Repeat([]byte{byte('a' + i)}, 1<<20)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		data, err := os.ReadFile(path)
		if !errors.Is(err, fs.ErrNotExist) && (err != nil || !whole(data)) {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What a file was changed to by another is there when it is changed again.
func TestChangeFileLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var writers sync.WaitGroup
	for i := range 20 {
		writers.Go(func() {
			err := changeFile(path, func() ([]byte, error) {
				old, err := os.ReadFile(path)
				if errors.Is(err, fs.ErrNotExist) {
					err = nil
				}
				return fmt.Appendf(old, "%d\n", i), err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(data))
	if slices.Sort(lines); len(slices.Compact(lines)) != 20 {
		t.Errorf("lines %v", lines)
	}
}
