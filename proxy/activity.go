package proxy

import "sync/atomic"

// activity is what the candidacy's loop asks of a session, as atomics that the
// pumps keep: the loop also starts renewals, so it must never wait for a session
// that is at work for its client.
type activity struct {
	reads   atomic.Uint64 // reads that returned bytes of the client's
	pending atomic.Bool   // the server works for the client, as the machine knows
	// busy: the proxy itself does something for the client, for a bounded time (its startup
	// is such a time), or the server does not take what it is sent, or answers too slowly
	// to be sent more.
	busy    atomic.Bool
	writing atomic.Bool // a write to the client is under way
	stuck   atomic.Bool // the server waits for the worker itself, as its crew was last seen

	// taken and takenByCrew are the bytes that the client had taken when Activity
	// and its crew last looked.
	taken, takenByCrew atomic.Uint64
}

// works reports whether the server is working for the client. A client that does
// not take what is written to it is not waited for, however much is left to
// send; last is what it had taken at the last call.
func (a *activity) works(client link, last *atomic.Uint64) bool {
	if taken := socketBelow(client).Written(); a.writing.Load() && last.Swap(taken) == taken {
		return false
	}
	return a.busy.Load() || a.pending.Load()
}

// Activity implements fencing.Member.
func (x *session) Activity() (reads uint64, owed bool) {
	reads = x.active.reads.Load()
	if !x.active.works(x.client, &x.active.taken) {
		x.active.stuck.Store(false)
		return reads, false
	}
	x.srv.crews.ask(x)
	return reads, !x.active.stuck.Load()
}

// updatePending is called with x.mu held whenever the machine has taken something.
func (x *session) updatePending() { x.active.pending.Store(x.m.Owes()) }

// while sets a flag until the function that it returns is called.
func while(flag *atomic.Bool) (end func()) {
	flag.Store(true)
	return func() { flag.Store(false) }
}
