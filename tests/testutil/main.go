package testutil

import (
	"os"
	"testing"
)

// Main runs a package's tests with a folder in *dir that they share, such as for what the
// emulator compiles. It is for a TestMain, and does not return.
func Main(m *testing.M, dir *string) {
	var err error
	if *dir, err = os.MkdirTemp("", "kgen-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(*dir)
	os.Exit(code)
}
