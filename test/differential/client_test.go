package differential

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/wiretest"
)

const (
	// patience is how long a peer may take for what it must do.
	patience = 60 * time.Second
	// glance is how long a wait lasts before it tests whether the server is waiting
	// too, and the interval of further tests.
	glance = 2 * time.Millisecond
)

// transcript is what the client received.
type transcript struct {
	startup []wiretest.Message // up to the first ReadyForQuery
	all     []wiretest.Message
	// others are the notifications of other sessions. Their position among the server's
	// messages depends on timing.
	others []wiretest.Message
	seen   []seen // at the end of each wait
	// end says how the connection ended: "" if normally.
	end string
	// stuck describes the peers if the connection did not end.
	stuck string
}

// seen is how many messages had arrived.
type seen struct {
	marks    int // ReadyForQuery and CopyInResponse messages
	all      int
	canceled bool
	closed   bool
}

// client runs one script on one connection. Its reader reads bytes from the socket and
// decodes them into messages while it holds mu, so whoever holds mu knows that
// everything that was read has been decoded.
type client struct {
	to   target
	conn net.Conn
	raw  syscall.RawConn

	mu     sync.Mutex
	buf    []byte // read but not yet decoded
	all    []wiretest.Message
	others []wiretest.Message
	told   int // number of messages in which Fencepost announces something
	readys int // ReadyForQuery messages
	marks  int // ReadyForQuery and CopyInResponse messages
	closed bool
	end    string
	more   chan struct{} // cap 1; signalled when something was read
	done   chan struct{} // closed when the reader has ended

	pid  uint32 // the server's process
	key  []byte // the cancel key
	asks int    // messages sent that may get a ReadyForQuery, minus those known not to
	odd  bool   // messages with unknown replies were sent
	seen []seen
}

// target is where a script is run.
type target struct {
	network, address string
	params           []string
	// asleep reports whether the server's process waits for its client; a wait ends
	// when it does. like is how many messages had arrived at the end of each wait on
	// Postgres; a wait ends when as many have arrived. Without either, waits end after
	// a grace period.
	asleep func(pid uint32) bool
	// sleeps reports whether the process is sleeping because of a statement.
	sleeps func(pid uint32) bool
	// beside runs SQL as an administrator.
	beside func(sql string) error
	like   []seen
	// before, if not nil, is called before the step with that index.
	before func(i int)
	// witness describes the server's side of a connection that does not end.
	witness func() string
}

// run connects, sends s, and reads to the end.
func run(to target, s script) (transcript, error) {
	p, startup, err := connect(to)
	if err != nil {
		return transcript{}, err
	}
	t, err := p.run(s)
	p.close()
	t.startup, t.all, t.others, t.end = startup, p.all, p.others, p.end
	return t, err
}

// connect starts a session. startup is what came up to its first ReadyForQuery.
func connect(to target) (p *client, startup []wiretest.Message, err error) {
	conn, err := net.DialTimeout(to.network, to.address, patience)
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(10 * patience))
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("get the socket: %w", err)
	}
	p = &client{
		to: to, conn: conn, raw: raw,
		more: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go p.read()
	if startup, err = p.start(); err != nil {
		p.close()
	}
	return p, startup, err
}

// close ends the connection, and waits for its reader.
func (p *client) close() {
	_ = p.conn.Close()
	<-p.done
}

func (p *client) start() (startup []wiretest.Message, err error) {
	if _, err := p.conn.Write(wiretest.Startup(p.to.params...)); err != nil {
		return nil, fmt.Errorf("send the startup: %w", err)
	}
	p.await(patience, func() bool { return p.closed || p.marks > 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	startup, p.all = p.all, nil
	for _, m := range startup {
		if m.Type == 'K' && len(m.Body) >= 8 {
			p.pid, p.key = binary.BigEndian.Uint32(m.Body), m.Body
		}
	}
	if p.marks != 1 {
		return startup, fmt.Errorf("the startup failed: %v", startup)
	}
	p.marks, p.readys, p.told = 0, 0, 0
	return startup, nil
}

// await waits until cond, which is called under mu, is true.
func (p *client) await(limit time.Duration, cond func() bool) bool {
	holds := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return cond()
	}
	if holds() || limit == 0 {
		return holds()
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		select {
		case <-p.more:
			if holds() {
				return true
			}
		case <-timeout.C:
			return holds()
		}
	}
}

// send writes b in several pieces or in one. A peer that accepts no more has ended.
func (p *client) send(b []byte, cut bool, r *rand.Rand) {
	for len(b) > 0 {
		n := len(b)
		if cut && r.IntN(4) > 0 {
			n = 1 + r.IntN(min(n, 1<<r.IntN(12)))
		}
		if _, err := p.conn.Write(b[:n]); err != nil {
			return
		}
		b = b[n:]
		if cut && r.IntN(8) == 0 {
			time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
		}
	}
}

// read reads until the peer closes the connection.
func (p *client) read() {
	defer close(p.done)
	chunk := make([]byte, 16<<10)
	for ended := false; !ended; {
		err := p.raw.Read(func(fd uintptr) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			n, err := unix.Read(int(fd), chunk)
			switch {
			case err == unix.EAGAIN:
				return false
			case err == unix.EINTR:
				return true
			case err == nil && n == 0:
				err = io.EOF
			}
			p.take(chunk[:max(n, 0)], err)
			ended = p.closed
			return true
		})
		if err != nil { // a deadline, or the connection was closed
			p.mu.Lock()
			p.take(nil, err)
			p.mu.Unlock()
			ended = true
		}
		select {
		case p.more <- struct{}{}:
		default:
		}
	}
}

// take decodes what was read into messages. mu is held.
func (p *client) take(b []byte, err error) {
	if p.closed {
		return
	}
	p.buf = append(p.buf, b...)
	for {
		m, n, bad := readMessage(p.buf)
		if bad {
			p.closed, p.end = true, "no message of the protocol"
			return
		}
		if n == 0 {
			break
		}
		p.buf = p.buf[n:]
		if m.Type == 'A' && binary.BigEndian.Uint32(m.Body) != p.pid {
			p.others = append(p.others, m)
			continue
		}
		p.all = append(p.all, m)
		switch {
		case m.Type == 'Z':
			p.readys++
			p.marks++
		case m.Type == 'G':
			p.marks++
		case tells(m):
			p.told++
		}
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, io.EOF) && len(p.buf) == 0:
	default:
		p.end = "broken off" // by a reset, or within a message
	}
	p.closed = true
}

// readMessage decodes one message at the start of b; n is its length, 0 while it is
// incomplete.
func readMessage(b []byte) (m wiretest.Message, n int, bad bool) {
	const head = 5
	if len(b) < head {
		return m, 0, false
	}
	size := binary.BigEndian.Uint32(b[1:])
	if size < 4 || size > 1<<26 {
		return m, 0, true
	}
	n = int(size) + 1
	if len(b) < n {
		return m, 0, false
	}
	return wiretest.Message{Type: b[0], Body: b[head:n:n]}, n, false
}
