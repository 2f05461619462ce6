//go:build !linux

package child

import "syscall"

func setSession(*syscall.SysProcAttr) {}
