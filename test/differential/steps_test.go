package differential

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func (p *client) run(s script) (t transcript, err error) {
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
	t.seen = p.seen
	return t, nil
}

// steps sends the steps of s. It reports false if a reply did not arrive that Postgres
// sent.
func (p *client) steps(s script) (ok bool, err error) {
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

// cancel cancels the statement in which the server sleeps. It does nothing if the
// server did not sleep on Postgres, or cannot any more.
func (p *client) cancel() error {
	canceled := false
	defer func() {
		p.mu.Lock()
		p.seen = append(p.seen, seen{p.marks, len(p.all) - p.told, canceled, p.closed})
		p.mu.Unlock()
	}()
	if n := len(p.seen); p.to.like != nil && (n >= len(p.to.like) || !p.to.like[n].canceled) {
		return nil
	}
	still := 150 // glances in which the server waits for its client
	if p.to.like != nil {
		still = 500 // the server has slept on Postgres, and the proxy may take its time
	}
	for waited, until := 0, time.Now().Add(patience); waited < still && time.Now().Before(until); {
		switch {
		case p.await(glance, func() bool { return p.closed }):
			return nil
		case p.to.sleeps(p.pid):
			canceled = true
			return p.sendCancelAndAwait()
		case p.to.asleep(p.pid):
			waited++
		}
	}
	return nil
}

// sendCancelAndAwait sends a cancel request to a server that sleeps, and waits for its
// answer, so that the next request cannot find it in the same sleep.
func (p *client) sendCancelAndAwait() error {
	p.mu.Lock()
	before := len(p.all)
	p.mu.Unlock()
	if err := p.sendCancel(); err != nil {
		return err
	}
	p.await(patience, func() bool { return p.closed || len(p.all) > before })
	return nil
}

// sendCancel sends a cancel request and waits until it has been processed.
func (p *client) sendCancel() error {
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

// count keeps track of how many ReadyForQuery messages may arrive.
func (p *client) count(name string) {
	switch name {
	case "Sync", "Query", "FunctionCall":
		p.asks++
	default:
		p.odd = true
	}
	if name == "Sync" { // the replies to earlier messages come before it
		p.odd = false
	}
}

// hangUp closes the client's side of the connection.
func (p *client) hangUp() { _ = p.conn.(interface{ CloseWrite() error }).CloseWrite() }

// grace is how long a message may take that Postgres sent but that need not arrive,
// because intentional differences may reduce their number.
const grace = 100 * time.Millisecond

// wait waits until the server waits for its client or, if any message will do, until
// one has arrived. Through Fencepost it waits for as many messages as Postgres sent,
// and reports false if they did not arrive.
func (p *client) wait(any bool) (ok bool) {
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

// waitForAsMuch waits for enough, and gives up when the server has been waiting for its
// client for a while and nothing has arrived.
func (p *client) waitForAsMuch(enough func() bool) bool {
	const still = 4 // glances, a tenth of the patience in all
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

func (p *client) waitForServer(any bool) {
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
			p.mu.Lock()
			p.asks, p.odd = p.readys, false
			p.mu.Unlock()
			return
		}
	}
}

// quiet reports whether the server has read everything that was sent and waits for
// more, and everything that it has sent has been read: no reply will come. It works for
// Unix sockets, which report how much their peer has not read.
func (p *client) quiet() bool {
	if n, err := p.queued(unix.SIOCOUTQ); n > 0 || err != nil || !p.to.asleep(p.pid) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.queued(unix.SIOCINQ)
	return n == 0 && err == nil
}

// queued returns how many bytes are in one of the socket's queues.
func (p *client) queued(which uint) (n int, err error) {
	if err := p.raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), which) }); err != nil {
		return 0, err
	}
	return n, err
}
