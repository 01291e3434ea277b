package cubincache

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Some tests run this test binary again as other processes: these variables
// tell one what to do and where.
const (
	roleVariable = "KGEN_CUBINCACHE_ROLE"
	dirVariable  = "KGEN_CUBINCACHE_DIR"
)

func TestMain(m *testing.M) {
	role, dir := os.Getenv(roleVariable), os.Getenv(dirVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := child(role, dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func child(role, dir string) error {
	e, hit, err := Cache{Dir: filepath.Join(dir, "cache")}.GetOrBuild(context.Background(), input.Key(), func(context.Context) (Entry, error) {
		switch role {
		case "share":
			log, err := os.OpenFile(filepath.Join(dir, "builds"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				return Entry{}, err
			}
			fmt.Fprintln(log, os.Getpid())
			time.Sleep(50 * time.Millisecond)
			return sample, log.Close()
		case "die":
			return Entry{}, syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "full":
			limit := syscall.Rlimit{Cur: 4096, Max: 4096}
			if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
				return Entry{}, err
			}
			return Entry{Cubin: make([]byte, 1<<20)}, nil
		}
		return Entry{}, fmt.Errorf("no role %q", role)
	})
	if err != nil {
		return err
	}
	fmt.Printf("hit %t, sample %t\n", hit, bytes.Equal(e.Cubin, sample.Cubin))
	return nil
}

func command(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, dirVariable+"="+dir)
	return cmd
}

func TestProcessesShareOneBuild(t *testing.T) {
	dir := t.TempDir()
	outputs := make([]bytes.Buffer, 4)
	cmds := make([]*exec.Cmd, len(outputs))
	for i := range cmds {
		cmds[i] = command(t, "share", dir)
		cmds[i].Stdout = &outputs[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	hits := 0
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, &outputs[i])
		}
		switch outputs[i].String() {
		case "hit true, sample true\n":
			hits++
		case "hit false, sample true\n":
		default:
			t.Errorf("process %d: %s", i, &outputs[i])
		}
	}
	builds, err := os.ReadFile(filepath.Join(dir, "builds"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(builds, []byte("\n")); n != 1 || hits != len(cmds)-1 {
		t.Errorf("%d builds and %d hits, want 1 and %d", n, hits, len(cmds)-1)
	}
	if got := files(t, filepath.Join(dir, "cache")); got != ".cubin" {
		t.Errorf("files left: %s", got)
	}
}

func TestKilledBuilderFreesTheLock(t *testing.T) {
	dir := t.TempDir()
	if err := command(t, "die", dir).Run(); err == nil {
		t.Fatal("the process lived")
	}
	c := Cache{Dir: filepath.Join(dir, "cache")}
	// What a process killed in its write leaves.
	if err := os.WriteFile(c.path(input.Key(), ".tmp"), bytes.Repeat([]byte("half"), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	builds := 0
	get(t, c, &builds)
	if _, hit := get(t, c, &builds); !hit || builds != 1 {
		t.Errorf("hit %t after %d builds, want one build", hit, builds)
	}
	if got := files(t, c.Dir); got != ".cubin" {
		t.Errorf("files left: %s", got)
	}
}

// A limit on the size of files stands for a full disk: write fails after a
// part of the file.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	out, err := command(t, "full", dir).CombinedOutput()
	if err == nil {
		t.Fatalf("stored: %s", out)
	}
	for _, want := range []string{"cubincache: store a cubin", dir, syscall.EFBIG.Error()} {
		if !strings.Contains(string(out), want) {
			t.Errorf("message %q lacks %q", out, want)
		}
	}
	if got := files(t, filepath.Join(dir, "cache")); got != "" {
		t.Errorf("files left: %s", got)
	}
}
