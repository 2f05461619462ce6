package differential

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/wiretest"
)

const (
	// patience is how long a peer may take for what it must do.
	patience = 20 * time.Second
	// glance is how long a wait goes on before it is asked whether the server
	// waits too; then it is asked again and again, after that long.
	glance = 2 * time.Millisecond
)

// transcript is what came back.
type transcript struct {
	startup []wiretest.Message // up to the first ReadyForQuery
	all     []wiretest.Message
	// others are the notifications of other sessions. Which message of the server they
	// stand behind is a matter of time.
	others []wiretest.Message
	seen   []seen // at the end of each wait
	// end says how the connection ended: "" in order.
	end string
	// unasked: the client ended without having asked for the last answers.
	unasked bool
	// keepsText: PREPARE or DECLARE stood among several statements of a text.
	keepsText bool
	// stuck is what was seen of the peers if it did not end at all.
	stuck string
}

// seen is how many messages had come.
type seen struct {
	marks    int // of ReadyForQuery and CopyInResponse
	all      int
	canceled bool
	closed   bool
}

// player plays one script on one connection. Its reader takes bytes of the
// socket and makes messages of them in one go under mu: whoever has mu knows that
// all that was read was understood.
type player struct {
	to   target
	conn net.Conn
	raw  syscall.RawConn

	mu     sync.Mutex
	buf    []byte // read, and not yet a message
	all    []wiretest.Message
	others []wiretest.Message
	told   int // of all, those in which Fencepost tells of itself
	readys int // of ReadyForQuery
	marks  int // and of CopyInResponse
	closed bool
	end    string
	more   chan struct{} // told, with room for one, when something was read
	done   chan struct{} // closed when the reader has ended

	pid  uint32 // of the server's process
	key  []byte // to cancel by
	asks int    // messages sent that ReadyForQuery may answer, less those known not to be
	odd  bool   // messages were sent of which nobody knows
	seen []seen
}

// target is where a script is played.
type target struct {
	network, address string
	params           []string
	// asleep reports whether the server's process waits for its client: a wait ends
	// when it does. like is what had come at the end of each wait on Postgres: a wait
	// ends when as much has. Without either, waits end after a grace.
	asleep func(pid uint32) bool
	// sleeps reports whether it sleeps because a statement says so.
	sleeps func(pid uint32) bool
	// beside runs SQL as an administrator.
	beside func(sql string) error
	like   []seen
	// before is called in front of the step of that index, if it is not nil.
	before func(i int)
	// witness describes the server's side of a connection that does not end.
	witness func() string
}

