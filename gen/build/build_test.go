package build

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kgen-project/kgen/gen/spec"
	"github.com/kgen-project/kgen/gen/toolchain"
	"github.com/kgen-project/kgen/runtime/cubincache"
	"github.com/kgen-project/kgen/tests/testutil"
)

var update = flag.Bool("update", false, "write testdata from what the compiler gives")

// figures is the source of testdata, by one of its kernels.
func figures(t *testing.T, entry string, target spec.Target) Source {
	t.Helper()
	text, err := os.ReadFile("testdata/figures.cu")
	if err != nil {
		t.Fatal(err)
	}
	return Source{Name: "figures.cu", Entry: entry, Text: text, Target: target}
}

// recorded is the entry of testdata, which NVRTC made for sm_80.
func recorded(t *testing.T) cubincache.Entry {
	t.Helper()
	cubin, err := os.ReadFile("testdata/figures.cubin")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile("testdata/figures.log")
	if err != nil {
		t.Fatal(err)
	}
	return cubincache.Entry{Cubin: cubin, Log: string(log)}
}

// fake is a compiler that gives one entry for every source, and fails for
// those whose name starts with "bad".
type fake struct {
	entry    cubincache.Entry
	compiles atomic.Int32
	wait     time.Duration
}

func (f *fake) ID() string      { return "fake" }
func (f *fake) Version() string { return "1.2.3" }

func (f *fake) Compile(ctx context.Context, s Source) (cubincache.Entry, error) {
	f.compiles.Add(1)
	select {
	case <-ctx.Done():
		return cubincache.Entry{}, ctx.Err()
	case <-time.After(f.wait):
	}
	if strings.HasPrefix(s.Name, "bad") {
		return cubincache.Entry{}, fmt.Errorf("%s does not compile", s.Name)
	}
	return f.entry, nil
}

func (f *fake) PTX(context.Context, Source) ([]byte, error) { return nil, errors.New("no PTX") }

