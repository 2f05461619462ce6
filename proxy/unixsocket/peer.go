package unixsocket

import "fmt"

// Network is what Network returns for the addresses of a Unix socket.
const Network = "unix"

// Peer is the address of a local client.
type Peer struct {
	known bool
	pid   int32
	uid   uint32
}

// Network implements net.Addr.
func (Peer) Network() string { return Network }

// String implements net.Addr. It names the process and its user if the system has said so.
func (p Peer) String() string {
	if !p.known {
		return "local"
	}
	return fmt.Sprintf("local pid=%d uid=%d", p.pid, p.uid)
}
