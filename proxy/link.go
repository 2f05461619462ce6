package proxy

import (
	"net"

	"github.com/fencepost/fencepost/proxy/netloop"
)

// link is a connection of a session, on either side: a socket, or TLS above one.
type link interface {
	net.Conn
	// CloseWrite ends the writing side; what was written still arrives.
	CloseWrite() error
	// Unread returns how many bytes of the peer's have arrived and were not read.
	// Only the goroutine that reads may call it. What cannot be known counts as
	// pending.
	Unread() int
}

var (
	_ link = (netloop.Conn)(nil)
	_ link = (*tlsConn)(nil)
)

// socketBelow is the socket of a link.
func socketBelow(l link) netloop.Conn {
	if t, ok := l.(*tlsConn); ok {
		l = t.records.link
	}
	return l.(netloop.Conn)
}
