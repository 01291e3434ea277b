package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A command that waits for its input ends when it is interrupted.
func TestInterruptedWhileReading(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe") // that nobody writes to, so that it does not open
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"import", "-"}, {"import", pipe}, {"build", "-"}, {"verify", pipe}, {"diff", pipe, "-"}, {"bench", "--from", "-"},
	} {
		t.Run(args[0], func(t *testing.T) {
			stdin, open := io.Pipe()
			defer open.Close()
			ctx, interrupt := context.WithCancel(t.Context())
			var stderr bytes.Buffer
			code := make(chan int, 1)
			go func() {
				code <- run(ctx, args, stdin, io.Discard, &stderr, func(string) string { return "" })
			}()
			time.AfterFunc(20*time.Millisecond, interrupt)
			select {
			case got := <-code:
				if got != exitInterrupted || stderr.String() != "kgen: interrupted\n" {
					t.Errorf("exit code %d, %q", got, &stderr)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("it goes on")
			}
		})
	}
}
