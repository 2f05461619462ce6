package differential

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/wiretest"
)

const (
	// patience is how long a peer may take for what it must do.
	patience = 5 * time.Second
	// silence is how long Postgres may say nothing before a wait is taken for
	// one that is never answered.
	silence = 100 * time.Millisecond
)

// transcript is what came back.
type transcript struct {
	startup []wiretest.Message // up to the first ReadyForQuery
	all     []wiretest.Message
	// answered says of each wait whether an answer came.
	answered []bool
	// end says how the connection ended: "" in order.
	end string
}

// player plays one script on one connection.
type player struct {
	conn net.Conn
	mu   sync.Mutex
	// What was read, guarded by mu.
	all    []wiretest.Message
	marks  int // of ReadyForQuery and CopyInResponse
	closed bool
	end    string
	more   chan struct{} // closed when something was read
	done   chan struct{} // closed when the reader has ended

	seenMarks, seenAll int // at the last wait
}

// play connects, plays s, and reads to the end. like is how the waits went on
// Postgres, nil there: what it did not answer is not waited for.
// before is called in front of the step of that index, if it is not nil.
func play(network, address string, params []string, s script, like []bool, before func(i int)) (transcript, error) {
	conn, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return transcript{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	if _, err := conn.Write(wiretest.Startup(params...)); err != nil {
		return transcript{}, fmt.Errorf("send the startup: %w", err)
	}
	r := bufio.NewReader(conn)
	var t transcript
	for {
		m, err := readMessage(r)
		if err != nil || m.Type == 'E' {
			return t, fmt.Errorf("start: %v %w", m, err)
		}
		t.startup = append(t.startup, m)
		if m.Type == 'Z' {
			break
		}
	}
	p := &player{conn: conn, more: make(chan struct{}), done: make(chan struct{})}
	go p.read(r)
	t.answered = p.steps(s, like, before)
	p.await(patience, func() bool { return p.closed })
	_ = conn.Close()
	<-p.done
	t.all, t.end = p.all, p.end
	return t, nil
}

// steps sends what s says, and returns how the waits went.
func (p *player) steps(s script, like []bool, before func(i int)) (answered []bool) {
	var out []byte
	cut := rand.New(rand.NewPCG(s.cut, 1))
	for i, st := range s.steps {
		if before != nil {
			before(i)
		}
		switch st.name {
		case "wait":
			p.send(out, s.cut != 0, cut)
			out = nil
			limit := silence
			if like != nil {
				limit = 0
				if len(answered) < len(like) && like[len(answered)] {
					limit = patience
				}
			}
			answered = append(answered, p.wait(st.text(0), limit))
		case "Hangup":
			p.send(out, s.cut != 0, cut)
			out = nil
			p.hangUp()
		default:
			out = append(out, st.bytes()...)
		}
	}
	p.send(out, s.cut != 0, cut)
	p.hangUp()
	return answered
}

// hangUp ends what the client says.
func (p *player) hangUp() { _ = p.conn.(interface{ CloseWrite() error }).CloseWrite() }

// wait waits for an answer of that kind, and reports whether it came.
func (p *player) wait(kind string, limit time.Duration) bool {
	ok := p.await(limit, func() bool {
		if kind == "ready" {
			return p.closed || p.marks > p.seenMarks
		}
		return p.closed || len(p.all) > p.seenAll
	})
	p.mu.Lock()
	p.seenMarks, p.seenAll = p.marks, len(p.all)
	p.mu.Unlock()
	return ok
}

// await waits until cond holds, which is asked under mu.
func (p *player) await(limit time.Duration, cond func() bool) bool {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		ok, more := cond(), p.more
		p.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-more:
		case <-timeout.C:
			return false
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
func (p *player) read(r *bufio.Reader) {
	defer close(p.done)
	for {
		m, err := readMessage(r)
		p.mu.Lock()
		if err != nil {
			p.closed = true
			if err != io.EOF {
				p.end = "broken off" // by a reset, or in the middle of a message
				if t, ok := err.(net.Error); ok && t.Timeout() {
					p.end = "nothing more came, and no end"
				}
			}
		} else {
			p.all = append(p.all, m)
			if m.Type == 'Z' || m.Type == 'G' {
				p.marks++
			}
		}
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func readMessage(r *bufio.Reader) (wiretest.Message, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return wiretest.Message{}, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n > 1<<26 {
		return wiretest.Message{}, fmt.Errorf("a message %q of length %d", head[0], n)
	}
	body := make([]byte, n-4)
	_, err := io.ReadFull(r, body)
	return wiretest.Message{Type: head[0], Body: body}, err
}
