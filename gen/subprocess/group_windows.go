package subprocess

import (
	"os/exec"
	"syscall"
)

// OwnGroup has a tool that is not started yet in a process group of its own: an interrupt from the terminal is
// for this process to pass on.
func OwnGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// killGroup ends the tool alone: Windows does not end a group.
func killGroup(cmd *exec.Cmd) error { return cmd.Process.Kill() }
