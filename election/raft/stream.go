package raft

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/fencepost/fencepost/election/raft/disk"
)

// stream has the connections of Raft itself. They come in over the port of the requests, whose server gives away
// those that speak Raft's protocol.
type stream struct {
	security *security
	id       disk.Identity
	address  net.Addr
	conns    chan net.Conn
	ctx      context.Context // ends with the node
}

var _ hraft.StreamLayer = (*stream)(nil)

// given is a connection that the server has given away, until it is closed.
type given struct {
	*tls.Conn
	once   sync.Once
	closed chan struct{}
}

// Close implements net.Conn.
func (g *given) Close() error {
	g.once.Do(func() { close(g.closed) })
	return g.Conn.Close()
}

// take takes a connection from the server, which closes it when take returns.
func (s *stream) take(_ *http.Server, conn *tls.Conn, _ http.Handler) {
	g := &given{Conn: conn, closed: make(chan struct{})}
	select {
	case s.conns <- g:
	case <-s.ctx.Done():
		return
	}
	select {
	case <-g.closed:
	case <-s.ctx.Done():
	}
}

// Accept implements net.Listener.
func (s *stream) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The server closes the port.
func (s *stream) Close() error { return nil }

// Addr implements net.Listener.
func (s *stream) Addr() net.Addr { return s.address }

// Dial implements raft.StreamLayer.
func (s *stream) Dial(address hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	disk, to, err := dialed(address)
	if err != nil {
		return nil, err
	}
	conn, err := s.security.dial(ctx, to, raftProtocol(s.id.Cluster, disk))
	if err != nil {
		return nil, err
	}
	return conn, nil
}
