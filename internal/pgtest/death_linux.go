package pgtest

import "syscall"

// dieWithParent makes the child end with the thread that starts it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
