// Package testutil is what tests of several packages ask of the machine.
package testutil

import (
	"os"
	"path/filepath"
)

// CacheDir is kgen's cache folder, in which compilers are that `kgen toolchain install` got;
// "" where there is none.
func CacheDir() string {
	if dir := os.Getenv("KGEN_CACHE_DIR"); dir != "" {
		return dir
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(user, "kgen")
}

// Toolchain is where those compilers are.
func Toolchain() string { return filepath.Join(CacheDir(), "toolchain") }

// Emulator is where kgen keeps what the emulator compiles. Tests keep theirs there too: what has not changed since they last
// ran is not compiled again.
func Emulator() string {
	dir := CacheDir()
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "kgen")
	}
	return filepath.Join(dir, "emulator")
}
