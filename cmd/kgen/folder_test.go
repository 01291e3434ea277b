package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A build removes what killed builds have left, and nothing of a process that writes a
// file beside it, even one of the folder's own name.
func TestPublishLeavesFilesOfOthers(t *testing.T) {
	parent := t.TempDir()
	place, unlock, err := lockPlace(filepath.Join(parent, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	writing := unfinished(place)
	if err := writeSynced(writing, []byte("name: x\n")); err != nil {
		t.Fatal(err)
	}
	left := []string{beside(filepath.Join(parent, "killed")), beside(filepath.Join(parent, "x"))}
	if err := os.MkdirAll(filepath.Join(left[0], "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeSynced(left[1], nil); err != nil { // of a file, by an earlier kgen
		t.Fatal(err)
	}
	built := folder{path: filepath.Join(parent, "x"), files: map[string][]byte{"x.cu": []byte("// x\n")}, mark: builtMark}
	if err := publish(t.Context(), parent, []folder{built}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("a file that another process writes: %v", err)
	}
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of a process that was killed: %v", path, err)
		}
	}
	if !same(built) {
		t.Error("the folder is not in place")
	}
}
