package proxy

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/proxy/protocol"
)

// pumpSignals holds what the two pumps of a session wait for from each other. The session's mu
// guards it.
type pumpSignals struct {
	// reading: the up pump waits for bytes from the client. A read deadline in the past
	// wakes it.
	reading bool
	// question is the announcement that the down pump is holding back until the up pump
	// has answered, or nil.
	question *announcement
	// stopWait ends the wait of the up pump while it meets a need of the message in hand, which
	// the server has not seen. It is nil otherwise.
	stopWait context.CancelFunc
	// canceled: the client has canceled that message.
	canceled bool
	// room is closed by the down pump when the core can take more from the client. It is
	// nil unless the up pump waits for that.
	room chan struct{}
}

// takeQuestion returns the question that the up pump must answer now, or nil.
func (h *pumpSignals) takeQuestion() *announcement {
	q := h.question
	h.question = nil
	return q
}

// endWait reports whether the client has canceled the message whose need was met.
func (h *pumpSignals) endWait() (canceled bool) {
	canceled = h.canceled
	h.stopWait, h.canceled = nil, false
	return canceled
}

// wantRoom returns a channel that is closed when giveRoom is called.
func (h *pumpSignals) wantRoom() <-chan struct{} {
	h.room = make(chan struct{})
	return h.room
}

// giveRoom wakes the up pump if it waits for room.
func (h *pumpSignals) giveRoom() {
	if h.room != nil {
		close(h.room)
		h.room = nil
	}
}

// announcement is a reply that announces an epoch. The down pump holds it back until the up
// pump has answered whether bytes of the client are pending.
type announcement struct {
	quiet chan bool     // the answer; buffered, so that the up pump does not wait
	sent  chan struct{} // closed by the down pump when the reply has been sent
}

func newAnnouncement() *announcement {
	return &announcement{quiet: make(chan bool, 1), sent: make(chan struct{})}
}

// answer is called by the up pump. quiet says that no bytes of the client are pending. If so,
// answer returns when the reply has been sent, so that the up pump reads nothing before that.
// Otherwise it returns at once, because the client may not read the reply before the proxy
// has read from the client.
func (a *announcement) answer(quiet bool) {
	a.quiet <- quiet
	if quiet {
		<-a.sent
	}
}

// announce sends a reply that announces an epoch to the client. The epoch counts as
// announced only if no bytes of the client are pending: every byte that arrives later was
// then sent by a client that could know the epoch. Otherwise the core announces the
// epoch again the next time the session is quiet.
func (x *session) announce(out []byte) error {
	x.mu.Lock()
	if x.life.phase() == phaseEnding || !x.m.Is(protocol.Quiet) {
		x.mu.Unlock()
		return x.toClient(out)
	}
	a := newAnnouncement()
	x.pumps.question = a
	if x.pumps.reading {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
	}
	x.mu.Unlock()
	defer close(a.sent)
	if <-a.quiet {
		x.mu.Lock()
		for _, t := range x.m.Announced() {
			x.member.addUnreadEpoch(x.member.membershipLocked(t.Resource).candidacy(), t.Epoch)
		}
		x.mu.Unlock()
	}
	return x.toClient(out)
}

// wakeUpPump wakes the up pump if it can end a draining session.
func (x *session) wakeUpPump() {
	x.mu.Lock()
	x.wakeUpPumpAndUnlock()
}

// wakeUpPumpAndUnlock is wakeUpPump for a caller that holds x.mu. It releases x.mu.
func (x *session) wakeUpPumpAndUnlock() {
	wake := x.pumps.reading && x.life.phase() == phaseDraining && x.m.Is(protocol.AtRest)
	x.mu.Unlock()
	if wake {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
	}
}

// awaitRoom waits until the server has answered enough that more can be sent to it. It
// returns errServerGone if the server will answer nothing more, and errClientGone if the
// client has departed.
func (x *session) awaitRoom() error {
	if x.downHasEnded() {
		return errServerGone
	}
	x.mu.Lock()
	if x.m.Is(protocol.Ready) {
		x.mu.Unlock()
		return nil
	}
	room := x.pumps.wantRoom()
	x.mu.Unlock()
	defer while(&x.active.busy)()
	switch {
	case x.awaitUnlessGone(room, x.downGone):
		return errClientGone
	case x.downHasEnded():
		return errServerGone
	default:
		return nil
	}
}

// awaitUnlessGone waits until one of the channels is closed. It stops waiting and reports true if
// the client has ended its output and nothing has moved for DepartedWait: a worker that has
// died keeps neither its lease nor its session for as long as the server takes for what it was
// sent. It is long, because a client may send everything at once, and end. One that is slow to
// read its replies is not gone.
func (x *session) awaitUnlessGone(done, gone <-chan struct{}) bool {
	ended, late := socketBelow(x.client).PeerEnded(), (<-chan time.Time)(nil)
	moved := x.bytesMoved()
	for {
		select {
		case <-done:
			return false
		case <-gone:
			return false
		case <-ended:
			ended = nil
		case <-late:
			if moved == x.bytesMoved() && !x.active.writing.Load() {
				return true
			}
		}
		moved, late = x.bytesMoved(), time.After(x.srv.cfg.DepartedWait)
	}
}

// bytesMoved grows with each byte that the client or the server takes.
func (x *session) bytesMoved() uint64 {
	return socketBelow(x.client).Written() + socketBelow(x.server).Written()
}

func (x *session) downHasEnded() bool {
	select {
	case <-x.downGone:
		return true
	default:
		return false
	}
}
