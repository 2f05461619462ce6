package proxy

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxServerMessage bounds a message of the server that the core can only take as a whole,
// such as an error.
const maxServerMessage = 16 << 20

// downPump is the down pump, which reads from the server. It has a goroutine only while it has something to do
// that may block.
type downPump struct {
	x       *session
	in      buffer // what was read and is not finished
	scratch []byte
	plan    gate.Segments
	events  []protocol.Event // of the step
	deleted []registrations  // of each EventUnregister of the step, in order

	taken bool // the step is to be carried out, and sending is held
	step  downStep

	readErr error // of the last read by Serve
}

// downStep is what the core made of the bytes in the buffer: out must be sent, and n is
// how many bytes of the buffer are finished then.
type downStep struct {
	out []byte
	n   int
	err error
	// unsent: the client's connection has taken a part of out that it still has to send.
	unsent bool
}

// run relays the server's bytes until the server or the client has gone. It continues after a wait that has ended with
// err, up to the next one that it leaves to the event loop, or to its end.
func (d *downPump) run(err error) {
	for left := false; !left; left, err = d.await() {
		if err == nil {
			err = d.readErr
		}
		if err != nil {
			d.x.serverEnded()
		}
		if err != nil || !d.process() {
			d.in.idle()
			close(d.x.downGone)
			return
		}
	}
}

// Resume implements netloop.Reader.
func (d *downPump) Resume(err error) { go d.run(err) }

// await has the event loop relay what comes from the server, until there is something that this pump has to process.
// If left is true, it calls Resume then; otherwise that is so already.
func (d *downPump) await() (left bool, err error) {
	if d.in.shrink() {
		d.scratch = nil
	}
	if left, err = d.x.server.OnReadable(d); left && d.x.isToPass() {
		d.x.wakeUpPump() // which passes the session on only while this pump has no goroutine
	}
	return left, err
}

// goOn continues after Withdraw.
func (d *downPump) goOn() {
	if left, err := d.x.server.OnReadable(d); !left {
		go d.run(err)
	}
}

// Serve implements netloop.Reader. It reads and relays without waiting. If it cannot finish, it reports false, and the
// pump continues from the point that it has reached.
func (d *downPump) Serve() (stay bool) {
	x := d.x
	n, err := x.server.TryRead(d.in.room())
	if err == netloop.ErrAgain {
		d.in.idle()
		return true
	}
	if d.readErr = err; err != nil {
		return false
	}
	d.in.have += n
	if d.in.full() || d.in.have > maxLoopBytes || !x.sending.TryLock() {
		return false
	}
	if !x.mu.TryLock() { // another goroutine is using the core
		x.sending.Unlock()
		return false
	}
	d.takeAndUnlock()
	if d.step.err != nil || len(d.events) > 0 {
		return false
	}
	if len(d.step.out) > 0 {
		sent, err := x.client.TryWrite(d.step.out)
		if sent < len(d.step.out) || err != nil {
			d.step.out, d.step.unsent = d.step.out[sent:], err == netloop.ErrAgain
			return false
		}
	}
	d.endStep()
	if !x.mu.TryLock() {
		return false // this pump wakes the up pump instead
	}
	x.wakeUpPumpAndUnlock()
	d.in.idle()
	return true
}

// grow doubles the buffer. It reports false, and ends the session, if a message is too long.
func (d *downPump) grow() bool {
	if len(d.in.memory) >= maxServerMessage {
		d.x.log().Error("session closed", zap.String("side", "server"), zap.Error(wire.ErrLength))
		d.x.endAtOnce(refusals.MessageTooLong)
		return false
	}
	d.in.grow(2 * len(d.in.memory))
	return true
}

// process relays what is in the buffer, and makes room for the rest of a message. It reports false if the pump must end.
func (d *downPump) process() bool {
	if d.in.have == 0 { // Serve has relayed everything, and could not wake the up pump
		d.x.wakeUpPump()
		return true
	}
	return d.carryOut() && (!d.in.full() || d.grow())
}

// carryOut relays what is in the buffer. It reports false if the pump must end.
func (d *downPump) carryOut() bool {
	err := d.relay()
	d.audit()
	if err != nil {
		var refusal *fencing.Refusal
		if !closedByPeer(err) {
			d.x.log().Info("session closed", zap.Error(err))
		}
		switch {
		case errors.As(err, &refusal):
			d.x.endAtOnce(refusal)
		case errors.Is(err, protocol.ErrUnexpectedReply):
			d.x.endAtOnce(refusals.UnexpectedReply)
		case errors.Is(err, protocol.ErrBug):
			d.x.endAtOnce(refusals.Bug)
		default:
			d.x.abort()
		}
		return false
	}
	return d.after()
}

