// Package subprocess runs tools so that a cancelled context ends them and all
// that they started, and so that every failure says what happened.
package subprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Command is a tool to run.
type Command struct {
	Path string
	Args []string
	Dir  string    // working folder; empty for this process's
	Env  []string  // as in exec.Cmd; nil for this process's
	Out  io.Writer // where output also goes as it comes; may be nil
}

// Error is a tool that did not end well.
type Error struct {
	Tool   string // its file name
	Reason string // such as "exit status 1" or "killed by signal: segmentation fault"
	Output string // all it wrote, standard error included
}

func (e *Error) Error() string {
	s := e.Tool + ": " + e.Reason
	if out := strings.TrimSpace(e.Output); out != "" {
		s += "\n" + out
	}
	return s
}

// Run runs the command and returns what it wrote to standard output and
// standard error, in the order of writing. A tool that fails is an [*Error];
// when ctx ends, the tool's process group is killed and the error is ctx's.
func Run(ctx context.Context, c Command) (string, error) {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Dir, cmd.Env = c.Dir, c.Env
	cmd.Stdout = &output
	if c.Out != nil {
		cmd.Stdout = io.MultiWriter(&output, c.Out)
	}
	cmd.Stderr = cmd.Stdout
	OwnGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd) }
	cmd.WaitDelay = time.Second // for a process that left the group and holds the output open
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return output.String(), nil
	case errors.As(err, &exit):
		e := &Error{Tool: filepath.Base(c.Path), Reason: exit.String(), Output: output.String()}
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			e.Reason = "it crashed, killed by signal: " + status.Signal().String()
		}
		return "", e
	default:
		return "", fmt.Errorf("run %s: %w", c.Path, err)
	}
}
