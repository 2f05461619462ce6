package proxy

import (
	"bytes"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

const (
	scram     = "SCRAM-SHA-256"
	scramPlus = "SCRAM-SHA-256-PLUS"
)

// offer is the server's list of SASL mechanisms as the client gets it.
//
// SCRAM-SHA-256-PLUS binds the authentication to the certificate that the client
// sees. It can be relayed only if that is the server's own, which Fencepost may
// have been given; otherwise it is taken out, and stripped says so.
func (x *session) offer(msg []byte) (offered []byte, stripped bool) {
	if sameServer(x.client, x.server) {
		return msg, false
	}
	offered = append([]byte(nil), msg[:wire.HeaderLen+4]...)
	for rest := msg[wire.HeaderLen+4:]; len(rest) > 0 && rest[0] != 0; {
		name, next, ok := wire.CString(rest)
		if !ok {
			break
		}
		if string(name) == scramPlus {
			stripped = true
		} else {
			offered = append(append(offered, name...), 0)
		}
		rest = next
	}
	return wire.Sized(append(offered, 0)), stripped
}

// sameServer reports whether both connections are under TLS and show the same
// certificate of their server.
func sameServer(client, server any) bool {
	c, ok := client.(*tlsConn)
	if !ok {
		return false
	}
	s, ok := server.(*tlsConn)
	return ok && bytes.Equal(c.server, s.server)
}

// missesBinding reports whether a SASLInitialResponse says that the client would
// bind if only the server could ('y'). A server that can refuses that: it is how
// SCRAM finds out that somebody took the mechanism out of the list. The client's
// proof covers the word, so nobody can change it on the way.
func missesBinding(answer []byte) bool {
	name, rest, ok := wire.CString(answer[wire.HeaderLen:])
	return ok && string(name) == scram && len(rest) > 4 && rest[4] == 'y'
}

// unboundRefusal is what the server would say, and what can be done.
var unboundRefusal = &fencing.Refusal{
	SQLState: "08P01", Message: "SCRAM channel binding negotiation error",
	Detail: "The client supports SCRAM channel binding, and so does the server, but Fencepost stands between them with a certificate of its own.",
	Hint:   "Connect with channel_binding=disable, or give Fencepost the server's own certificate (tls.cert_file in its configuration).",
}