// take gives the core what is in the buffer, and records the step. The caller has locked
// x.sending, which endStep unlocks. Nothing is sent if the client has been sent the reason why its session
// ends.
func (d *downPump) take() {
	d.x.mu.Lock()
	d.takeAndUnlock()
}

// takeAndUnlock is take for a caller that holds x.mu. It releases x.mu.
func (d *downPump) takeAndUnlock() {
	x := d.x
	notified := x.life.notified
	d.plan.Reset(d.in.bytes())
	d.step.n, d.events, d.step.err = x.m.FromServer(d.in.bytes(), &d.plan)
	for i := range d.events {
		switch d.events[i].Kind {
		case protocol.EventSuperseded:
			x.life.markNotified() // the plan has the reason
			d.events[i].Rejection.Time = time.Now()
			if !x.life.markAudited() || x.postponeAudit(d.events[i].Rejection) {
				d.events[i].Rejection = nil
			}
		case protocol.EventUnregister:
			d.deleted = append(d.deleted, x.registrations.take(d.events[i].Resources))
		}
	}
	x.retireAtRest()
	x.update()
	if x.pumps.room != nil && x.m.Is(protocol.Ready) {
		x.pumps.giveRoom()
	}
	x.mu.Unlock()
	d.step.out, d.scratch = d.plan.Bytes(d.scratch)
	if notified {
		d.step.out = nil
	}
	d.step.unsent, d.taken = false, true
}

// endStep ends the step that take began: it moves the bytes that the core has left to the
// start of the buffer, and unlocks x.sending.
func (d *downPump) endStep() {
	d.in.finish(d.step.n)
	d.taken = false
	d.x.sending.Unlock()
}

// relay carries out the step that Serve has left, or takes one and carries it out.
func (d *downPump) relay() error {
	x := d.x
	if !d.taken {
		x.sending.Lock()
		d.take()
	}
	defer d.endStep()
	announces := false
	for i := range d.events {
		switch e := &d.events[i]; e.Kind {
		case protocol.EventRefused:
			e.Rejection.Time = time.Now()
		case protocol.EventUnregister:
			x.unregister(x.context(), d.deleted[0])
			d.deleted = d.deleted[1:]
		case protocol.EventSuperseded:
			x.learnSuperseded(x.membership(e.Resource))
		case protocol.EventDiscarded:
			x.membership(e.Resource).candidacy().ConnectionSuperseded()
		case protocol.EventAnnounce:
			announces = true
		case protocol.EventChosen:
			x.setChosen(e.Resources)
		case protocol.EventRenamed:
			if refusal := x.checkApplicationName(e.Name); refusal != nil { // what is sent after the new name is dropped
				return refusal
			}
			x.renamed = e.Name
		}
	}
	var err error
	switch out := d.step.out; {
	case announces:
		err = x.announce(out)
	case len(out) > 0, d.step.unsent:
		err = x.toClient(out)
	}
	if d.step.err != nil {
		return d.step.err
	}
	return err
}

// learnSuperseded makes sure that the candidacy knows that it is superseded, before the client
// learns that: the client's next connection must not join it. If the session continues, its next
// reply reports the role to the client.
func (x *session) learnSuperseded(s *membership) {
	b := s.joinedTo.Load()
	if s.discards {
		b.ConnectionSuperseded() // each time: the client may send again what was discarded
	} else {
		b.noteSuperseded()
	}
	if b.Status().Role != fencing.Superseded {
		x.readRecord(x.context(), b)
	}
}

// readRecord reads whether the resource guards tables, or another worker was granted an
// epoch, since the candidacy has last read its fence.
func (x *session) readRecord(ctx context.Context, b *joinedCandidacy) {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	b.CheckSuperseded(ctx)
}

// after ends the session if an event says so, once the replies before it are sent. It reports
// false if it has ended the session.
func (d *downPump) after() bool {
	x := d.x
	for i := range d.events {
		switch e := &d.events[i]; e.Kind {
		case protocol.EventSuperseded:
			_ = x.server.Close()
			x.hangUp()
			return false
		case protocol.EventEnded:
			x.relayFatal(e)
			return false
		}
	}
	x.wakeUpPump()
	return true
}

// toClient writes out to the client. Its caller holds x.sending, or sends the last message.
func (x *session) toClient(out []byte) error {
	defer while(&x.active.writing)()
	_, err := x.client.Write(out)
	return err
}
