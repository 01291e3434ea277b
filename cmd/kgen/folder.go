package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kgen-project/kgen/gen/emit"
	"github.com/kgen-project/kgen/gen/vendoring"
	"github.com/kgen-project/kgen/runtime/filelock"
)

// folder is a folder to put in place and all that is to be in it.
type folder struct {
	path  string
	files map[string][]byte // by name
	mark  mark
}

// mark is a file by which kgen knows a folder that it made.
type mark struct {
	file  string
	names func(content []byte) ([]string, error) // of all that kgen wrote to the folder
}

var (
	builtMark    = mark{emit.ManifestFile, filesOf}
	vendoredMark = mark{vendoring.ListFile, vendoring.Names}
)

// publish puts folders with one parent in place, each as a whole: it writes
// them all beside their places, synced, and then swaps them in by renaming. When
// it fails before that, what was there is as it was. Builds into one parent take
// turns. Folders that have the right content already are left alone.
func publish(ctx context.Context, parent string, folders []folder) (err error) {
	_, existed := os.Stat(parent)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("make the output folder: %w", err)
	}
	defer func() {
		if err != nil && errors.Is(existed, fs.ErrNotExist) {
			os.Remove(parent) // fails, rightly, where another build has put something there
		}
	}()
	unlock, err := filelock.Lock(ctx, filepath.Join(parent, ".kgen.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if err := sweep(parent); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sweep(parent)) }()

	var staged []folder
	for _, f := range folders {
		if err := replaceable(f.path, f.mark); err != nil {
			return err
		}
		if same(f) {
			continue
		}
		if err := stage(f); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
		staged = append(staged, f)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, f := range staged {
		if err := swap(beside(f.path), f.path); err != nil {
			return fmt.Errorf("put %s in place: %w", f.path, err)
		}
	}
	return syncFolder(parent)
}

const stagedSuffix = ".kgen-new"

// beside is where a folder is written before it is swapped in.
func beside(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+stagedSuffix)
}

// sweep removes what this build, or one that was killed, has left beside its folders. The
// caller holds the parent's lock, as does whoever writes under such a name: so nobody is at it.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	for _, e := range entries {
		if e.Name()[0] != '.' || !strings.HasSuffix(e.Name(), stagedSuffix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(parent, e.Name())); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}

// replaceable says why a folder can't or may not be replaced: because it, or something in
// it, is not kgen's.
func replaceable(path string, m mark) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for the output folder: %w", err)
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder: remove it, or give another folder", path)
	case isMount(path):
		return fmt.Errorf("%s is a mount point, and kgen replaces the folder as a whole: give a folder in it", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) == 0 {
		return err
	}
	data, err := os.ReadFile(filepath.Join(path, m.file))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has files but no %s, so kgen did not make it: move it away, or give another folder", path, m.file)
	}
	if err != nil {
		return err
	}
	own, err := m.names(data)
	if err != nil {
		return fmt.Errorf("%s: %s is not kgen's (%w): move the folder away, or give another one", path, m.file, err)
	}
	for _, e := range entries {
		if !slices.Contains(own, e.Name()) {
			return fmt.Errorf("%s is in the way: kgen replaces the folder as a whole and did not make it; move it away, or give another folder",
				filepath.Join(path, e.Name()))
		}
	}
	return nil
}

// filesOf returns the names of what a build writes, by its manifest of any schema.
func filesOf(manifest []byte) ([]string, error) {
	var m struct {
		Schema  int
		Spec    string
		Kernels []struct {
			Source  string
			Targets []struct{ Target string }
		}
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, err
	}
	if m.Schema == 0 || m.Spec == "" {
		return nil, errors.New("it names no spec")
	}
	own := []string{emit.ManifestFile, m.Spec + ".go", m.Spec + ".h"}
	for _, k := range m.Kernels {
		own = append(own, k.Source)
		for _, t := range k.Targets {
			own = append(own, emit.CubinFile(k.Source, t.Target))
		}
	}
	return own, nil
}

// same reports whether a folder has exactly the files that it is to have.
func same(f folder) bool {
	entries, err := os.ReadDir(f.path)
	if err != nil || len(entries) != len(f.files) {
		return false
	}
	for _, e := range entries {
		want, ok := f.files[e.Name()]
		if !ok {
			return false
		}
		got, err := os.ReadFile(filepath.Join(f.path, e.Name()))
		if err != nil || !bytes.Equal(got, want) {
			return false
		}
	}
	return true
}

func stage(f folder) error {
	dir := beside(f.path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, data := range f.files {
		if err := writeSynced(filepath.Join(dir, name), data); err != nil {
			return err
		}
	}
	return syncFolder(dir)
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncFolder(path string) error {
	if runtime.GOOS == "windows" { // which syncs no folders
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// swap puts a folder in the place of another, or of nothing. What was there is
// afterwards at its path.
func swap(staged, place string) error {
	if _, err := os.Lstat(place); errors.Is(err, fs.ErrNotExist) {
		return os.Rename(staged, place)
	}
	err := exchange(staged, place)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	// Where two names can't be exchanged at once, a crash between these leaves the old
	// folder beside its place.
	old := beside(place + ".old")
	if err := os.Rename(place, old); err != nil {
		return err
	}
	if err := os.Rename(staged, place); err != nil {
		return errors.Join(err, os.Rename(old, place))
	}
	return nil
}
