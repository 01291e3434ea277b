// Package script runs kgen as a user does: one process for each line of the
// scripts in testdata, which say what it prints, how it exits and which files it
// leaves.
package script

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kgen-project/kgen/tests/testutil"
)

// buildKgen builds kgen from this tree and returns its path.
func buildKgen(t *testing.T) string {
	watch(t, "../../cmd", "../../gen", "../../runtime", "../../templates", "../device")
	path := filepath.Join(t.TempDir(), "kgen")
	build := exec.Command("go", "build", "-o", path, "../../cmd/kgen")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kgen: %v\n%s", err, out)
	}
	return path
}

// watch looks at what kgen is built from, so that `go test` does not take an old
// result for a new kgen.
func watch(t *testing.T, dirs ...string) {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			_, err = os.Stat(path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestScripts(t *testing.T) {
	toolchain, kgen := installedToolchain(), buildKgen(t)
	if err := os.MkdirAll(testutil.Emulator(), 0o755); err != nil { // which no one may have made yet: the scripts have links to it
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("KGEN_PATH", filepath.Dir(kgen)) // a PATH of nothing else
			e.Setenv("PATH", filepath.Dir(kgen)+string(filepath.ListSeparator)+e.Getenv("PATH"))
			e.Setenv("KGEN_CACHE_DIR", filepath.Join(e.WorkDir, ".cache"))
			for _, name := range []string{"CUDA_HOME", "CUDA_PATH", "COMP_LINE"} {
				e.Setenv(name, "")
			}
			if err := os.Mkdir(e.Getenv("KGEN_CACHE_DIR"), 0o755); err != nil {
				return err
			}
			if err := os.Symlink(testutil.Emulator(), filepath.Join(e.Getenv("KGEN_CACHE_DIR"), "emulator")); err != nil {
				return err
			}
			if toolchain != "" {
				if err := os.Symlink(toolchain, filepath.Join(e.Getenv("KGEN_CACHE_DIR"), "toolchain")); err != nil {
					return err
				}
			}
			small, err := os.ReadFile("small.yaml")
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(e.WorkDir, "small.yaml"), small, 0o644)
		},
		Condition: func(condition string) (bool, error) {
			switch condition {
			case "nvrtc":
				return toolchain != "", nil
			case "c++":
				_, err := exec.LookPath("c++")
				return err == nil, nil
			case "tmpfs":
				return canMount(t.TempDir()), nil
			}
			return false, fmt.Errorf("unknown condition %q", condition)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     exits,
			"repeat":    repeat,
			"files":     files,
			"interrupt": interrupt,
			"tmpfs":     tmpfs,
		},
	})
}

// installedToolchain is where `kgen toolchain install` puts compilers, if it has.
func installedToolchain() string {
	dir := testutil.Toolchain()
	if found, _ := filepath.Glob(filepath.Join(dir, "nvrtc-*")); len(found) == 0 {
		return ""
	}
	return dir
}

// exits runs a command that must end with an exit code: exits CODE COMMAND...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	checkCode(ts, args[0], ts.Exec(args[1], args[2:]...))
}

func checkCode(ts *testscript.TestScript, want string, err error) {
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != want {
		ts.Fatalf("exit code %d, not %s", code, want)
	}
}

// repeat writes a file of a text many times over: repeat FILE COUNT TEXT.
func repeat(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: repeat FILE COUNT TEXT")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Repeat(args[2], n)), 0o644))
}

// files checks that a folder has exactly the named entries, hidden ones
// included: files DIR [NAME...]
func files(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: files DIR [NAME...]")
	}
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
	}
	if got, want := strings.Join(have, " "), strings.Join(args[1:], " "); got != want {
		ts.Fatalf("%s has %q, not %q", args[0], got, want)
	}
}

// interrupt starts a command, sends it a signal once a file is there, with so many lines,
// and checks the exit code, -1 of a kill: interrupt SIGNAL CODE FILE[:LINES] COMMAND...
func interrupt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: interrupt SIGNAL CODE FILE[:LINES] COMMAND...")
	}
	signals := map[string]os.Signal{"INT": os.Interrupt, "TERM": syscall.SIGTERM, "KILL": os.Kill}
	file, count, _ := strings.Cut(args[2], ":")
	lines, err := strconv.Atoi(cmp.Or(count, "0"))
	ts.Check(err)
	path := args[3]
	if path == "kgen" {
		path = filepath.Join(ts.Getenv("KGEN_PATH"), path)
	}
	var out strings.Builder
	cmd := exec.Command(path, args[4:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), &out, &out
	cmd.Env = os.Environ()
	for _, name := range []string{"PATH", "KGEN_CACHE_DIR", "CUDA_HOME", "CUDA_PATH", "WORK"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	ts.Check(cmd.Start())
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(ts.MkAbs(file)); err == nil && bytes.Count(data, []byte("\n")) >= lines {
			break
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			ts.Fatalf("%s has not come; the command said:\n%s", args[2], out.String())
		}
	}
	ts.Check(cmd.Process.Signal(signals[args[0]]))
	start := time.Now()
	err = cmd.Wait()
	ts.Logf("%s", out.String())
	checkCode(ts, args[1], err)
	if took := time.Since(start); took > 20*time.Second {
		ts.Fatalf("it took %v to end", took)
	}
	if args[0] != "KILL" && !strings.Contains(out.String(), "interrupted") {
		ts.Fatalf("it does not say that it was interrupted")
	}
}

// canMount says whether this process may mount a file system.
func canMount(dir string) bool {
	return mount(dir, "16k") == nil && exec.Command("umount", dir).Run() == nil
}

func mount(dir, size string) error {
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	return nil
}

// tmpfs mounts a small file system until the script's end: tmpfs DIR SIZE.
func tmpfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tmpfs DIR SIZE")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(mount(dir, args[1]))
	ts.Defer(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			ts.Logf("umount: %v: %s", err, out)
		}
	})
}
