// Package election keeps candidacies: it campaigns for a lease on behalf of a
// worker, renews it, turns an award into an epoch, and stops in time.
//
// # Who decides what
//
// The lease service (a Provider) decides who may try: it awards the lease to
// one candidacy at a time and orders its awards. The fence table decides who
// leads: a grant records a higher epoch there, in the order of the awards. This
// package only connects the two, and tells the proxy where a worker stands.
// Nothing in it can let a stale write pass: the check inside the write's own
// transaction is the guarantee, and all time below only stops a worker early.
//
// # The candidacy
//
// A candidacy is one worker's standing for one resource of one database at one
// proxy, shared by that worker's connections (its members).
//
//	            award + grant                 another was granted
//	following ----------------> leading -----------------------------+
//	    ^                        |   ^                               |
//	    |      deadline, loss,   v   | confirmed, or taken again     v
//	    |      silence         lapsed (epoch kept) --------------> superseded
//	    |                                                            |
//	    +----- connecting again begins a new candidacy <-------------+
//
// It has at most one epoch in its life. Once superseded it is over for good;
// connecting again begins a new candidacy with a new incarnation.
//
// # Trust
//
//	trusted until = reading of CLOCK_BOOTTIME before the last successful
//	                renewal was sent + TTL - margin
//
// The reading is taken before the request is sent, because the lease service
// may have begun to count the moment the request arrived, however late its
// reply came. CLOCK_BOOTTIME goes on while the machine is suspended. A
// definitive loss (ErrLost) ends the trust at once; any other error means
// unknown, and changes nothing until the deadline. Past the deadline the
// candidacy is lapsed: it does not lead until the lease is confirmed again.
//
// # Silence
//
// The worker must live, not only its socket: a frozen process keeps its TCP
// connection. Signs of life are bytes from the client, and a server that is known
// to work for it: not one that waits for the client's next message, for the rest
// of one, or for a lock of another connection of the same worker, and not one
// whose replies the client does not take. After the worker timeout without a sign
// the lease is
// released "for silence" and the epoch is kept. If the worker comes back and
// nobody else was granted an epoch, the lease is taken again under the same
// epoch, unnoticed; that is a false alarm, and doubles the timeout of that worker
// for a day, so that a slow but healthy worker is not robbed for ever. It belongs
// to the worker's id, and survives its candidacy, because a worker that was
// superseded connects again. Others wait no longer for it: the timeout is doubled
// up to sixteen times what was asked for, and up to Settings.MaxWorkerTimeout.
// A lease freed by its holder or by the holder's death is taken at once by any
// live candidate; one freed by silence only on demand: a write that would be
// refused, a question for the role, a worker that waits to lead, a first
// connect. So idle workers do not trade it to and fro.
//
// # No lease without a leader
//
// A lease that nobody knows of keeps a resource without a leader for a TTL. So a
// request that may take a lease is never cancelled because its worker has gone:
// the candidacy waits for the answer, and gives the lease back. If there is no
// answer, the candidacy releases whatever the request got or may get yet, and
// the provider sees to it that the request takes nothing when it arrives after
// that. A release is tried until it succeeds, or until the lease must have ended
// by itself.
//
// # Goroutines
//
// Each candidacy has one goroutine, its loop; the loop starts each request to
// the lease service or the fence in a goroutine of its own and waits for all of
// them before it ends. Each resource has one goroutine that watches its lease; it
// ends, and the resource is forgotten, when there was no candidacy for
// Config.Idle. Elections owns them all: Close waits for them.
//
// # Who may
//
// Settings.Users says who may campaign, and Settings.MaxWorkerTimeout what a claim
// may ask for. A worker id names one process: of one role, from one address. Who
// campaigns under it from elsewhere meanwhile is refused, unless the first one is
// silent; then its client may be dead, and both have candidacies, of which the
// fence lets one write. An observer from elsewhere has one of its own.
//
// # Order of awards, per provider
//
// The marker names a life of the lease service, within which the index counts.
// The fence numbers the lives, each before anybody bids under it; an award of
// another life than the one that was numbered before the bid is given back.
//
//	provider  marker (a life of the service)       index (order within it)
//	postgres  random text, made by the migration   sequence, never below what the fence recorded
//	consul    random value of <prefix>/.generation ModifyIndex of the lock's first acquire
package election
