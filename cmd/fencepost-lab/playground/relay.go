package playground

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// relay is the network between a worker and its proxy. While it is cut, bytes and the ends of
// connections wait in it, as in a network that loses packets and sends them again when it heals.
type relay struct {
	to string
	ln net.Listener
	wg sync.WaitGroup

	mu struct {
		sync.Mutex
		whole  chan struct{} // closed while it is not cut
		cut    bool
		closed bool
		conns  map[net.Conn]struct{}
	}
	done chan struct{}
}

// newRelay listens on the loopback interface, and passes connections on to an address. Its owner calls
// close.
func newRelay(to string) (*relay, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for a worker: %w", err)
	}
	r := &relay{to: to, ln: ln, done: make(chan struct{})}
	r.mu.whole, r.mu.conns = make(chan struct{}), map[net.Conn]struct{}{}
	close(r.mu.whole)
	r.wg.Go(r.accept)
	return r, nil
}

func (r *relay) address() string { return r.ln.Addr().String() }

// set cuts the network, or heals it.
func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case cut == r.mu.cut:
	case cut:
		r.mu.whole = make(chan struct{})
	default:
		close(r.mu.whole)
	}
	r.mu.cut = cut
}

// close ends all connections, and waits.
func (r *relay) close() {
	close(r.done)
	_ = r.ln.Close()
	r.mu.Lock()
	r.mu.closed = true
	for c := range r.mu.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *relay) accept() {
	for {
		c, err := r.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			r.wg.Go(func() { r.serve(c) })
		}
	}
}

// serve relays one connection of a worker.
func (r *relay) serve(worker net.Conn) {
	if !r.keep(worker) {
		return
	}
	defer r.drop(worker)
	if !r.awaitWhole() {
		return
	}
	proxy, err := net.Dial("tcp", r.to)
	if err != nil || !r.keep(proxy) {
		return
	}
	defer r.drop(proxy)
	var back sync.WaitGroup
	back.Go(func() { r.pass(worker, proxy) })
	r.pass(proxy, worker)
	back.Wait()
}

// pass copies one direction until its source ends, and then ends the other side.
func (r *relay) pass(to, from net.Conn) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if !r.awaitWhole() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				_ = from.Close()
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if half, ok := to.(*net.TCPConn); ok {
				_ = half.CloseWrite() // it may be closed already
			}
			return
		default: // a reset
			_ = to.Close()
			return
		}
	}
}

// awaitWhole waits while the network is cut. It returns false if the relay is closed.
func (r *relay) awaitWhole() bool {
	r.mu.Lock()
	whole := r.mu.whole
	r.mu.Unlock()
	select {
	case <-whole:
		return true
	case <-r.done:
		return false
	}
}

// keep notes a connection, so that close ends it. It closes the connection if the relay is closed.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		_ = c.Close()
		return false
	}
	r.mu.conns[c] = struct{}{}
	return true
}

func (r *relay) drop(c net.Conn) {
	_ = c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.conns, c)
}
