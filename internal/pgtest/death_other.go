//go:build !linux

package pgtest

import "syscall"

// dieWithParent does nothing: only Linux can signal the death of a parent.
func dieWithParent(*syscall.SysProcAttr) {}
