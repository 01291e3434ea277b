package emulate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What was compiled and not used for a week is removed, once a day; and sources not used that nothing is left of.
func TestTrim(t *testing.T) {
	const day = 24 * time.Hour
	b := build{dir: t.TempDir()}
	now := time.Now()
	put := func(name string, used time.Time) {
		t.Helper()
		path := filepath.Join(b.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644), os.Chtimes(path, used, used)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when, name string, want bool) {
		t.Helper()
		if _, err := os.Stat(filepath.Join(b.dir, name)); (err == nil) != want {
			t.Errorf("%s, %s is there: %v", when, name, err == nil)
		}
	}
	for _, name := range []string{"emulator-used/emulator.hpp", "emulator-used/flags/old.so", "emulator-left/emulator.hpp", "emulator-left/flags/old.so", "other/flags/old.so"} {
		put(name, now.Add(-8*day))
	}
	put("emulator-used/flags/new.so", now.Add(-6*day))
	left := filepath.Join(b.dir, "emulator-left")
	if err := os.Chtimes(left, now.Add(-8*day), now.Add(-8*day)); err != nil {
		t.Fatal(err)
	}
	put("emulator-begun/emulator.hpp", now.Add(-8*day)) // by a process that has compiled nothing yet: its folder is new
	b.trim(now)
	expect("first", "emulator-begun/emulator.hpp", true)
	expect("first", "emulator-used/emulator.hpp", true)
	expect("first", "emulator-used/flags/old.so", false)
	expect("first", "emulator-used/flags/new.so", true)
	expect("first", "emulator-left", false)
	expect("first", "other/flags/old.so", true)
	b.trim(now.Add(day - time.Minute))
	put("emulator-used/flags/new.so", now.Add(-8*day))
	b.trim(now.Add(day - time.Second))
	expect("within a day", "emulator-used/flags/new.so", true)
	b.trim(now.Add(day))
	expect("a day later", "emulator-used/flags/new.so", false)
}
