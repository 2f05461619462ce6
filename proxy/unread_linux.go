package proxy

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unread returns how many bytes of the peer's have arrived and were not read.
// What it cannot know counts as pending.
func unread(c net.Conn) int {
	if s, ok := c.(interface{ unread() int }); ok {
		return s.unread()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 1
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 1
	}
	n := 1
	if raw.Control(func(fd uintptr) {
		if v, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ); err == nil {
			n = v
		}
	}) != nil {
		return 1
	}
	return n
}
