package proxy

import (
	"bufio"
	"context"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// firstBuffer is the size of a pump's buffer: one read.
const firstBuffer = 16 << 10

// maxLoopBytes bounds what the event loop gives the machine at once, so that
// nobody's long message keeps it from the others.
const maxLoopBytes = 4 * firstBuffer

// upPump is the state of the goroutine that reads the client.
type upPump struct {
	x       *session
	buf     []byte
	have    int
	scratch []byte
	plan    gate.Plan

	off   int  // of what the machine has not taken yet
	taken bool // the machine has taken what follows, and it is to be carried out
	step  upStep

	readErr error // of a read by serve
}

// upStep is what the machine made of some bytes: n are done with once out and
// rest are sent; need or err say what comes then.
type upStep struct {
	out  []byte
	rest [][]byte
	n    int
	need protocol.Need
	err  error
}

// up relays the client's bytes until the client or the server is gone. early holds what the
// startup has read ahead. orderly says that the client has sent Terminate.
func (x *session) up(ctx context.Context, early *bufio.Reader) (orderly bool) {
	u := &upPump{x: x, buf: make([]byte, firstBuffer)}
	u.have = rest(early, u.buf)
	if u.have > 0 {
		x.active.reads.Add(1)
	}
	for {
		done, orderly := u.process(ctx)
		if done {
			return orderly
		}
		if err := u.read(); err != nil {
			return false
		}
	}
}

// read waits for bytes of the client that are to be processed. In between it
// answers the other pump's question whether anything is pending, and ends a
// session that drains.
func (u *upPump) read() error {
	x := u.x
	for {
		x.mu.Lock()
		switch phase := x.life.phase(); {
		case phase == phaseEnding:
			x.mu.Unlock()
			return net.ErrClosed
		case phase == phaseDraining && x.m.AtRest():
			x.mu.Unlock()
			x.end(adminShutdown)
			return net.ErrClosed
		case x.m.Replays():
			x.mu.Unlock()
			return nil
		}
		t := x.pumps.takeQuestion()
		x.pumps.reading = t == nil
		x.mu.Unlock()
		if t != nil {
			t.answer(u.have == 0 && x.client.Unread() == 0)
			continue
		}

		some, err := u.await()

		x.mu.Lock()
		x.pumps.reading = false
		t = x.pumps.takeQuestion()
		x.mu.Unlock()
		if t != nil {
			t.answer(!some && u.have == 0 && err != nil && x.client.Unread() == 0)
		}
		if some {
			return nil
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			if x.retries() {
				return nil // and then the end is read again
			}
			return err
		}
		_ = x.client.SetReadDeadline(time.Time{})
	}
}

// await returns when there is something to process. Between two sockets the
// loop does what it can by itself.
func (u *upPump) await() (some bool, err error) {
	if u.x.sockets == nil {
		n, err := u.x.client.Read(u.buf[u.have:])
		u.have += n
		if n > 0 {
			u.x.active.reads.Add(1)
		}
		return n > 0, err
	}
	u.readErr = nil
	if err := u.x.sockets.client.OnReadable(u.serve); err != nil {
		return false, err
	}
	return u.readErr == nil, u.readErr
}

// serve reads the client and sends on what it can without waiting. What it
// cannot finish it leaves to the pump, as if that had come so far itself.
func (u *upPump) serve() (stay bool) {
	n, err := u.x.sockets.client.TryRead(u.buf[u.have:])
	if err == netloop.ErrAgain {
		return true
	}
	if u.readErr = err; err != nil {
		return false
	}
	u.have += n
	u.x.active.reads.Add(1)
	if u.have == len(u.buf) || u.have > maxLoopBytes || !u.x.mu.TryLock() || !u.takeAndUnlock() {
		return false
	}
	sent := 0
	if len(u.step.out) > 0 {
		sent, err = u.x.sockets.server.TryWrite(u.step.out)
	}
	if sent < len(u.step.out) || len(u.step.rest) > 0 || err != nil || u.step.err != nil || u.step.need != protocol.NeedMore && u.step.need != protocol.NeedNothing {
		u.step.out = u.step.out[sent:]
		return false
	}
	u.taken = false
	u.off += u.step.n
	u.keep()
	return true
}

// take gives the machine what is in the buffer. It reports false, and does
// nothing, when the session was superseded.
func (u *upPump) take() bool {
	u.x.mu.Lock()
	return u.takeAndUnlock()
}

// takeAndUnlock is take for a caller that holds x.mu. It releases x.mu.
func (u *upPump) takeAndUnlock() bool {
	x, in := u.x, u.buf[u.off:u.have]
	if x.isSuperseded() {
		x.mu.Unlock()
		return false
	}
	if t := x.pumps.takeQuestion(); t != nil {
		t.answer(false)
	}
	u.plan.Reset(in)
	u.step.n, u.step.need, u.step.err = x.m.FromClient(in, &u.plan)
	x.updatePending()
	t := x.pumps.takeQuestion()
	x.mu.Unlock()
	if t != nil {
		t.answer(false) // before what may block
	}
	u.step.out, u.step.rest, u.scratch = u.plan.Parts(u.scratch)
	if err := u.observe(); err != nil {
		u.step.out, u.step.rest, u.step.err = nil, nil, err
	}
	u.taken = true
	return true
}

// observe shows the observer what is about to be sent.
func (u *upPump) observe() error {
	if err := u.x.observer.Sent(u.step.out); err != nil {
		return err
	}
	for _, b := range u.step.rest {
		if err := u.x.observer.Sent(b); err != nil {
			return err
		}
	}
	return nil
}

// process sends on what is in the buffer, as far as it goes.
func (u *upPump) process(ctx context.Context) (done, orderly bool) {
	x := u.x
	for {
		in := u.buf[u.off:u.have]
		if !u.taken && !u.take() {
			u.refuseSuperseded(in)
			return true, false
		}
		u.taken = false
		if err := x.toServer(u.step.out, u.step.rest); err != nil {
			return u.serverGone(in)
		}
		u.off += u.step.n
		switch need, err := u.step.need, u.step.err; {
		case err != nil:
			x.log.Info("session closed", zap.String("side", "client"), zap.Error(err))
			reason := protocolError("%s", err)
			if errors.Is(err, protocol.ErrBug) {
				reason = protocol.BugRefusal
			}
			x.stopReading(reason)
			return true, false
		case need == protocol.NeedTerminal:
			return true, true
		case need == protocol.NeedMore, need == protocol.NeedNothing:
			u.keep()
			return false, false
		case need == protocol.NeedRoom:
			if !x.awaitRoom() {
				return u.serverGone(u.buf[u.off:u.have])
			}
		default:
			x.meet(ctx, need)
		}
	}
}

// toServer writes out, and then the segments in rest.
func (x *session) toServer(out []byte, rest [][]byte) error {
	if len(out) == 0 && len(rest) == 0 {
		return nil
	}
	defer while(&x.active.busy)()
	_, err := x.server.Write(out)
	for i := 0; i < len(rest) && err == nil; i++ {
		_, err = x.server.Write(rest[i])
	}
	return err
}

// keep moves what was not sent to the start of the buffer, and makes room for
// the rest of the message in hand. A length that was only claimed costs
// nothing: the buffer grows with what has come, and to the whole once a quarter
// has.
func (u *upPump) keep() {
	u.have = copy(u.buf, u.buf[u.off:u.have])
	u.off = 0
	switch {
	case u.have == len(u.buf):
		next := make([]byte, min(4*len(u.buf), max(u.x.m.Wants(), firstBuffer)))
		copy(next, u.buf)
		u.buf = next
	case u.have == 0 && len(u.buf) > maxLoopBytes:
		u.buf, u.scratch = make([]byte, firstBuffer), nil
	}
}

// serverGone ends the session when the server takes no more. What it still
// said, its reason among it, is relayed by the other pump; whether the session
// was superseded is known when that has ended, and not after the membership is
// over.
func (u *upPump) serverGone(in []byte) (done, orderly bool) {
	u.x.stopReading(nil)
	<-u.x.downGone
	if u.x.isSuperseded() {
		u.refuseSuperseded(in)
	}
	return true, false
}

// refuseSuperseded answers the client's next use of a connection whose
// candidacy is over. Its goodbye is not answered.
func (u *upPump) refuseSuperseded(in []byte) {
	if len(in) > 0 && in[0] == 'X' {
		return
	}
	u.x.mu.Lock()
	text, write := u.x.m.Attempt(in)
	u.x.mu.Unlock()
	u.x.endSuperseded(text, write)
}
