package pgtls

import (
	"bytes"
	"net"

	"github.com/fencepost/fencepost/proxy/wire"
)

const (
	scram     = "SCRAM-SHA-256"
	scramPlus = "SCRAM-SHA-256-PLUS"
)

// SameServer reports whether both connections are under TLS and show the same
// certificate of their server.
func SameServer(client, server net.Conn) bool {
	c, ok := client.(*Conn)
	if !ok {
		return false
	}
	s, ok := server.(*Conn)
	return ok && bytes.Equal(c.server, s.server)
}

// WithoutBinding appends to dst the SASL mechanisms of a server's offer but the
// one that binds the authentication to the certificate that the client sees. It
// reports whether that was among them. The list is of strings that end in NUL,
// and ends in an empty one.
func WithoutBinding(dst, mechanisms []byte) (offer []byte, stripped bool) {
	for len(mechanisms) > 0 && mechanisms[0] != 0 {
		name, rest, ok := wire.CString(mechanisms)
		if !ok {
			break
		}
		if string(name) == scramPlus {
			stripped = true
		} else {
			dst = append(append(dst, name...), 0)
		}
		mechanisms = rest
	}
	return append(dst, 0), stripped
}

// MissesBinding reports whether the body of a SASLInitialResponse says that the
// client would bind if only the server could ('y'). A server that can refuses
// that: it is how SCRAM finds out that someone took the mechanism out of the
// list. The client's proof covers the word, so no one can change it on the way.
func MissesBinding(response []byte) bool {
	name, rest, ok := wire.CString(response)
	return ok && string(name) == scram && len(rest) > 4 && rest[4] == 'y'
}
