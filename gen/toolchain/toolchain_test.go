package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kgen-project/kgen/tests/testutil"
)

// write makes a file and the folders above it.
func write(t *testing.T, mode os.FileMode, text string, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// fakePython writes a script that stands for Python with pip. Each install
// adds a line to the file runs beside it, makes what the packages hold, and
// then does what the script's text says.
func fakePython(t *testing.T, text string) (python, runs string) {
	dir := t.TempDir()
	runs = filepath.Join(dir, "runs")
	python = write(t, 0o755, `#!/bin/sh
case "$*" in *--version) exit;; esac
echo "$@" >> `+runs+`
while [ "$1" != --target ]; do shift; done
mkdir -p "$2"/nvidia/cu13/lib "$2"/nvidia/cu13/bin
touch "$2"/nvidia/cu13/lib/libnvrtc.so.13
case "$*" in
*nvdisasm*) printf '#!/bin/sh\n' > "$2"/nvidia/cu13/bin/nvdisasm; chmod +x "$2"/nvidia/cu13/bin/nvdisasm;;
*nvcc*) printf '#!/bin/sh\n' > "$2"/nvidia/cu13/bin/nvcc; chmod +x "$2"/nvidia/cu13/bin/nvcc;;
esac
echo the message of pip
`+text+"\n", dir, "python3")
	return python, runs
}

func TestInstall(t *testing.T) {
	python, runs := fakePython(t, "")
	dir := filepath.Join(t.TempDir(), "kgen [13]", "toolchain")
	write(t, 0o644, "of an install that was killed", dir, ".new", "file")
	var out bytes.Buffer
	if err := Install(t.Context(), dir, InstallOptions{Python: python, Out: &out}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "the message of pip") {
		t.Errorf("output %q", &out)
	}
	tools := Find(dir)
	want := Tools{
		NVRTC:    filepath.Join(dir, "nvrtc-13.0.88/nvidia/cu13/lib/libnvrtc.so.13"),
		NVCC:     tools.NVCC, // there may be one on this machine
		Nvdisasm: filepath.Join(dir, "nvdisasm-13.2.78/nvidia/cu13/bin/nvdisasm"),
	}
	if tools != want || strings.HasPrefix(tools.NVCC, dir) {
		t.Errorf("Find = %+v, want %+v", tools, want)
	}
	for range 2 { // the second finds all there
		if err := Install(t.Context(), dir, InstallOptions{Python: python, NVCC: true}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := Find(dir).NVCC, filepath.Join(dir, "nvcc-13.0.88/nvidia/cu13/bin/nvcc"); got != want {
		t.Errorf("nvcc is %s, want %s", got, want)
	}
	log, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	if len(lines) != 3 {
		t.Errorf("pip ran %d times, want once for each of three components:\n%s", len(lines), log)
	}
	for i, want := range []string{"nvidia-cuda-nvrtc==13.0.88", "nvidia-cuda-nvdisasm==", "nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96"} {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "--no-deps") {
			t.Errorf("pip's arguments %q lack %q", lines[i], want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestTwoInstallsAtOnce(t *testing.T) {
	python, runs := fakePython(t, "sleep 0.1")
	dir := t.TempDir()
	var wait sync.WaitGroup
	for range 3 {
		wait.Go(func() {
			if err := Install(t.Context(), dir, InstallOptions{Python: python}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	log, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(log, []byte("\n")); n != 2 {
		t.Errorf("pip ran %d times, want once for each of two components", n)
	}
}

func TestInstallFailures(t *testing.T) {
	failing, _ := fakePython(t, "echo 'no matching distribution' >&2; exit 1")
	empty, _ := fakePython(t, `rm -r "$2"/nvidia`)
	noPip := write(t, 0o755, "#!/bin/sh\necho 'No module named pip' >&2; exit 1\n", t.TempDir(), "python3")
	file := write(t, 0o644, "", t.TempDir(), "file")
	for _, test := range []struct {
		name, python, dir string
		want              []string
	}{
		{"no Python", "no-such-python", "", []string{"no-such-python is not found", "install Python 3", "CUDA_HOME"}},
		{"no pip", noPip, "", []string{noPip, "No module named pip", "install pip"}},
		{"pip fails", failing, "", []string{"nvrtc-13.0.88", "exit status 1", "no matching distribution"}},
		{"nothing in the package", empty, "", []string{"libnvrtc", "nvidia-cuda-nvrtc==13.0.88"}},
		{"folder can't be made", failing, filepath.Join(file, "dir"), []string{file}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := test.dir
			if dir == "" {
				dir = t.TempDir()
			}
			err := Install(t.Context(), dir, InstallOptions{Python: test.python})
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestInstallCancelled(t *testing.T) {
	python, _ := fakePython(t, "sleep 60")
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := Install(ctx, dir, InstallOptions{Python: python}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestFindProgram(t *testing.T) {
	root := t.TempDir()
	script := "#!/bin/sh\n"
	inPath := write(t, 0o755, script, root, "path", "nvcc")
	home := write(t, 0o755, script, root, "home", "bin", "nvcc")
	write(t, 0o644, script, root, "tools", "nvcc-13.9", "nvidia", "cu13", "bin", "nvcc") // can't be run
	installed := write(t, 0o755, script, root, "tools", "nvcc-13.0", "nvidia", "cu13", "bin", "nvcc")
	t.Setenv("PATH", filepath.Join(root, "path"))
	t.Setenv("CUDA_HOME", "")
	t.Setenv("CUDA_PATH", filepath.Join(root, "home"))
	if got := Find(filepath.Join(root, "tools")).NVCC; got != installed {
		t.Errorf("nvcc is %s, want the installed %s", got, installed)
	}
	if got := Find(filepath.Join(root, "none")).NVCC; got != home {
		t.Errorf("nvcc is %s, want CUDA_PATH's %s", got, home)
	}
	t.Setenv("CUDA_PATH", "")
	if exists("/usr/local/cuda/bin/nvcc") {
		return
	}
	if got := Find(filepath.Join(root, "none")).NVCC; got != inPath {
		t.Errorf("nvcc is %s, want PATH's %s", got, inPath)
	}
}

// Where there is no folder of installed tools, those below the working folder are nobody's; the
// name of one may have a pattern's signs.
func TestFindInOddFolders(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH", "PATH", "LD_LIBRARY_PATH"} {
		t.Setenv(name, "")
	}
	files := Tools{
		NVRTC:    write(t, 0o644, "", root, "tools [13]", "nvrtc-13.0", "nvidia", "cu13", "lib", "libnvrtc.so.13"),
		NVCC:     write(t, 0o755, "", root, "tools [13]", "nvcc-13.0", "nvidia", "cu13", "bin", "nvcc"),
		Nvdisasm: write(t, 0o755, "", root, "tools [13]", "nvdisasm-13.0", "nvidia", "cu13", "bin", "nvdisasm"),
	}
	dir := filepath.Join(root, "tools [13]")
	if got := Find(dir); got != files {
		t.Errorf("in %s: %+v, want %+v", dir, got, files)
	}
	t.Chdir(dir)
	none := Find(filepath.Join(root, "none"))
	if got := Find(""); got != none {
		t.Errorf("without a folder: %+v, want %+v", got, none)
	}
}

func TestVersion(t *testing.T) {
	dir, memo := t.TempDir(), filepath.Join(t.TempDir(), "made", "here")
	asked := filepath.Join(dir, "asked")
	tool := func(version string) string {
		return write(t, 0o755, fmt.Sprintf("#!/bin/sh\necho >> %s\necho 'Cuda compilation tools, release 13.0, V%s'\n", asked, version), dir, "nvcc")
	}
	check := func(step, path, memo, want string, wantAsked int) {
		t.Helper()
		got, err := Version(t.Context(), path, memo)
		log, _ := os.ReadFile(asked)
		if got != want || err != nil || len(log) != wantAsked {
			t.Errorf("%s: Version = %q, %v after asking %d times; want %q after %d", step, got, err, len(log), want, wantAsked)
		}
	}
	path := tool("13.0.88")
	check("first", path, memo, "13.0.88", 1)
	check("kept", path, memo, "13.0.88", 1)
	check("no memo", path, "", "13.0.88", 2)
	tool("13.0.100") // a file of another size
	check("changed", path, memo, "13.0.100", 3)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	check("touched", path, memo, "13.0.100", 4)
	files, _ := filepath.Glob(filepath.Join(memo, "*"))
	if len(files) != 1 {
		t.Fatalf("memo holds %v", files)
	}
	write(t, 0o644, "{", files[0])
	check("damaged memo", path, memo, "13.0.100", 5)
	check("memo can't be written", path, filepath.Join(path, "memo"), "13.0.100", 6)

	for _, test := range []struct{ name, script, want string }{
		{"no version", "echo hello", "gives no version"},
		{"fails", "echo why; exit 1", "why"},
	} {
		path := write(t, 0o755, "#!/bin/sh\n"+test.script+"\n", t.TempDir(), "nvcc")
		if _, err := Version(t.Context(), path, memo); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v", test.name, err)
		}
	}
	if _, err := Version(t.Context(), filepath.Join(dir, "none"), memo); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent tool: %v", err)
	}
}

// TestInstalled tries the tools that Install put on this machine.
func TestInstalled(t *testing.T) {
	tools := Find(testutil.Toolchain())
	if tools.Nvdisasm == "" {
		t.Skip("nvdisasm is not found; run `kgen toolchain install`")
	}
	cubin, err := os.ReadFile("../build/testdata/figures.cubin")
	if err != nil {
		t.Fatal(err)
	}
	sass, err := Disassemble(t.Context(), tools.Nvdisasm, cubin)
	if err != nil || !strings.Contains(sass, ".text.shared") || !strings.Contains(sass, "BAR.SYNC") {
		t.Errorf("Disassemble: %v\n%s", err, sass)
	}
	if _, err := Disassemble(t.Context(), tools.Nvdisasm, []byte("text")); err == nil {
		t.Error("disassembled a text")
	}
}
