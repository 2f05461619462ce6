package proxy

import (
	"context"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// firstBuffer is the size of a pump's buffer: one read.
const firstBuffer = 16 << 10

// upPump is the state of the goroutine that reads the client.
type upPump struct {
	x       *session
	buf     []byte
	have    int
	scratch []byte
	plan    plan
}

// up relays the client's bytes until the client or the server is gone. orderly
// says that the client said Terminate.
func (x *session) up(ctx context.Context) (orderly bool) {
	u := &upPump{x: x, buf: make([]byte, firstBuffer)}
	u.have, _ = x.fromClient.Read(u.buf[:x.fromClient.Buffered()])
	x.fromClient = nil
	if u.have > 0 {
		x.reads.Add(1)
	}
	for {
		done, orderly := u.process(ctx)
		if done {
			return orderly
		}
		n, err := u.read()
		u.have += n
		if err != nil && n == 0 {
			return false
		}
		x.reads.Add(1)
	}
}

// read waits for bytes of the client. In between it answers the other pump's
// question whether anything is pending, and ends a session that drains.
func (u *upPump) read() (n int, err error) {
	x := u.x
	for {
		x.mu.Lock()
		if x.over {
			x.mu.Unlock()
			return 0, net.ErrClosed
		}
		if x.draining && x.idleLocked() {
			x.mu.Unlock()
			x.say(adminShutdown)
			return 0, net.ErrClosed
		}
		t := x.asked()
		x.reading = t == nil
		x.mu.Unlock()
		if t != nil {
			t.answer(u.have == 0 && unread(x.client) == 0)
			continue
		}

		n, err = x.client.Read(u.buf[u.have:])

		x.mu.Lock()
		x.reading = false
		t = x.asked()
		x.mu.Unlock()
		if t != nil {
			t.answer(n == 0 && err != nil && unread(x.client) == 0)
		}
		if n > 0 {
			return n, nil
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			return 0, err
		}
		_ = x.client.SetReadDeadline(time.Time{})
	}
}

// idleLocked reports a safe point: nothing owed, no transaction, no part of a
// message in hand.
func (x *session) idleLocked() bool {
	return x.m.quiet() && x.m.tx == 'I' && !x.m.partial
}

// process sends on what is in the buffer, as far as it goes.
func (u *upPump) process(ctx context.Context) (done, orderly bool) {
	x, off := u.x, 0
	for {
		in := u.buf[off:u.have]
		x.mu.Lock()
		if x.superseded {
			x.mu.Unlock()
			u.refuseSuperseded(in)
			return true, false
		}
		if t := x.asked(); t != nil {
			t.answer(false)
		}
		u.plan.reset(in)
		n, need, err := x.m.client(in, &u.plan)
		x.m.partial = n < len(in)
		t := x.asked()
		x.mu.Unlock()
		if t != nil {
			t.answer(false) // before what may block
		}
		var out []byte
		if out, u.scratch = u.plan.bytes(u.scratch); len(out) > 0 {
			if _, werr := x.server.Write(out); werr != nil {
				return u.serverGone(in)
			}
		}
		off += n
		switch {
		case err != nil:
			x.log.Info("session closed", zap.String("side", "client"), zap.Error(err))
			x.mu.Lock()
			if x.parting = protocolError("%s", err); errors.Is(err, errBug) {
				x.parting = bugRefusal
			}
			x.mu.Unlock()
			return true, false
		case need == needTerminal:
			return true, true
		case need == needMore, need == needNothing:
			u.keep(off)
			return false, false
		case need == needRoom:
			if !x.awaitRoom() {
				return u.serverGone(u.buf[off:u.have])
			}
		default:
			x.meet(ctx, need)
		}
	}
}

// awaitRoom waits until the server has answered enough for more to be sent.
// It reports false when the server answers no more.
func (x *session) awaitRoom() bool {
	x.mu.Lock()
	if x.downEnded {
		x.mu.Unlock()
		return false
	}
	if x.m.owed.len() <= maxOwed/2 {
		x.mu.Unlock()
		return true
	}
	room := make(chan struct{})
	x.room = room
	x.mu.Unlock()
	<-room
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.downEnded
}

// keep moves what was not sent to the start of the buffer, and makes room for
// the rest of the message in hand. A length that was only claimed costs
// nothing: the buffer grows with what has come.
func (u *upPump) keep(off int) {
	u.have = copy(u.buf, u.buf[off:u.have])
	switch {
	case u.have == len(u.buf):
		next := make([]byte, min(2*len(u.buf), max(u.x.m.wants, firstBuffer)))
		copy(next, u.buf)
		u.buf = next
	case u.have == 0 && len(u.buf) > 4*firstBuffer:
		u.buf, u.scratch = make([]byte, firstBuffer), nil
	}
}

// serverGone ends the session when the server takes no more. What it still
// said, its reason among it, is relayed by the other pump; whether the session
// was superseded is known when that has ended, and not after the membership is
// over.
func (u *upPump) serverGone(in []byte) (done, orderly bool) {
	u.x.upEnds()
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
	text, write := u.x.m.attempt(in)
	u.x.mu.Unlock()
	u.x.saySuperseded(text, write)
}

// meet does what the machine needs before it can go on.
func (x *session) meet(ctx context.Context, n need) {
	switch n {
	case needEnter:
		r := x.enter(ctx)
		x.mu.Lock()
		x.m.entered(r)
		x.mu.Unlock()
		return
	case needCatalogue:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.cand.Fence().RefreshCatalogue(wait)
		cancel()
		x.mu.Lock()
		x.m.refreshed()
		x.mu.Unlock()
		return
	case needDemand:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.cand.Demand(wait)
		cancel()
	case needConfirm:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		_ = x.cand.AwaitConfirmed(wait) // the standing says how it went
		cancel()
	}
	x.mu.Lock()
	x.m.asked(n)
	x.mu.Unlock()
}

// enter notes the backend in the registry, once the last note is gone.
func (x *session) enter(ctx context.Context) *fencing.Refusal {
	x.mu.Lock()
	gone, epoch := x.noteGone, x.m.txTold
	x.mu.Unlock()
	if gone != nil {
		<-gone
	}
	x.mu.Lock()
	stuck := x.noteStuck
	x.mu.Unlock()
	if stuck {
		return noteStuckRefusal
	}
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	if err := x.cand.Fence().Enter(ctx, x.pid, epoch); err != nil {
		x.log.Debug("registry refused", zap.Error(err))
		return faultRefusal(err)
	}
	return nil
}
