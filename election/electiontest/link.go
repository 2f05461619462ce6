package electiontest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a TCP relay between one proxy and its lease service that can fail like a
// network. Single requests are identified by a text that they contain.
type Link struct {
	target   string
	listener net.Listener
	ended    chan struct{} // closed when the test ends
	wg       sync.WaitGroup

	mu struct {
		sync.Mutex
		conns   map[net.Conn]struct{}
		trap    *trap         // for the next request that contains a text
		stalled chan struct{} // not nil while nothing passes; closed by Resume
		cut     bool          // no connection can be made
		made    int           // connections so far
	}
}

// trap is what happens to one request.
type trap struct {
	text     []byte
	lose     bool          // its response is lost
	mute     bool          // it arrives, and nothing passes any more that the service sends
	sender   net.Conn      // of a held or mute request
	sprung   chan struct{} // closed when the response was lost or the request is held
	forward  chan struct{} // closed when a held request may continue
	answered chan struct{} // closed when the service has answered a held request
	hungUp   chan struct{} // closed when the service has closed the connection of a held request
}

// Held is a request that was sent but has not arrived, or whose response does not.
type Held struct {
	t    *testing.T
	link *Link
	trap *trap
}

// NewLink returns a link to the address. It is closed when the test ends.
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

// Addr returns the link's own address.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Made returns how many connections were made through the link so far.
func (l *Link) Made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.made
}

// Lose drops the response to the next request that contains the text, and closes the
// connection. The channel is closed when that has happened.
func (l *Link) Lose(request string) <-chan struct{} {
	return l.set(&trap{text: []byte(request), lose: true}).sprung
}

// Hold delays the next request that contains the text: it does not arrive before
// Forward is called, even if the sender has given up.
func (l *Link) Hold(t *testing.T, request string) *Held {
	return &Held{t: t, link: l, trap: l.set(&trap{text: []byte(request)})}
}

// Mute lets the next request that contains the text arrive, and drops all that the service sends on
// its connection from then on. Sever ends that.
func (l *Link) Mute(t *testing.T, request string) *Held {
	return &Held{t: t, link: l, trap: l.set(&trap{text: []byte(request), mute: true})}
}

func (l *Link) set(tr *trap) *trap {
	tr.sprung, tr.forward, tr.answered, tr.hungUp = make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.trap = tr
	return tr
}

// Await waits until the request has been sent.
func (h *Held) Await() {
	h.t.Helper()
	await(h.t, "the request was sent", h.trap.sprung)
}

// Sever closes the sender's end of the connection. Its other requests, if they share the
// connection, get through over another one, and the held one is still under way.
func (h *Held) Sever() {
	h.link.mu.Lock()
	defer h.link.mu.Unlock()
	_ = h.trap.sender.Close()
}

// Forward lets the request arrive, and returns when the service has answered it.
func (h *Held) Forward() {
	h.t.Helper()
	close(h.trap.forward)
	await(h.t, "the service answered the late request", h.trap.answered)
}

// Submit lets the request arrive, and returns when the service has answered it, or has closed its
// connection.
func (h *Held) Submit() {
	h.t.Helper()
	close(h.trap.forward)
	select {
	case <-h.trap.hungUp:
	case <-h.trap.answered:
	case <-time.After(patience):
		h.t.Fatal("the service neither answered the late request nor closed its connection")
	}
}

// Discard returns when the service has closed the connection of the request, which therefore never
// arrives.
func (h *Held) Discard() {
	h.t.Helper()
	await(h.t, "the service closed the connection of the late request", h.trap.hungUp)
	close(h.trap.forward)
}

// Stall stops all traffic until Resume. Connections stay open.
func (l *Link) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stalled == nil {
		l.mu.stalled = make(chan struct{})
	}
}

// Resume ends a Stall. What was sent in the meantime arrives.
func (l *Link) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stalled != nil {
		close(l.mu.stalled)
		l.mu.stalled = nil
	}
}

// Cut closes all connections and accepts none until Mend. To the service it looks as if
// the proxy had died.
func (l *Link) Cut() {
	l.mu.Lock()
	l.mu.cut = true
	l.mu.Unlock()
	l.hangUp()
}

// Refuse accepts no new connections until Mend. Those that there are stay open.
func (l *Link) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cut = true
}

// Mend accepts connections again after a Cut or Refuse.
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
	l.mu.made++
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

// spring returns the trap if these bytes complete its text. seen is what the connection
// sent recently, since the text may arrive in pieces.
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
