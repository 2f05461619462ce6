// Package child lets the processes that we start end with us.
package child

import (
	"os/exec"
	"syscall"
)

// EndWithParent makes the kernel send signal to cmd's process, which is yet to be
// started, when the thread that starts it ends. The Go runtime keeps its threads
// but those that a goroutine locked. Only Linux does that; elsewhere it does
// nothing.
func EndWithParent(cmd *exec.Cmd, signal syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	setDeathSignal(cmd.SysProcAttr, signal)
}
