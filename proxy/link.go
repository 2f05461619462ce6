package proxy

import (
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// link is a connection of a session, on either side: a netloop.Conn, or TLS above
// one.
type link = pgtls.Stream

// socketBelow is the netloop.Conn of a link.
func socketBelow(l link) netloop.Conn {
	if secured, ok := l.(*pgtls.Conn); ok {
		return secured.NetConn().(netloop.Conn)
	}
	return l.(netloop.Conn)
}
