package testutil

import (
	"os"
	"path/filepath"
	"testing"
)

// Main runs a package's tests with a folder in *dir that they share for what the emulator
// compiles. It is for a TestMain, and does not return.
func Main(m *testing.M, dir *string) {
	var err error
	if *dir, err = os.MkdirTemp("", "kgen-test-"); err != nil {
		panic(err)
	}
	shareEmulator(*dir)
	code := m.Run()
	os.RemoveAll(*dir)
	os.Exit(code)
}

// shareEmulator puts the emulator's executables that kgen has built, where gen/emulate keeps them, into another such folder: a
// compiler takes as long for one as for a test of kernels. Where that fails, tests build their own.
func shareEmulator(dir string) {
	hosts, _ := filepath.Glob(filepath.Join(Emulator(), "emulator-*", "*", "host")) // fails of a bad pattern alone
	for _, host := range hosts {
		path, err := filepath.Rel(Emulator(), host)
		if err != nil {
			continue
		}
		path = filepath.Join(dir, path)
		if os.MkdirAll(filepath.Dir(path), 0o755) == nil {
			os.Link(host, path)
		}
	}
}
