package proxy

import (
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// link is the connection of a session with its client or its server: a netloop.Conn, or TLS
// on top of one.
type link = pgtls.Stream

// socketBelow returns the netloop.Conn that carries a link.
func socketBelow(l link) netloop.Conn {
	if secured, ok := l.(*pgtls.Conn); ok {
		return secured.NetConn().(netloop.Conn)
	}
	return l.(netloop.Conn)
}
