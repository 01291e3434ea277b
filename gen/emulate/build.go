package emulate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kgen-project/kgen/templates"
)

// build compiles the emulator and kernels, each once.
type build struct {
	cxx      string // path
	compiler string // its version
	dir      string
	headers  string // directory of the emulator's sources, named by their content
	level    string // flag: how far kernels are optimised

	checks func() []string // flags of the checks that the compiler knows, asked for once
}

// commonFlags keep arithmetic as written: products and sums round apart, and
// pointers of several types to one place are what kernels do.
var commonFlags = []string{"-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti"}

var (
	hostFlags = append([]string{"-O3", "-rdynamic", "-U_FORTIFY_SOURCE"}, commonFlags...)
	// Kernels use nothing of the C++ library, which takes the linker a while to read.
	kernelFlags = append([]string{"-g1", "-shared", "-fPIC", "-fno-math-errno", "-fstack-clash-protection", "-DKGEN_EMULATOR", "-include", "emulator.hpp", "-nodefaultlibs"}, commonFlags...)
)

// checks are flags that make a kernel's mistakes show, in order of preference:
// of each list the first that the compiler knows is used. Variables that
// nobody sets hold a pattern; crooked addresses and indices outside of arrays trap.
var checks = [][]string{
	{"-ftrivial-auto-var-init=pattern"},
	{"-fsanitize=alignment,bounds -fsanitize-trap=all", "-fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error"},
}

// entryPattern finds the entry points of a generated source: the numbers of
// their launch bounds, which stand in one of two places, those of their
// clusters, and their names.
var entryPattern = regexp.MustCompile(`extern\s+"C"\s+__global__\s+(?:__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)\s*)?` +
	`void\s+(?:__cluster_dims__\s*\(((?:[^()]|\([^()]*\))*)\)\s*)?(?:__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)\s*)?([A-Za-z_]\w*)\s*\(`)

func newBuild(ctx context.Context, o Options) (build, error) {
	if err := supported(); err != nil {
		return build{}, err
	}
	if o.CacheDir == "" {
		return build{}, errors.New("Options.CacheDir is empty: name a directory for compiled kernels")
	}
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return build{}, err
	}
	path, err := findCompiler(o.CXX)
	if err != nil {
		return build{}, err
	}
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return build{}, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	first, _, _ := strings.Cut(string(version), "\n")
	b := build{cxx: path, compiler: first, dir: dir, level: "-O1"} // most of a kernel's time is in the host: more only compiles longer
	if o.Unoptimized {
		b.level = "-O0"
	}
	if b.headers, err = b.writeHeaders(); err != nil {
		return build{}, fmt.Errorf("write the emulator's sources: %w", err)
	}
	b.checks = sync.OnceValue(func() []string { return b.knownChecks(ctx) })
	b.trim(time.Now())
	return b, nil
}

func findCompiler(cxx string) (string, error) {
	if cxx != "" {
		path, err := exec.LookPath(cxx)
		if err != nil {
			return "", fmt.Errorf("find the C++ compiler: %w", err)
		}
		return path, nil
	}
	names := []string{"c++", "g++", "clang++"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no C++ compiler: none of %s is in PATH; install g++ or clang++", strings.Join(names, ", "))
}

// writeHeaders puts templates/emu in a directory named by its content.
func (b build) writeHeaders() (string, error) {
	files := map[string][]byte{}
	sum := sha256.New()
	err := fs.WalkDir(templates.FS, "emu", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(templates.FS, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", path, len(data))
		sum.Write(data)
		files[entry.Name()] = data
		return nil
	})
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.dir, "emulator-"+hex.EncodeToString(sum.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	use(dir)
	for name, data := range files {
		path := filepath.Join(dir, name)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
			continue
		}
		err := place(path, func(temporary string) error { return os.WriteFile(temporary, data, 0o644) })
		if err != nil {
			return "", err
		}
	}
	return dir, nil
}

// host returns the path of the emulator's executable.
func (b build) host(ctx context.Context) (string, error) {
	return b.compile(ctx, "host", hostFlags, nil, "", filepath.Join(b.headers, "host.cpp"), "-ldl")
}

// kernel returns the path of the library made of a generated source. name is
// for messages.
func (b build) kernel(ctx context.Context, name string, source []byte) (string, error) {
	entries := entryPattern.FindAllSubmatch(source, -1)
	if len(entries) == 0 {
		return "", errors.New(`no entry point: the source has no extern "C" __global__ void function`)
	}
	var unit bytes.Buffer
	body, line := withoutHead(source)
	fmt.Fprintf(&unit, "#line %d %q\n%s\n", line, name+".cu", body)
	for _, entry := range entries {
		fmt.Fprintf(&unit, "KGEN_EMULATOR_ENTRY(%s, (%s), %s%s)\n", entry[4], entry[2], entry[1], entry[3])
	}
	key := sha256.Sum256(unit.Bytes())
	suffix := "-" + hex.EncodeToString(key[:])[:32] + ".so"
	return b.compile(ctx, "kernel", append([]string{b.level}, kernelFlags...), unit.Bytes(), suffix, append(b.checks(), "-x", "c++", "-", "-lm", "-lgcc", "-lc")...)
}

// withoutHead leaves out the comments that a source begins with, which say what it was generated from: sources that differ in these
// alone are compiled once. It returns the line that the rest begins on.
func withoutHead(source []byte) (body []byte, line int) {
	for line = 1; bytes.HasPrefix(source, []byte("//")); line++ {
		_, source, _ = bytes.Cut(source, []byte("\n"))
	}
	return source, line
}

// knownChecks asks the compiler which of the checks it knows.
func (b build) knownChecks(ctx context.Context) []string {
	var known []string
	for _, choices := range checks {
		for _, choice := range choices {
			flags := strings.Fields(choice)
			arguments := append(slices.Clone(flags), "-fsyntax-only", "-x", "c++", os.DevNull)
			if exec.CommandContext(ctx, b.cxx, arguments...).Run() == nil {
				known = append(known, flags...)
				break
			}
		}
	}
	return known
}

// path is where the output of a compilation lies: all but the input is in the
// name of its directory.
func (b build) path(stem string, flags []string, suffix string) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n%q\n%q\n", b.cxx, b.compiler, flags, checks)
	dir := filepath.Join(b.headers, hex.EncodeToString(sum.Sum(nil))[:16])
	return filepath.Join(dir, stem+suffix), os.MkdirAll(dir, 0o755)
}

