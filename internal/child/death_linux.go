package child

import "syscall"

func setDeathSignal(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }
