package electiontest

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
)

// Link is a TCP relay between one proxy and its lease service, which can fail
// as networks do.
type Link struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu struct {
		sync.Mutex
		conns   map[net.Conn]struct{}
		lose    []byte        // the answer that holds this is lost
		lost    chan struct{} // closed when it was
		stalled chan struct{} // not nil: nothing passes until it is closed
		cut     bool          // nothing passes for ever
	}
}

// NewLink returns a link to the address, which ends with the test.
func NewLink(t *testing.T, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{target: target, listener: listener}
	l.mu.conns = map[net.Conn]struct{}{}
	l.wg.Add(1)
	go l.accept()
	t.Cleanup(func() {
		l.Resume()
		_ = listener.Close()
		l.hangUp()
		l.wg.Wait()
	})
	return l
}

// Addr is where to connect.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Lose makes the next answer that holds the text get lost, and the connection
// with it. The channel is closed when that has happened.
func (l *Link) Lose(text string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.lose, l.mu.lost = []byte(text), make(chan struct{})
	return l.mu.lost
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

// Cut ends all connections, and lets none be made: the proxy has died as far as
// the service can see.
func (l *Link) Cut() {
	l.mu.Lock()
	l.mu.cut = true
	l.mu.Unlock()
	l.hangUp()
}

func (l *Link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.mu.conns {
		_ = c.Close()
	}
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
		l.wg.Add(2)
		go l.relay(far, near, false)
		go l.relay(near, far, true)
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

// relay copies until either side ends.
func (l *Link) relay(to, from net.Conn, answers bool) {
	defer l.wg.Done()
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	var seen []byte // the end of what passed: an answer may come in pieces
	for {
		n, err := from.Read(buf)
		if n > 0 {
			seen = append(seen[max(0, len(seen)-1024):], buf[:n]...)
			if l.pass(); answers && l.loses(seen) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err == io.EOF || err != nil {
			return
		}
	}
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

func (l *Link) loses(answer []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.lose == nil || !bytes.Contains(answer, l.mu.lose) {
		return false
	}
	l.mu.lose = nil
	close(l.mu.lost)
	return true
}
