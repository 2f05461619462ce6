package pgtest

import "syscall"

// dieWithParent makes the child's end follow that of the thread that starts it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
