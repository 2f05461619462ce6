package raft

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/raft/disk"
)

const (
	// handshakeTimeout bounds the TLS handshake of an accepted connection.
	handshakeTimeout = 5 * time.Second
	// mostGreetings is how many connections may be in their handshakes. The oldest one makes room for a new
	// one: whoever has a certificate needs milliseconds, and the descriptors are those of the whole proxy.
	mostGreetings = 256
)

// port is the one port of a node. It gives each connection to the listener of its protocol.
type port struct {
	listener net.Listener
	security *security
	id       disk.Identity
	log      *zap.Logger
	raft     *half
	requests *half
	ctx      context.Context // ends with close
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	// cut: what Raft sends and answers goes nowhere, because this node cannot do its part.
	cut atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]struct{} // that were accepted and not closed
	// greeted are those of them that are in their handshakes, oldest first.
	greeted []net.Conn
	using   sync.WaitGroup // those who use them
}

// half is a listener for the connections of one protocol.
type half struct {
	port  *port
	conns chan net.Conn
	over  chan struct{} // closed by Close
	once  sync.Once
}

// tracked is a connection of Raft's, which goes nowhere while its port is cut. One that was accepted is
// closed with its port.
type tracked struct {
	*tls.Conn
	port *port
}

func listen(address string, s *security, id disk.Identity, log *zap.Logger) (*port, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for other nodes: %w", err)
	}
	p := &port{listener: listener, security: s, id: id, log: log, conns: map[net.Conn]struct{}{}}
	p.raft = &half{port: p, conns: make(chan net.Conn), over: make(chan struct{})}
	p.requests = &half{port: p, conns: make(chan net.Conn), over: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p, nil
}

// close closes the port and all its connections, and waits for those who use them.
func (p *port) close() error {
	p.cancel()
	err := p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	left := make(chan struct{})
	go func() {
		p.using.Wait()
		close(left)
	}()
	select {
	case <-left:
	case <-time.After(closeTimeout):
		p.log.Debug("a connection of another node is still in use")
	}
	return err
}

func (p *port) accept() {
	var said time.Time // when a failure was logged
	for p.ctx.Err() == nil {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, for example
			if time.Since(said) > repeatAfter {
				said = time.Now()
				p.log.Warn("cannot accept a connection of another node", zap.Error(err))
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-p.ctx.Done():
			}
			continue
		}
		p.mu.Lock()
		p.conns[conn] = struct{}{}
		p.using.Add(1)
		if len(p.greeted) == mostGreetings {
			_ = p.greeted[0].Close() // its handshake fails
			p.greeted = slices.Delete(p.greeted, 0, 1)
		}
		p.greeted = append(p.greeted, conn)
		p.mu.Unlock()
		p.wg.Go(func() { p.greet(conn) })
	}
}

// greet does the TLS handshake, and hands the connection over.
func (p *port) greet(raw net.Conn) {
	ctx, cancel := context.WithTimeout(p.ctx, handshakeTimeout)
	defer cancel()
	protocol := raftProtocol(p.id.Cluster, p.id.Disk)
	conn := &tracked{tls.Server(raw, p.security.server(requestProtocol, protocol)), p}
	err := conn.HandshakeContext(ctx)
	p.mu.Lock()
	p.greeted = slices.DeleteFunc(p.greeted, func(c net.Conn) bool { return c == raw })
	p.mu.Unlock()
	if err != nil {
		p.log.Debug("a connection was refused", zap.Stringer("client", raw.RemoteAddr()), zap.Error(err))
		_ = conn.Close()
		return
	}
	to, as := p.requests, net.Conn(conn.Conn) // package net/http looks for a *tls.Conn
	switch conn.ConnectionState().NegotiatedProtocol {
	case protocol:
		to, as = p.raft, conn
	case requestProtocol:
	default:
		_ = conn.Close()
		return
	}
	select {
	case to.conns <- as:
	case <-to.over:
		_ = conn.Close()
	case <-p.ctx.Done():
		_ = conn.Close()
	}
}

// Close implements net.Conn.
func (c *tracked) Close() error {
	c.port.forget(c.NetConn())
	return c.Conn.Close()
}

// Write implements net.Conn. Whoever uses the connection closes it after an error.
func (c *tracked) Write(p []byte) (int, error) {
	if c.port.cut.Load() {
		return 0, errCut
	}
	return c.Conn.Write(p)
}

// errCut ends the connections of a node that cannot do its part.
var errCut = errors.New("this node cannot write its directory")

// forget is called when a connection has ended.
func (p *port) forget(raw net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, open := p.conns[raw]; open {
		delete(p.conns, raw)
		p.using.Done()
	}
}

// Accept implements net.Listener.
func (h *half) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.over:
		return nil, net.ErrClosed
	case <-h.port.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The port itself is closed by its node.
func (h *half) Close() error {
	h.once.Do(func() { close(h.over) })
	return nil
}

// Addr implements net.Listener.
func (h *half) Addr() net.Addr { return h.port.listener.Addr() }

// Dial implements raft.StreamLayer.
func (h *half) Dial(address hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(h.port.ctx, timeout)
	defer cancel()
	disk, to, err := dialed(address)
	if err != nil {
		return nil, err
	}
	conn, err := h.port.security.dial(ctx, to, raftProtocol(h.port.id.Cluster, disk))
	if err != nil {
		return nil, err
	}
	return &tracked{conn, h.port}, nil
}
