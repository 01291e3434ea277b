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

// A file is written beside a build that stages a folder for the same place, which it leaves
// alone, and over what a process that was killed has left of that file.
func TestReplaceFileBesideABuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := stage(folder{path: path, files: map[string][]byte{"x.cu": nil}}); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(unfinished(path), []byte("half")); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(path, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "whole" {
		t.Errorf("the file has %q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(beside(path), "x.cu")); err != nil {
		t.Errorf("the build's folder: %v", err)
	}
	if _, err := os.Stat(unfinished(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v", err)
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
