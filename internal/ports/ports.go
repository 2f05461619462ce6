// Package ports reserves TCP ports for servers of tests, which may stop and start again
// while other tests on the machine look for free ports and open connections.
package ports

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Port is a TCP port of 127.0.0.1 that the kernel gives to no one who asks for any port,
// neither to listen on nor to connect from. Servers that name it can listen on it, also
// again and again, if they set SO_REUSEADDR: Go's, PostgreSQL, PgBouncer and Consul do.
// While none listens, connections to it are refused.
//
// This is how Linux treats sockets that are bound but do not listen: inet_csk_bind_conflict
// and __inet_hash_connect in its net/ipv4.
type Port struct {
	Number int

	socket int
	once   sync.Once
}

// Reserve returns a port that stays reserved until Release is called or this process ends.
func Reserve() (*Port, error) {
	// No process that is started meanwhile may inherit the socket.
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserve a port: open a socket: %w", err)
	}
	number, err := bind(socket)
	if err != nil {
		_ = syscall.Close(socket)
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return &Port{Number: number, socket: socket}, nil
}

// bind binds the socket to a port that the kernel chooses.
func bind(socket int) (int, error) {
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		return 0, fmt.Errorf("read the bound address: %w", err)
	}
	return name.(*syscall.SockaddrInet4).Port, nil
}

// Address returns the port as host:port.
func (p *Port) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number)) }

// Release gives the port back. Releasing it again does nothing.
func (p *Port) Release() { p.once.Do(func() { _ = syscall.Close(p.socket) }) }

// For reserves a port until the test ends.
func For(t testing.TB) *Port {
	t.Helper()
	p, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	return p
}