// play connects, plays s, and reads to the end.
func play(to target, s script) (transcript, error) {
	conn, err := net.DialTimeout(to.network, to.address, patience)
	if err != nil {
		return transcript{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(10 * patience))
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return transcript{}, fmt.Errorf("reach the socket: %w", err)
	}
	p := &player{
		to: to, conn: conn, raw: raw,
		more: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go p.read()
	t, err := p.play(s)
	_ = conn.Close()
	<-p.done
	t.all, t.others, t.end = p.all, p.others, p.end
	return t, err
}

func (p *player) play(s script) (t transcript, err error) {
	if _, err := p.conn.Write(wiretest.Startup(p.to.params...)); err != nil {
		return t, fmt.Errorf("send the startup: %w", err)
	}
	p.await(patience, func() bool { return p.closed || p.marks > 0 })
	p.mu.Lock()
	t.startup, p.all = p.all, nil
	for _, m := range t.startup {
		if m.Type == 'K' && len(m.Body) >= 8 {
			p.pid, p.key = binary.BigEndian.Uint32(m.Body), m.Body
		}
	}
	started := p.marks == 1
	p.marks, p.readys, p.told = 0, 0, 0
	p.mu.Unlock()
	if !started {
		return t, fmt.Errorf("no start: %v", t.startup)
	}
	ok, err := p.steps(s)
	if err != nil {
		return t, err
	}
	if !ok || !p.await(patience, func() bool { return p.closed }) {
		t.stuck = p.to.witness()
		p.mu.Lock()
		p.closed, p.end = true, "nothing more came, and no end"
		p.mu.Unlock()
	}
	t.seen, t.unasked, t.keepsText = p.seen, unasked(s), keepsText(s)
	return t, nil
}

// steps sends what s says. It reports false if an answer did not come that Postgres
// gave.
func (p *player) steps(s script) (ok bool, err error) {
	var out []byte
	half := 0
	cut := rand.New(rand.NewPCG(s.cut, 1))
	flush := func() {
		p.send(out, s.cut != 0, cut)
		out = nil
	}
	for i, st := range s.steps {
		if p.to.before != nil {
			p.to.before(i)
		}
		switch st.name {
		case "wait":
			flush()
			if !p.wait(st.text(0) == "answer") {
				return false, nil
			}
		case "Hangup":
			flush()
			p.hangUp()
		case "Half":
			half = int(number(st.text(0)))
		case "Cancel":
			flush()
			if st.text(0) == "now" {
				err = p.sendCancel()
			} else {
				err = p.cancel()
			}
			if err != nil {
				return false, err
			}
		case "Beside":
			flush()
			if err := p.to.beside(st.text(0)); err != nil {
				return false, err
			}
		default:
			b := st.bytes()
			if half > 0 && len(b) > 1 {
				n := min(half, len(b)-1)
				out, b, half = append(out, b[:n]...), b[n:], 0
				flush()
				if !p.wait(false) {
					return false, nil
				}
			}
			out = append(out, b...)
			p.count(st.name)
		}
	}
	flush()
	p.hangUp()
	return true, nil
}

// cancel cancels the statement in which the server sleeps. It does nothing where the
// server did not come to sleep on Postgres, or cannot any more.
func (p *player) cancel() error {
	canceled := false
	defer func() {
		p.mu.Lock()
		p.seen = append(p.seen, seen{p.marks, len(p.all) - p.told, canceled, p.closed})
		p.mu.Unlock()
	}()
	if n := len(p.seen); p.to.like != nil && (n >= len(p.to.like) || !p.to.like[n].canceled) {
		return nil
	}
	const still = 50 // glances in which the server waits for its client
	for waited, until := 0, time.Now().Add(patience); waited < still && time.Now().Before(until); {
		switch {
		case p.await(glance, func() bool { return p.closed }):
			return nil
		case p.to.sleeps(p.pid):
			canceled = true
			return p.sendCancel()
		case p.to.asleep(p.pid):
			waited++
		}
	}
	return nil
}

// sendCancel asks for the end of what the server does, and waits until it was told.
func (p *player) sendCancel() error {
	conn, err := net.DialTimeout(p.to.network, p.to.address, patience)
	if err != nil {
		return fmt.Errorf("connect to cancel: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	const code = 80877102
	request := binary.BigEndian.AppendUint32(nil, uint32(8+len(p.key)))
	request = append(binary.BigEndian.AppendUint32(request, code), p.key...)
	if _, err := conn.Write(request); err != nil {
		return fmt.Errorf("send the cancel: %w", err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("wait for the cancel: %w", err)
	}
	return nil
}

// unasked reports whether a script ends with messages that Postgres answers into
// its buffer.
func unasked(s script) bool {
	for _, st := range slices.Backward(s.steps) {
		switch st.name {
		case "wait", "Terminate", "Hangup", "Half", "Cancel", "Beside":
		case "Parse", "Bind", "Describe", "Execute", "Close":
			return true
		default:
			return false
		}
	}
	return false
}

func keepsText(s script) bool {
	return slices.ContainsFunc(s.steps, func(st step) bool {
		text := strings.ToLower(st.text(0))
		return st.name == "Query" && strings.Contains(text, ";") && (strings.Contains(text, "prepare") || strings.Contains(text, "declare"))
	})
}

// count follows how many ReadyForQuery may come.
func (p *player) count(name string) {
	switch name {
	case "Sync", "Query", "FunctionCall":
		p.asks++
	default:
		p.odd = true
	}
	if name == "Sync" { // what came before it is answered in front of it
		p.odd = false
	}
}

// hangUp ends what the client says.
func (p *player) hangUp() { _ = p.conn.(interface{ CloseWrite() error }).CloseWrite() }

// grace is how long a message may take that Postgres sent and that need not come:
// what differs by design may make it fewer.
const grace = 100 * time.Millisecond

// wait waits until the server waits, or, if any message will do, until one has
// come. Through Fencepost it waits for as much as Postgres said, and reports false
// if that did not come.
func (p *player) wait(any bool) (ok bool) {
	if p.to.like == nil {
		p.waitForServer(any)
		ok = true
	} else if n := len(p.seen); n < len(p.to.like) {
		l := p.to.like[n]
		ok = p.waitForAsMuch(func() bool { return p.closed || p.marks >= l.marks && !l.closed })
		p.await(grace, func() bool { return p.closed || len(p.all)-p.told >= l.all })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, seen{p.marks, len(p.all) - p.told, false, p.closed})
	return ok
}

// waitForAsMuch waits until enough, and gives up when the server has waited for its
// client for a while, and nothing came.
func (p *player) waitForAsMuch(enough func() bool) bool {
	const still = 4 // glances, of a tenth of the patience in all
	came, waited := -1, 0
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if p.await(patience/40, enough) {
			return true
		}
		p.mu.Lock()
		all := len(p.all)
		p.mu.Unlock()
		if waited++; all != came || !p.to.asleep(p.pid) {
			came, waited = all, 0
		}
		if waited == still {
			return false
		}
	}
	return false
}

func (p *player) waitForServer(any bool) {
	p.mu.Lock()
	before := len(p.all)
	p.mu.Unlock()
	enough := func() bool { return p.closed || any && len(p.all) > before || !p.odd && p.readys == p.asks }
	if p.to.asleep == nil {
		p.await(grace, enough)
		return
	}
	for until := time.Now().Add(patience); time.Now().Before(until) && !p.await(glance, enough); {
		if p.quiet() {
			p.asks, p.odd = p.readys, false
			return
		}
	}
}

// quiet reports that the server has read all that was sent and waits for more,
// and that all it has sent was read: no answer will come. It holds for unix
// sockets, which tell what their peer has not read.
func (p *player) quiet() bool {
	if n, err := p.queued(unix.SIOCOUTQ); n > 0 || err != nil || !p.to.asleep(p.pid) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.queued(unix.SIOCINQ)
	return n == 0 && err == nil
}

// queued asks the socket how many bytes wait in one of its queues.
func (p *player) queued(which uint) (n int, err error) {
	if err := p.raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), which) }); err != nil {
		return 0, err
	}
	return n, err
}

// await waits until cond holds, which is asked under mu.
func (p *player) await(limit time.Duration, cond func() bool) bool {
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

// send writes b in a few pieces, or as one. A peer that takes no more has ended.
func (p *player) send(b []byte, cut bool, r *rand.Rand) {
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

// read reads until the peer ends the connection.
func (p *player) read() {
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
		if err != nil { // a deadline, or closed
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

// take makes messages of what was read. mu is held.
func (p *player) take(b []byte, err error) {
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
		p.end = "broken off" // by a reset, or in the middle of a message
	}
	p.closed = true
}

// readMessage takes one message from the front of b; n is its length, 0 while it
// is not whole.
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