// compile runs the compiler unless its output is there already, and whole.
func (b build) compile(ctx context.Context, stem string, flags []string, stdin []byte, suffix string, inputs ...string) (string, error) {
	path, err := b.path(stem, flags, suffix)
	if err != nil {
		return "", err
	}
	if sealed(path) {
		use(path)
		return path, nil
	}
	return path, place(path, func(temporary string) error {
		arguments := append([]string{"-I", b.headers, "-o", temporary}, flags...)
		cmd := exec.CommandContext(ctx, b.cxx, append(arguments, inputs...)...)
		cmd.Stdin = bytes.NewReader(stdin)
		output, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", filepath.Base(b.cxx), err, shorten(output, 8000))
		}
		return seal(temporary)
	})
}

const (
	keptUnused  = 7 * 24 * time.Hour
	trimmedEach = 24 * time.Hour
)

// trim removes what was compiled and has not been used for so long, and sources that nothing is left of: now and then, as
// each change of a kernel or of the emulator leaves some behind. What can't be removed stays.
func (b build) trim(now time.Time) {
	marker := filepath.Join(b.dir, "trimmed")
	if info, err := os.Stat(marker); err == nil && now.Sub(info.ModTime()) < trimmedEach {
		return
	}
	if os.WriteFile(marker, nil, 0o644) != nil || os.Chtimes(marker, now, now) != nil {
		return
	}
	unused := func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && now.Sub(info.ModTime()) >= keptUnused
	}
	folders, _ := filepath.Glob(filepath.Join(b.dir, "emulator-*")) // fails of a bad pattern alone
	for _, folder := range folders {
		left := 0
		compiled, _ := filepath.Glob(filepath.Join(folder, "*", "*"))
		for _, path := range compiled {
			if !unused(path) || os.Remove(path) != nil {
				left++
			}
		}
		if left == 0 && unused(folder) {
			_ = os.RemoveAll(folder)
		}
	}
}

// use says that a file or folder of the cache is in use, for trim; where that can't be, it is made anew some day.
func use(path string) {
	now := time.Now()
	_ = os.Chtimes(path, now, now)
}

// seal appends a file's SHA-256 to it, which loaders of executables ignore.
func seal(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	// A process that is just being started elsewhere would hold the file open
	// for a moment, and no one can run a file that is open for writing.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(sum[:])
	return errors.Join(err, f.Close())
}

// sealed says whether a file is there and as seal left it.
func sealed(path string) bool {
	data, err := os.ReadFile(path)
	if err != nil || len(data) < sha256.Size {
		return false
	}
	end := len(data) - sha256.Size
	sum := sha256.Sum256(data[:end])
	return bytes.Equal(sum[:], data[end:])
}

// place writes a file under a temporary name beside path and renames it, so
// that path is whole or absent.
func place(path string, write func(temporary string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	f.Close()
	defer os.Remove(f.Name()) // fails where the rename succeeded
	if err := write(f.Name()); err != nil {
		return err
	}
	if err := flush(f.Name()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// shorten keeps the first n bytes of text.
func shorten(text []byte, n int) []byte {
	text = bytes.TrimSpace(text)
	if len(text) <= n {
		return text
	}
	return append(text[:n:n], "\n..."...)
}
