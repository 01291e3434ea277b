package cubincache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var (
	input  = Input{Name: "scale", Compiler: "nvrtc", Version: "13.0.88", Flags: []string{"-a", "-b"}, Target: "sm_90a", Source: []byte("source")}
	sample = Entry{Cubin: []byte("\x7fELF\n\x00cubin"), Log: "a remark\n"}
)

func ExampleCache_GetOrBuild() {
	dir, err := os.MkdirTemp("", "cubins")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	cache := Cache{Dir: dir}
	key := Input{Name: "scale", Compiler: "nvrtc", Version: "13.0.88", Target: "sm_90a", Source: []byte("...")}.Key()
	for range 2 {
		entry, hit, err := cache.GetOrBuild(context.Background(), key, func(context.Context) (Entry, error) {
			return Entry{Cubin: []byte("machine code")}, nil
		})
		fmt.Printf("%s %t %v\n", entry.Cubin, hit, err)
	}
	// Output:
	// machine code false <nil>
	// machine code true <nil>
}

func TestKey(t *testing.T) {
	seen := map[Key]string{input.Key(): "the input"}
	for _, test := range []struct {
		name   string
		change func(*Input)
	}{
		{"name", func(in *Input) { in.Name = "scale2" }},
		{"compiler", func(in *Input) { in.Compiler = "nvcc" }},
		{"version", func(in *Input) { in.Version = "13.0.89" }},
		{"target", func(in *Input) { in.Target = "sm_90" }},
		{"source", func(in *Input) { in.Source = []byte("sources") }},
		{"order of flags", func(in *Input) { in.Flags = []string{"-b", "-a"} }},
		{"flags joined", func(in *Input) { in.Flags = []string{"-a-b"} }},
		{"no flags", func(in *Input) { in.Flags = nil }},
		{"border of name and compiler", func(in *Input) { in.Name, in.Compiler = "scalen", "vrtc" }},
		{"border of flags and target", func(in *Input) { in.Flags, in.Target = []string{"-a", "-b", "sm_90a"}, "" }},
	} {
		changed := input
		test.change(&changed)
		if other, ok := seen[changed.Key()]; ok {
			t.Errorf("%s: same key as %s", test.name, other)
		}
		seen[changed.Key()] = test.name
	}
}

func get(t *testing.T, c Cache, builds *int) (Entry, bool) {
	t.Helper()
	e, hit, err := c.GetOrBuild(t.Context(), input.Key(), func(context.Context) (Entry, error) {
		*builds++
		return sample, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(e.Cubin, sample.Cubin) || e.Log != sample.Log {
		t.Fatalf("entry %q, want %q", e, sample)
	}
	return e, hit
}

func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimPrefix(e.Name(), input.Key().String()))
	}
	return strings.Join(names, " ")
}

func TestDamagedEntryIsRebuilt(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func([]byte) []byte
	}{
		{"empty", func(b []byte) []byte { return nil }},
		{"truncated in the header", func(b []byte) []byte { return b[:20] }},
		{"truncated in the cubin", func(b []byte) []byte { return b[:len(b)-1] }},
		{"longer", func(b []byte) []byte { return append(b, 0) }},
		{"flipped bit", func(b []byte) []byte { b[len(b)-3] ^= 1; return b }},
		{"length of log", func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"LogBytes":9`), []byte(`"LogBytes":-`), 1)
		}},
		{"log past the end", func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"LogBytes":9`), []byte(`"LogBytes":999`), 1)
		}},
		{"of another key", func(b []byte) []byte {
			e, _ := encode(Input{Name: "other"}.Key(), sample)
			return e
		}},
		{"other format", func(b []byte) []byte { return bytes.Replace(b, []byte(format), []byte("kgen cubin 0"), 1) }},
		{"another file", func(b []byte) []byte { return []byte("hello\n") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Cache{Dir: filepath.Join(t.TempDir(), "made", "by", "cache")}
			builds := 0
			get(t, c, &builds)
			path := c.path(input.Key(), ".cubin")
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := test.damage(bytes.Clone(file))
			if bytes.Equal(damaged, file) {
				t.Fatal("the damage changed nothing")
			}
			if err := os.WriteFile(path, damaged, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, ok, err := c.Get(input.Key()); ok || err != nil {
				t.Errorf("Get of the damaged entry: %t, %v", ok, err)
			}
			if _, hit := get(t, c, &builds); hit || builds != 2 {
				t.Errorf("hit %t after %d builds, want a rebuild", hit, builds)
			}
			if _, hit := get(t, c, &builds); !hit || builds != 2 {
				t.Errorf("hit %t after %d builds, want the rebuilt entry", hit, builds)
			}
			if got := files(t, c.Dir); got != ".cubin" {
				t.Errorf("files left: %s", got)
			}
		})
	}
}

