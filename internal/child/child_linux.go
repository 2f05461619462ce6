package child

import "syscall"

// normal is what the system call getpriority returns for a process whose priority no one has changed. The C library's
// function of that name returns 0 for it: see getpriority(2).
const normal = 20

func setDeathSignal(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// setSession gives the process a session of its own, unless this process has a lower priority.
func setSession(attr *syscall.SysProcAttr) {
	if priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil {
		attr.Setsid = priority >= normal
	}
}
