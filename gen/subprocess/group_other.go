//go:build !windows

package subprocess

import (
	"os/exec"
	"syscall"
)

// OwnGroup has a tool that is not started yet in a process group of its own: an interrupt from the terminal is
// for this process to pass on.
func OwnGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends a tool with a group of its own, and all that it started.
func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
