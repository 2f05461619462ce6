//go:build !linux

package pgtest

import "syscall"

// dieWithParent does nothing: only Linux has a signal for the death of a parent.
func dieWithParent(*syscall.SysProcAttr) {}
