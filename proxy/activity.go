package proxy

import (
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/workers"
)

// activity is what the candidacy's loop must know about a session. The session keeps it in
// atomics, because the loop also starts renewals and must never wait for a session's lock.
type activity struct {
	pending atomic.Bool // the session expects a reply of the server
	// busy: the proxy itself does something for the client, for a bounded time (the startup,
	// for example), or the up pump waits because the server accepts no more bytes or has too
	// many replies pending.
	busy          atomic.Bool
	writing       atomic.Bool // a write to the client is under way
	waitingToLead atomic.Bool // the session waits for the lead in its startup, or for its server just after that
	stuck         atomic.Bool // when its worker was last polled, the server waited for the worker itself
	// auditing: a refused statement is being recorded, and what the server has sent after it is not read meanwhile.
	// That may last for as long as a disk is full, while no one works for the client.
	auditing atomic.Bool

	transactions atomic.Uint64 // how many have ended, as of the last bytes of the server

	// moved is why the session ends if its server is not the one to which its address leads, nil if that is not known.
	moved atomic.Pointer[fencing.Refusal]

	takenAtPoll atomic.Uint64 // how many bytes the client had accepted when its worker was last polled
}

// isWorking reports whether the server, or the proxy, is working for the client. It reports
// false while a write to the client is under way and the client has accepted no bytes since
// the last call: the client is the one that does not continue then. It also reports false while a
// refusal is being recorded. last holds how many bytes the client had accepted at the last call.
func (a *activity) isWorking(client link, last *atomic.Uint64) bool {
	if taken := socketBelow(client).Written(); a.writing.Load() && last.Swap(taken) == taken {
		return false
	}
	return !a.auditing.Load() && (a.busy.Load() || a.pending.Load())
}

// activitySince is Activity of a membership. last is as isWorking needs it.
func (x *session) activitySince(last *atomic.Uint64) (received uint64, owed bool) {
	received = socketBelow(x.client).Received()
	if !x.active.isWorking(x.client, last) {
		x.active.stuck.Store(false)
		return received, false
	}
	if x.canBePolled() {
		x.member.place.RequestPoll()
	}
	return received, !x.active.stuck.Load()
}

var _ workers.Session = (*session)(nil)

// canBePolled reports whether the session's startup is over and its candidacy is set. A
// shutdown can end the startup before the session has joined.
func (x *session) canBePolled() bool {
	return x.life.phase() != phaseStarting && x.member.state.Load() != outside
}

// Poll implements workers.Session.
func (x *session) Poll() (pid uint32, working bool) {
	if !x.canBePolled() {
		return 0, false
	}
	return x.backend.PID, x.active.isWorking(x.client, &x.active.takenAtPoll)
}

// SetStuck implements workers.Session.
func (x *session) SetStuck(stuck bool) { x.active.stuck.Store(stuck) }

// Fence implements workers.Session.
func (x *session) Fence() fencing.Fence { return x.member.candidacy().Fence() }

// update is called with x.mu held whenever the core has taken something.
func (x *session) update() {
	if works := x.m.Is(protocol.Working); works != x.active.pending.Load() {
		x.active.pending.Store(works)
		if !works {
			x.since = time.Now()
		}
	}
	if n := x.m.Transactions(); n != x.active.transactions.Load() {
		x.active.transactions.Store(n)
	}
}

// while sets a flag until the function that it returns is called.
func while(flag *atomic.Bool) (end func()) {
	flag.Store(true)
	return func() { flag.Store(false) }
}
