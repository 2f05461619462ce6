package proxy

import (
	"errors"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// upPump is the up pump, which reads from the client. It has a goroutine only while it has something to do
// that may block.
type upPump struct {
	x       *session
	down    *downPump
	in      buffer // what was read and is not finished
	scratch []byte
	plan    gate.Plan

	off   int  // of the first byte in the buffer that is not finished
	taken bool // the step is to be carried out
	step  upStep

	readErr error     // of the last read by Serve
	arrived time.Time // when the last read of what is in the buffer began, or ended if it waited; zero if that is not known
	// waiting is when this pump first had to wait for something, be it for the rest of a message, since all that
	// the client had sent was last read and processed.
	waiting time.Time
}

// startWaiting notes that this pump waits, unless it did before, and returns since when: a time at or before which the
// client has not read anything that was sent to it after what is in the buffer had arrived.
func (u *upPump) startWaiting() time.Time {
	if u.waiting.IsZero() {
		u.waiting = u.arrived
	}
	if u.waiting.IsZero() {
		u.waiting = time.Now()
	}
	return u.waiting
}

// noteWait follows a wait for something other than the client. What the client has sent since may have arrived when the
// wait began.
func (u *upPump) noteWait(began time.Time) {
	if u.waiting.IsZero() && time.Since(began) > briefWait {
		u.waiting = began
	}
}

// clearWaiting ends the wait if all that the client has sent is read and processed.
func (u *upPump) clearWaiting() {
	if u.in.have > 0 {
		return
	}
	u.arrived = time.Time{}
	if !u.waiting.IsZero() && u.x.client.Unread() == 0 {
		u.waiting = time.Time{}
	}
}

// upStep is what the core made of the bytes from off on: out and rest must be sent, and n
// is how many of the bytes are finished then. need or err say what comes next.
type upStep struct {
	out  []byte
	rest [][]byte
	n    int
	need protocol.Need
	err  error
	// unsent: the server's connection has taken a part of out that it still has to send.
	unsent bool
}

// start relays the client's bytes until the client or the server has gone.
func (u *upPump) start() {
	if u.clearWaiting(); u.in.have > 0 {
		u.run(nil)
	} else if left, err := u.await(); !left { // a superseded client gets no error before it has sent something
		u.run(err)
	}
}

// run continues after a wait that has ended with err, up to the next one that it leaves to the event loop, or to
// the end of the session.
func (u *upPump) run(err error) {
	for left := false; !left; left, err = u.await() {
		done, orderly := false, false
		switch some, err := u.awake(err); {
		case err != nil:
			done = true
		case some:
			done, orderly = u.process()
		}
		if done {
			u.in.finish(u.off)
			held := u.in.bytes()
			u.in.idle()
			u.x.finish(orderly, held)
			return
		}
	}
}

// Resume implements netloop.Reader.
func (u *upPump) Resume(err error) { go u.run(err) }

// await has the event loop relay what comes from the client, until there is something that this pump has to process. If
// left is true, it calls Resume then; otherwise that is so already. Before it waits, await answers the down pump's
// question whether bytes of the client are pending, and passes on or ends a draining session that has reached a safe
// point.
func (u *upPump) await() (left bool, err error) {
	x := u.x
	for {
		x.mu.Lock()
		switch phase := x.life.phase(); {
		case phase == phaseEnding:
			x.mu.Unlock()
			return false, net.ErrClosed
		case phase == phaseDraining && x.m.Is(protocol.AtRest):
			x.pumps.reading = true // so that the down pump wakes this one when it has finished what it does
			x.mu.Unlock()
			switch u.passOn() {
			case passedOn:
				return true, nil // to the other process, which calls nothing here
			case notYet:
				return x.client.OnReadable(u)
			}
			x.end(refusals.AdminShutdown)
			return false, net.ErrClosed
		}
		question := x.pumps.takeQuestion()
		x.pumps.reading = question == nil
		x.mu.Unlock()
		if question == nil {
			return x.client.OnReadable(u)
		}
		u.answer(question, u.in.have == 0 && x.client.Unread() == 0)
	}
}

// awake follows a wait that has ended with err. It answers the question that has ended the wait, and reports whether
// there is something to process. An error ends the pump.
func (u *upPump) awake(err error) (some bool, _ error) {
	x := u.x
	if err == nil {
		err, u.readErr = u.readErr, nil
	}
	x.mu.Lock()
	x.pumps.reading = false
	question := x.pumps.takeQuestion()
	x.mu.Unlock()
	if question != nil {
		u.answer(question, err != nil && u.in.have == 0 && x.client.Unread() == 0)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return false, x.client.SetReadDeadline(time.Time{})
	}
	return err == nil, err
}

// answer answers the down pump's question whether no bytes of the client are pending.
func (u *upPump) answer(question *announcement, quiet bool) {
	began := time.Now()
	question.answer(quiet)
	if quiet {
		u.noteWait(began)
		u.clearWaiting()
	}
}

// Serve implements netloop.Reader. It reads and relays without waiting. If it cannot finish, it reports false, and the
// pump continues from the point that it has reached.
func (u *upPump) Serve() (stay bool) {
	began := time.Now()
	n, err := u.x.client.TryRead(u.in.room())
	if err == netloop.ErrAgain {
		u.in.idle()
		return true
	}
	if u.readErr = err; err != nil {
		return false
	}
	u.in.have += n
	u.arrived = began
	if c, ok := u.x.client.(*pgtls.Conn); ok && u.waiting.IsZero() {
		u.waiting = c.Began()
	}
	if u.in.full() || u.in.have > maxLoopBytes || !u.x.mu.TryLock() || !u.takeAndUnlock() {
		return false
	}
	sent := 0
	if len(u.step.out) > 0 {
		sent, err = u.x.server.TryWrite(u.step.out)
	}
	if sent < len(u.step.out) || len(u.step.rest) > 0 || err != nil || u.step.err != nil || u.step.need.Kind != protocol.NeedMore && u.step.need.Kind != protocol.NeedNothing {
		u.step.out, u.step.unsent = u.step.out[sent:], err == netloop.ErrAgain
		return false
	}
	u.taken = false
	u.off += u.step.n
	u.compact()
	u.in.idle()
	return !u.x.isToPass() // else await looks whether that is possible now
}

// unfinished is what is in the buffer and not finished.
func (u *upPump) unfinished() []byte { return u.in.bytes()[u.off:] }

// take gives the core what is in the buffer, and records the step. It reports false, and
// does nothing, if the session is superseded.
func (u *upPump) take() bool {
	u.x.mu.Lock()
	return u.takeAndUnlock()
}

// takeAndUnlock is take for a caller that holds x.mu. It releases x.mu.
func (u *upPump) takeAndUnlock() bool {
	x, in := u.x, u.unfinished()
	if x.retireAtRest(); x.isSuperseded() {
		x.mu.Unlock()
		return false
	}
	if q := x.pumps.takeQuestion(); q != nil {
		q.answer(false)
	}
	if len(in) > 0 {
		x.member.markEpochsRead()
		if !u.arrived.IsZero() {
			x.since = u.arrived
		}
	}
	u.plan.Reset(in)
	u.step.n, u.step.need, u.step.err = x.m.FromClient(in, &u.plan)
	x.update()
	q := x.pumps.takeQuestion()
	x.mu.Unlock()
	if q != nil {
		q.answer(false) // before anything that may block
	}
	u.step.out, u.step.rest, u.scratch = u.plan.Parts(u.scratch)
	u.step.unsent, u.taken = false, true
	return true
}

// process relays what is in the buffer, as far as it is complete. done says that the pump must
// end, orderly that the client has sent Terminate.
func (u *upPump) process() (done, orderly bool) {
	x := u.x
	for {
		if !u.taken && !u.take() {
			u.refuseSuperseded()
			return true, false
		}
		u.taken = false
		need, err := u.step.need, u.step.err
		if need.Kind != protocol.NeedNothing && need.Kind != protocol.NeedMore {
			u.startWaiting()
		}
		u.off += u.step.n
		if err := u.toServer(); err != nil {
			return u.endAfter(err)
		}
		switch {
		case err != nil:
			x.log().Info("session closed", zap.String("side", "client"), zap.Error(err))
			reason := refusals.Protocol("%s", err)
			if errors.Is(err, protocol.ErrBug) {
				reason = refusals.Bug
			}
			x.stopReading(reason)
			return true, false
		case need.Kind == protocol.NeedTerminal:
			return true, true
		case need.Kind == protocol.NeedMore, need.Kind == protocol.NeedNothing:
			u.compact()
			return false, false
		case need.Kind == protocol.NeedRoom:
			if err := x.awaitRoom(); err != nil {
				return u.endAfter(err)
			}
		case need.Kind == protocol.NeedJoin && need.Join.Token == 0:
			x.choose(x.context(), need.Join, u.startWaiting())
		case need.Kind == protocol.NeedJoin:
			if lower := x.rejoin(x.context(), need.Join.Token, u.startWaiting()); lower != nil {
				x.log().Warn("session ended: its client has set a lower token", zap.String("reason", lower.Message))
				x.end(lower)
				_ = x.server.Close()
				return u.serverGone()
			}
		case !x.meetNeed(x.context(), need): // the session is being closed
			return u.serverGone()
		}
	}
}

// toServer sends what the step has for the server. It returns errClientGone if the server takes
// nothing, and the client has departed.
func (u *upPump) toServer() error {
	x, out, rest, unsent := u.x, u.step.out, u.step.rest, u.step.unsent
	if len(out) > 0 {
		n, err := x.server.TryWrite(out)
		if err != nil && err != netloop.ErrAgain {
			return err
		}
		out, unsent = out[n:], err != nil
	}
	if len(out) == 0 && len(rest) == 0 && !unsent {
		return nil
	}
	defer while(&x.active.busy)()
	ends, began := x.watchWrite(), time.Now()
	_, err := x.server.Write(out)
	for i := 0; i < len(rest) && err == nil; i++ {
		_, err = x.server.Write(rest[i])
	}
	u.noteWait(began)
	if ends() {
		return errClientGone
	}
	return err
}

// briefWait is how long something takes that is no wait: it is about the time in which a message that has arrived is
// read.
const briefWait = time.Millisecond

// longWrite is how long a write to the server takes before someone looks whether the client
// has departed. Most writes take microseconds, and cost a timer only.
const longWrite = 100 * time.Millisecond

// watchWrite interrupts the writes to the server that follow if the client departs. ends says
// that they are over, and reports whether they were interrupted.
func (x *session) watchWrite() (ends func() (departed bool)) {
	written, departed := make(chan struct{}), make(chan bool, 1)
	timer := time.AfterFunc(longWrite, func() {
		gone := x.awaitUnlessGone(written, nil)
		if gone {
			_ = x.server.SetWriteDeadline(aLongTimeAgo)
		}
		departed <- gone
	})
	return func() bool {
		close(written)
		return !timer.Stop() && <-departed
	}
}

// compact moves the bytes that are not finished to the start of the buffer, and makes room for
// the rest of an incomplete message. A client cannot make the proxy allocate memory by
// claiming a length: the buffer grows with what has arrived, and gets the size of the whole
// message only when a quarter of it has arrived.
func (u *upPump) compact() {
	u.in.finish(u.off)
	u.off = 0
	if u.in.have > 0 {
		u.startWaiting()
	}
	u.clearWaiting()
	switch {
	case u.in.full():
		u.in.grow(min(4*len(u.in.memory), max(u.step.need.Bytes, bufferSize)))
	case u.in.shrink():
		u.scratch = nil
	}
}

// endAfter ends the pump because nothing more can be sent to the server.
func (u *upPump) endAfter(err error) (done, orderly bool) {
	if err != errClientGone {
		return u.serverGone()
	}
	u.x.log().Info("session closed: its client ended it while the server was busy", zap.String("side", "client"))
	return true, false
}

// serverGone ends the session when the server accepts no more bytes. The down pump relays
// what the server has still sent, which may contain its reason. Only when the down pump has
// ended is it known whether the session is superseded, so serverGone waits for that before
// the memberships end.
func (u *upPump) serverGone() (done, orderly bool) {
	u.x.stopReading(nil)
	<-u.x.downGone
	if u.x.isSuperseded() {
		u.refuseSuperseded()
	}
	return true, false
}

// refuseSuperseded sends the client the error that its candidacy is over, when it uses the connection
// again. A Terminate gets no answer.
func (u *upPump) refuseSuperseded() {
	left := u.unfinished()
	u.x.mu.Lock()
	tried := u.x.m.Attempt(left)
	u.x.mu.Unlock()
	if tried.Sent || len(left) == 0 && u.step.need.Kind != protocol.NeedTerminal {
		u.x.endSuperseded(tried)
	}
}
