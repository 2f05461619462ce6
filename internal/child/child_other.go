//go:build !linux

package child

import "syscall"

func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

func setSession(*syscall.SysProcAttr) {}
