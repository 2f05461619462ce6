package electiontest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Link is a TCP relay between one proxy and its lease service, which can fail
// as networks do. Single requests are named by a text that they hold.
type Link struct {
	target   string
	listener net.Listener
	ended    chan struct{} // closed when the test ends
	wg       sync.WaitGroup

	mu struct {
		sync.Mutex
		conns   map[net.Conn]struct{}
		trap    *trap         // for the next request that holds a text
		stalled chan struct{} // not nil: nothing passes until it is closed
		cut     bool          // no connection is made
	}
}

// trap is what happens to one request.
type trap struct {
	text     []byte
	lose     bool          // its answer is lost; else it is held back
	sprung   chan struct{} // closed when the answer was lost, or the request is held
	forward  chan struct{} // closed when a held request may go on
	answered chan struct{} // closed when the service has answered a held request
}

// Held is a request that was sent and has not arrived.
type Held struct {
	t    *testing.T
	trap *trap
}

// NewLink returns a link to the address, which ends with the test.
func NewLink(t *testing.T, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{target: target, listener: listener, ended: make(chan struct{})}
	l.mu.conns = map[net.Conn]struct{}{}
	l.wg.Add(1)
	go l.accept()
	t.Cleanup(func() {
		close(l.ended)
		l.Resume()
		_ = listener.Close()
		l.hangUp()
		l.wg.Wait()
	})
	return l
}

// Addr is where to connect.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Lose makes the answer to the next request that holds the text get lost, and
// the connection with it. The channel is closed when that has happened.
func (l *Link) Lose(request string) <-chan struct{} {
	return l.set(&trap{text: []byte(request), lose: true}).sprung
}

// Hold makes the next request that holds the text arrive late: not before
// Forward is called, even if whoever sent it has given up.
func (l *Link) Hold(t *testing.T, request string) *Held {
	return &Held{t: t, trap: l.set(&trap{text: []byte(request)})}
}

func (l *Link) set(tr *trap) *trap {
	tr.sprung, tr.forward, tr.answered = make(chan struct{}), make(chan struct{}), make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.trap = tr
	return tr
}

// Await waits until the request was sent.
func (h *Held) Await() {
	h.t.Helper()
	await(h.t, "the request was sent", h.trap.sprung)
}

// Forward lets the request arrive, and returns when the service has answered it.
func (h *Held) Forward() {
	h.t.Helper()
	close(h.trap.forward)
	await(h.t, "the service answered the late request", h.trap.answered)
}

// Stall makes nothing pass, though connections stay open, until Resume.
func (l *Link) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stalled == nil {
		l.mu.stalled = make(chan struct{})
	}
}

// Resume ends a Stall. What was sent meanwhile arrives.
func (l *Link) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stalled != nil {
		close(l.mu.stalled)
		l.mu.stalled = nil
	}
}

// Cut ends all connections, and lets none be made until Mend: the proxy has died
// as far as the service can see.
func (l *Link) Cut() {
	l.mu.Lock()
	l.mu.cut = true
	l.mu.Unlock()
	l.hangUp()
}

// Mend lets connections be made again after a Cut.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cut = false
}

func (l *Link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.conns {
		_ = c.Close()
	}
	clear(l.mu.conns)
	l.mu.cut = true
}

func (l *Link) accept() {
	defer l.wg.Done()
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		if !l.keep(near, far) {
			_, _ = near.Close(), far.Close()
			continue
		}
		p := &pipe{link: l, near: near, far: far}
		l.wg.Add(2)
		go p.requests()
		go p.answers()
	}
}

func (l *Link) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		l.mu.conns[c] = struct{}{}
	}
	return !l.mu.cut
}

// pass waits while the link is stalled.
func (l *Link) pass() {
	l.mu.Lock()
	stalled := l.mu.stalled
	l.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
}

// spring takes the trap that is set for one of these bytes. seen is what the
// connection sent since the trap was set, as far as a text can reach back.
func (l *Link) spring(seen *window, chunk []byte) *trap {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.trap != seen.since {
		*seen = window{since: l.mu.trap}
	}
	if l.mu.trap == nil {
		return nil
	}
	seen.bytes = append(seen.bytes[max(0, len(seen.bytes)-1024):], chunk...)
	if !bytes.Contains(seen.bytes, l.mu.trap.text) {
		return nil
	}
	sprung := l.mu.trap
	l.mu.trap = nil
	return sprung
}

// window is the end of what was sent since a trap was set: a text may come in
// pieces.
type window struct {
	since *trap
	bytes []byte
}

// pipe is one connection through a link. Clients send one request at a time, so
// what the service says after a request is its answer.
type pipe struct {
	link      *Link
	near, far net.Conn
	sprung    atomic.Pointer[trap] // for the next answer
}

// requests copies what the client says.
func (p *pipe) requests() {
	defer p.link.wg.Done()
	defer p.far.Close()
	defer p.near.Close()
	buf := make([]byte, 64<<10)
	var seen window
	var late *trap
	for {
		n, err := p.near.Read(buf)
		if n > 0 {
			p.link.pass()
			if tr := p.link.spring(&seen, buf[:n]); tr != nil {
				if !tr.lose {
					close(tr.sprung)
					late = tr
				}
				if !tr.lose && !p.wait(tr.forward) {
					return
				}
				p.sprung.Store(tr)
			}
			if _, err := p.far.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if late != nil { // the service learns that the client is gone after it has answered
				p.wait(late.answered)
			}
			return
		}
	}
}

// wait reports false if the link ended first.
func (p *pipe) wait(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-p.link.ended:
		return false
	}
}

// answers copies what the service says.
func (p *pipe) answers() {
	defer p.link.wg.Done()
	defer p.far.Close()
	defer p.near.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := p.far.Read(buf)
		if n > 0 {
			p.link.pass()
			if tr := p.sprung.Swap(nil); tr != nil {
				close(tr.answered)
				if tr.lose {
					close(tr.sprung)
					return
				}
			}
			if _, err := p.near.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
