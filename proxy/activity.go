package proxy

import (
	"sync/atomic"

	"github.com/fencepost/fencepost/proxy/protocol"
)

// activity is what the candidacy's loop must know about a session. The session keeps it in
// atomics, because the loop also starts renewals and must never wait for a session's lock.
type activity struct {
	reads   atomic.Uint64 // number of reads that returned bytes from the client
	pending atomic.Bool   // the machine expects a reply of the server
	// busy: the proxy itself does something for the client, for a bounded time (the startup,
	// for example), or the up pump waits because the server accepts no more bytes or has too
	// many replies pending.
	busy    atomic.Bool
	writing atomic.Bool // a write to the client is under way
	stuck   atomic.Bool // when its crew was last polled, the server waited for the worker itself

	// taken and takenByCrew are how many bytes the client had accepted when Activity and
	// the poll of its crew last called works.
	taken, takenByCrew atomic.Uint64
}

// works reports whether the server, or the proxy, is working for the client. It reports
// false while a write to the client is under way and the client has accepted no bytes since
// the last call: the client is the one that does not continue then. last holds how many
// bytes it had accepted at the last call.
func (a *activity) works(client link, last *atomic.Uint64) bool {
	if taken := socketBelow(client).Written(); a.writing.Load() && last.Swap(taken) == taken {
		return false
	}
	return a.busy.Load() || a.pending.Load()
}

// Activity implements fencing.Member. It does not block.
func (x *session) Activity() (reads uint64, owed bool) {
	return x.activitySince(&x.active.taken)
}

// activitySince is Activity for the candidacy whose last call has left last, as works needs it.
func (x *session) activitySince(last *atomic.Uint64) (reads uint64, owed bool) {
	reads = x.active.reads.Load()
	if !x.active.works(x.client, last) {
		x.active.stuck.Store(false)
		return reads, false
	}
	x.srv.crews.ask(x)
	return reads, !x.active.stuck.Load()
}

// updatePending is called with x.mu held whenever the machine has taken something.
func (x *session) updatePending() { x.active.pending.Store(x.m.Is(protocol.Working)) }

// while sets a flag until the function that it returns is called.
func while(flag *atomic.Bool) (end func()) {
	flag.Store(true)
	return func() { flag.Store(false) }
}