func TestBuildKeepsOrderAndCaches(t *testing.T) {
	compiler := &fake{entry: recorded(t)}
	cache := cubincache.Cache{Dir: t.TempDir()}
	var sources []Source
	for i := range 9 {
		sources = append(sources, Source{Name: fmt.Sprintf("k%d.cu", i), Entry: "shared", Target: "sm_80"})
	}
	for round, hit := range []bool{false, true} {
		var steps []int
		cubins, err := Build(t.Context(), compiler, cache, sources, Options{Jobs: 3, OnProgress: func(done, total int, name string) {
			steps = append(steps, done)
			if total != len(sources) {
				t.Errorf("total %d", total)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range cubins {
			if c.Source.Name != sources[i].Name || c.FromCache != hit || !bytes.Equal(c.Cubin, compiler.entry.Cubin) {
				t.Errorf("round %d: cubin %d is of %s, from cache %t", round, i, c.Source.Name, c.FromCache)
			}
		}
		if !slices.Equal(steps, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("progress %v", steps)
		}
	}
	if n := compiler.compiles.Load(); n != 9 {
		t.Errorf("%d compiles, want 9", n)
	}
}

// What another program has stored without the compiler's messages is made again, once.
func TestBuildMendsEntries(t *testing.T) {
	compiler := &fake{entry: recorded(t)}
	cache := cubincache.Cache{Dir: t.TempDir()}
	sources := []Source{{Name: "k.cu", Entry: "shared", Target: "sm_80"}}
	silent := &fake{entry: cubincache.Entry{Cubin: compiler.entry.Cubin}}
	if _, err := Build(t.Context(), silent, cache, sources, Options{}); err == nil || !strings.Contains(err.Error(), "do not give the spills") {
		t.Fatalf("a compiler without messages: error %v", err)
	}
	for _, hit := range []bool{false, true} {
		cubins, err := Build(t.Context(), compiler, cache, sources, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if cubins[0].FromCache != hit {
			t.Errorf("from cache %t, want %t", cubins[0].FromCache, hit)
		}
	}
	if n := compiler.compiles.Load(); n != 1 {
		t.Errorf("%d compiles, want 1", n)
	}
}

func TestBuildReportsEveryFailure(t *testing.T) {
	compiler := &fake{entry: recorded(t)}
	sources := []Source{
		{Name: "bad1.cu", Target: "sm_80"}, {Name: "good.cu", Entry: "shared", Target: "sm_80"},
		{Name: "bad2.cu", Target: "sm_80"}, {Name: "other.cu", Entry: "absent", Target: "sm_80"},
	}
	cubins, err := Build(t.Context(), compiler, cubincache.Cache{}, sources, Options{})
	want := "bad1.cu does not compile\nbad2.cu does not compile\nbuild: the cubin of other.cu for sm_80: it has no kernel absent"
	if cubins != nil || err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
}

func TestBuildCancelled(t *testing.T) {
	compiler := &fake{wait: time.Minute}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	sources := make([]Source, 20)
	_, err := Build(ctx, compiler, cubincache.Cache{Dir: t.TempDir()}, sources, Options{Jobs: 2})
	if err != context.DeadlineExceeded {
		t.Errorf("error %v", err)
	}
	if n := compiler.compiles.Load(); n > 2 {
		t.Errorf("%d compiles started", n)
	}
}

// The figures wanted are those of testdata/figures.log.
func TestInspect(t *testing.T) {
	for _, test := range []struct {
		entry                                             string
		registers, static, stores, loads, stack, constant int
	}{
		{"shared", 12, 1024, 0, 0, 0, 368},
		{"spilling", 64, 0, 12, 12, 16, 368},
	} {
		f, err := inspect(recorded(t), test.entry)
		if err != nil {
			t.Fatal(err)
		}
		got := []int{f.Registers, f.StaticBytes, f.SpillStores, f.SpillLoads, f.StackBytes, f.ConstBytes}
		want := []int{test.registers, test.static, test.stores, test.loads, test.stack, test.constant}
		if !slices.Equal(got, want) {
			t.Errorf("%s: registers, static, stores, loads, stack, constant = %v, want %v", test.entry, got, want)
		}
	}
}

func TestInspectRefuses(t *testing.T) {
	whole := recorded(t)
	for _, test := range []struct {
		name, want string
		entry      cubincache.Entry
	}{
		{"empty", "not an ELF file", cubincache.Entry{Log: whole.Log}},
		{"cut", "ELF", cubincache.Entry{Cubin: whole.Cubin[:len(whole.Cubin)/2], Log: whole.Log}},
		{"no log", "do not give the spills", cubincache.Entry{Cubin: whole.Cubin}},
	} {
		if _, err := inspect(test.entry, "shared"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q in it", test.name, err, test.want)
		}
	}
}

func TestWarnings(t *testing.T) {
	log := recorded(t).Log
	if w := warnings(log); w != "" {
		t.Errorf("figures taken for a warning: %q", w)
	}
	const warning = "figures.cu(3): warning #177-D: variable \"x\" was declared but never referenced"
	if w := warnings(warning + "\n" + log); w != warning {
		t.Errorf("warnings = %q", w)
	}
}

// installed returns the compilers of this machine.
func installed(t *testing.T) toolchain.Tools {
	t.Helper()
	return toolchain.Find(testutil.Toolchain())
}

func TestCompilers(t *testing.T) {
	tools := installed(t)
	for _, choice := range []Choice{NVRTC, NVCC} {
		t.Run(string(choice), func(t *testing.T) {
			c, err := FindCompiler(t.Context(), choice, tools, "")
			if err != nil {
				t.Skip(err)
			}
			for _, target := range []spec.Target{"sm_80", "sm_90a", "sm_100a", "sm_120a"} {
				sources := []Source{figures(t, "shared", target), figures(t, "spilling", target)}
				cubins, err := Build(t.Context(), c, cubincache.Cache{Dir: t.TempDir()}, sources, Options{})
				if err != nil {
					t.Fatal(err)
				}
				shared, spilling := cubins[0].Figures, cubins[1].Figures
				if shared.StaticBytes != 1024 || shared.StackBytes != 0 || shared.SpillStores != 0 || shared.SpillLoads != 0 {
					t.Errorf("%s: figures of shared: %+v", target, shared)
				}
				if spilling.Registers != 64 || spilling.StackBytes == 0 || spilling.SpillStores == 0 || spilling.SpillLoads == 0 {
					t.Errorf("%s: figures of spilling: %+v", target, spilling)
				}
				if shared.CubinSHA256 != spilling.CubinSHA256 || shared.Target != string(target) {
					t.Errorf("%s: one source made two cubins: %+v, %+v", target, shared, spilling)
				}
				if w := cubins[0].Warnings; w != "" {
					t.Errorf("%s: warnings %q", target, w)
				}
			}
			ptx, err := c.PTX(t.Context(), figures(t, "shared", "sm_90a"))
			if err != nil || !bytes.Contains(ptx, []byte(".entry shared")) {
				t.Errorf("PTX: %v\n%s", err, ptx)
			}
			_, err = c.Compile(t.Context(), Source{Name: "bad.cu", Text: []byte("int f() {\n  return one;\n}\nint g() { return two; }"), Target: "sm_80"})
			for _, want := range []string{"bad.cu for sm_80", "bad.cu(2): error", `"one"`, "bad.cu(4): error", `"two"`} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
			if *update && choice == NVRTC {
				entry, err := c.Compile(t.Context(), figures(t, "shared", "sm_80"))
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(os.WriteFile("testdata/figures.cubin", entry.Cubin, 0o644),
					os.WriteFile("testdata/figures.log", []byte(entry.Log), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
