package proxyheader

import (
	"errors"
	"net"
	"net/netip"

	"github.com/fencepost/fencepost/proxy/netloop"
)

// Trusted are the addresses from which a connection must begin with a header.
type Trusted []netip.Prefix

// Expect returns conn if its peer is not trusted. Otherwise it returns a connection whose
// header Read reads. A peer without an IP address, on a Unix socket, is not trusted.
func (t Trusted) Expect(conn netloop.Conn) netloop.Conn {
	peer, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !t.contains(peer.AddrPort().Addr()) {
		return conn
	}
	return &headed{Conn: conn}
}

func (t Trusted) contains(peer netip.Addr) bool {
	peer = peer.Unmap().WithZone("") // a prefix contains neither of the two
	for _, p := range t {
		if p.Contains(peer) {
			return true
		}
	}
	return false
}

// headed is a connection that begins with a header.
type headed struct {
	netloop.Conn
	// client is the address of the header, nil before it was read, and if it has none.
	client net.Addr
}

// Restore returns conn with the address that its header had, which another process has read.
func Restore(conn netloop.Conn, client net.Addr) netloop.Conn {
	return &headed{Conn: conn, client: client}
}

// Below returns the connection below one that Expect or Restore has returned.
func Below(conn netloop.Conn) netloop.Conn {
	if c, ok := conn.(*headed); ok {
		return c.Conn
	}
	return conn
}

// RemoteAddr returns the client's address, as the header says it, or that of the peer if
// there is none.
func (c *headed) RemoteAddr() net.Addr {
	if c.client != nil {
		return c.client
	}
	return c.Conn.RemoteAddr()
}

// ErrInvalid says that the header is missing, malformed, or did not arrive in time.
var ErrInvalid = errors.New("no valid PROXY header")

// Read reads the header of a connection that Expect returned, which then has the client's
// address as its RemoteAddr. It does nothing for connections that have none. conn's deadline
// bounds it. No one else may use conn's addresses meanwhile.
//
// The error is ErrInvalid if the header is not as it must be. It is another one, such as
// io.EOF, if the connection failed before its first byte.
func Read(conn netloop.Conn) error {
	c, ok := conn.(*headed)
	if !ok {
		return nil
	}
	header, err := next(c.Conn)
	if err != nil {
		return err
	}
	c.client, err = clientOf(header)
	return err
}
