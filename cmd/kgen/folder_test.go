package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A build removes what killed builds have left, and nothing of a process that writes a
// file beside it.
func TestPublishLeavesFilesOfOthers(t *testing.T) {
	parent := t.TempDir()
	place, unlock, err := lockPlace(filepath.Join(parent, "spec.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	writing := beside(place)
	if err := writeSynced(writing, []byte("name: x\n")); err != nil {
		t.Fatal(err)
	}
	left := beside(filepath.Join(parent, "killed"))
	if err := os.MkdirAll(filepath.Join(left, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	built := folder{path: filepath.Join(parent, "x"), files: map[string][]byte{"x.cu": []byte("// x\n")}, mark: builtMark}
	if err := publish(t.Context(), parent, []folder{built}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(writing); err != nil {
		t.Errorf("a file that another process writes: %v", err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a killed build's folder: %v", err)
	}
	if !same(built) {
		t.Error("the folder is not in place")
	}
}
