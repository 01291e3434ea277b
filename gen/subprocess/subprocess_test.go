package subprocess

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func shell(script string) Command { return Command{Path: "/bin/sh", Args: []string{"-c", script}} }

func TestRun(t *testing.T) {
	var stream bytes.Buffer
	c := shell("echo one; echo two >&2; pwd; echo $WORD")
	c.Dir, c.Env, c.Out = "/", []string{"WORD=three"}, &stream
	out, err := Run(t.Context(), c)
	if want := "one\ntwo\n/\nthree\n"; out != want || err != nil || stream.String() != want {
		t.Errorf("Run = %q, %v, streamed %q; want %q", out, err, &stream, want)
	}
}

func TestFailures(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"exit", "echo why; echo more >&2; exit 3", "sh: exit status 3\nwhy\nmore"},
		{"crash", "kill -SEGV $$", "sh: it crashed, killed by signal: segmentation fault"},
	} {
		out, err := Run(t.Context(), shell(test.script))
		if out != "" || err == nil || err.Error() != test.want {
			t.Errorf("%s: Run = %q, %v; want error %q", test.name, out, err, test.want)
		}
	}
	if _, err := Run(t.Context(), Command{Path: "/no/such/tool"}); err == nil || !strings.Contains(err.Error(), "/no/such/tool") {
		t.Errorf("absent tool: %v", err)
	}
}

func TestCancelKillsTheGroup(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for { // until the grandchild runs
			if b, _ := os.ReadFile(pidFile); bytes.HasSuffix(b, []byte("\n")) {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	start := time.Now()
	_, err := Run(ctx, shell("sleep 60 & echo $! > "+pidFile+"; wait"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Run took %v to give up", took)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(text)), "stat"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the grandchild lives on")
}
