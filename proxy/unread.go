package proxy

import "net"

// unread returns how many bytes of the peer's have arrived and were not read.
// Every connection of a session's is a socket or lies above one, which know;
// what any other has counts as pending.
func unread(c net.Conn) int {
	if s, ok := c.(interface{ unread() int }); ok {
		return s.unread()
	}
	return 1
}