func TestGoroutinesShareOneBuild(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	var builds, hits atomic.Int32
	var wait sync.WaitGroup
	for range 16 {
		wait.Go(func() {
			_, hit, err := c.GetOrBuild(t.Context(), input.Key(), func(context.Context) (Entry, error) {
				builds.Add(1)
				time.Sleep(30 * time.Millisecond)
				return sample, nil
			})
			if err != nil {
				t.Error(err)
			}
			if hit {
				hits.Add(1)
			}
		})
	}
	wait.Wait()
	if builds.Load() != 1 || hits.Load() != 15 {
		t.Errorf("%d builds and %d hits, want 1 and 15", builds.Load(), hits.Load())
	}
}

func TestFailedBuildStoresNothing(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	broken := errors.New("broken")
	_, _, err := c.GetOrBuild(t.Context(), input.Key(), func(context.Context) (Entry, error) { return sample, broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if got := files(t, c.Dir); got != "" {
		t.Errorf("files left: %s", got)
	}
}

func TestWaitIsCancelled(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	unlock, err := c.lock(t.Context(), input.Key())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err = c.GetOrBuild(ctx, input.Key(), func(context.Context) (Entry, error) {
		t.Error("built while another holds the lock")
		return sample, nil
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	unlock()
	builds := 0
	get(t, c, &builds)
}

func TestZeroCacheKeepsNothing(t *testing.T) {
	builds := 0
	for range 2 {
		if _, hit := get(t, Cache{}, &builds); hit {
			t.Error("a hit")
		}
	}
	if builds != 2 {
		t.Errorf("%d builds, want 2", builds)
	}
}

func TestUnusableFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o555); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		dir  string
		want error
	}{
		{filepath.Join(file, "cubins"), syscall.ENOTDIR},
		{filepath.Join(closed, "cubins"), syscall.EACCES},
		{closed, syscall.EACCES},
	} {
		if test.want == syscall.EACCES && os.Getuid() == 0 {
			continue // root may write anywhere
		}
		_, _, err := Cache{Dir: test.dir}.GetOrBuild(t.Context(), input.Key(), func(context.Context) (Entry, error) {
			t.Errorf("%s: built before the folder was tried", test.dir)
			return sample, nil
		})
		if !errors.Is(err, ErrUnusable) || !errors.Is(err, test.want) || !strings.Contains(err.Error(), filepath.Dir(test.dir)) {
			t.Errorf("%s: error %v, want %v and the folder's name", test.dir, err, test.want)
		}
	}
}

// A folder in a file's place is an error that says to remove it, of its own entry alone.
func TestFolderInAFilesPlace(t *testing.T) {
	for _, suffix := range []string{".cubin", ".lock"} {
		c := Cache{Dir: t.TempDir()}
		path := c.path(input.Key(), suffix)
		if err := os.MkdirAll(filepath.Join(path, "notes"), 0o755); err != nil {
			t.Fatal(err)
		}
		_, _, err := c.GetOrBuild(t.Context(), input.Key(), func(context.Context) (Entry, error) {
			t.Errorf("%s: built in vain", suffix)
			return sample, nil
		})
		if err == nil || errors.Is(err, ErrUnusable) || !strings.HasSuffix(err.Error(), "a folder is in a file's place: remove "+path) {
			t.Errorf("%s: error %v", suffix, err)
		}
	}
}
