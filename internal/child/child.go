// Package child starts processes that end with us.
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

// OwnSession prepares cmd, a process that tests start, for EndWithParent, and gives it a session of its own. Linux
// shares the processors equally among sessions (sched_autogroup in sched(7)), and each backend of PostgreSQL has one.
// All that tests start would otherwise get the share of one backend together, and what is to answer in time would wait
// for seconds while many backends are busy. If this process has a lower priority, the new one stays in its session,
// because outside of that the priority would not count.
func OwnSession(cmd *exec.Cmd, signal syscall.Signal) {
	EndWithParent(cmd, signal)
	setSession(cmd.SysProcAttr)
}
