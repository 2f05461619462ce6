package child

import "syscall"

// normal is what getpriority(2) returns for a process whose priority was not changed.
const normal = 20

func setSession(attr *syscall.SysProcAttr) {
	if priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil {
		attr.Setsid = priority >= normal
	}
}
