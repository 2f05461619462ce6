// Package election runs candidacies: on behalf of a worker it campaigns for a lease,
// renews it, turns an award into an epoch, and stops in time.
//
// # Who decides what
//
// The lease service (a Provider) decides who may try: it awards the lease to one
// candidacy at a time and orders its awards. The fence table decides who leads: a grant
// records a higher epoch there, in the order of the awards. This package only connects
// the two, and reports each candidacy's status to the proxy. No error in it can let a
// stale write pass: the grant ends the backends that are registered under an older epoch
// before it records the next one, and all deadlines below only stop a worker early.
//
// # Drains
//
// A grant that waits for registered backends says so, in this process (Elections.Draining) and by a
// notification to the other proxies (Backend.FollowDrains). Their candidacies then notify their members
// (Member.EpochEnds), which end their sessions at rest. Nothing depends on that: the grant ends
// every session that was not notified. See drains.go.
//
// # The candidacy
//
// A candidacy is one worker's attempt to lead one resource of one database through one
// proxy. That worker's connections (its members) share it.
//
//	            award + grant                 another candidacy granted
//	following ----------------> leading -----------------------------+
//	    ^                        |   ^                               |
//	    |      deadline, loss,   v   | confirmed, or reacquired      v
//	    |      silence         lapsed (epoch kept) --------------> superseded
//	    |                                                            |
//	    +----- reconnecting starts a new candidacy <-----------------+
//
// A candidacy leads under at most one epoch. One that was recorded for it and under which it
// has never led, because the grant was cancelled or its response was lost or late, does not
// count: the next one is its first. Being superseded is final; connecting again starts a new
// candidacy with a new incarnation. phase.go says how each phase begins and ends, including the
// rarer ways that the diagram leaves out.
//
// # Trust
//
//	trusted until = reading of CLOCK_BOOTTIME before the last successful
//	                renewal was sent + 9/10 of the TTL
//
// The reading is taken before the request is sent, because the lease service may start
// the TTL the moment the request arrives, however late its reply comes. CLOCK_BOOTTIME
// keeps running while the machine is suspended. A definitive loss (ErrLost) ends the
// trust at once. Any other error means that the outcome is unknown, and changes nothing
// until the deadline. After the deadline the candidacy is lapsed: it does not lead
// until the lease is confirmed again.
//
// # Liveness
//
// The worker itself must be responsive, not only its socket: a frozen process keeps its
// TCP connection. Signs of activity are bytes from the client, and a server that is
// working for the client. A server is not working for it while it waits for the
// client's next message, for the rest of one, or for a lock of another connection of
// the same worker, nor while the client does not read its replies.
//
// After the worker timeout without a sign of activity, the lease is released as
// unresponsive and the epoch is kept. If the worker becomes active again and no one
// else has been granted an epoch, the lease is acquired again under the same epoch, and
// the worker notices nothing. That is a false alarm. It doubles the worker's timeout,
// so that a slow but healthy worker does not lose its lease again and again. The longer
// timeout belongs to the worker's id and outlives its candidacy, because a worker may
// connect again. It is limited to Settings.MaxTimeoutFactor times the requested timeout
// and to Settings.MaxWorkerTimeout, and it ends an hour after the last false alarm. A
// worker that comes back after someone else was granted an epoch was rightly replaced:
// that changes no timeout.
//
// A worker that promises heartbeats (fencing.JoinRequest.Heartbeat) is found sooner: a heartbeat that
// is some seconds late shortens the timeout. False alarms extend that as well, and what follows is the same.
//
// A lease that was freed because its holder left or died is acquired at once by any
// live candidate. One that was released as unresponsive is acquired only on demand: for
// a write that would otherwise be refused, for a query of the role, for a worker that
// waits to lead, or for a first connect. So idle workers do not pass the lease back and
// forth.
//
// # Who leads
//
// A resource is led while a candidacy that was granted the recorded epoch holds the lease,
// and the lease is confirmed: by this proxy's own renewals, or by what the watch shows of
// another proxy's. Package status says what it is otherwise. A resource whose last candidacy
// here has ended is still looked at from time to time until it is forgotten.
//
// # Orders of an operator
//
// An operator can take the lead from a worker, bar one or everyone from leading, and
// remove a resource, through the database (see package operator). While a database has
// candidacies, one goroutine asks it once a second for new orders. An order makes its
// resource read the record, so that even an idle leader is superseded and its lease
// released. A candidacy whose grant an order forbids releases the lease, and tries again
// when the bar ends, after half a minute, or at the next order, whichever is first.
// AwaitLeader returns the bar as an error, and writes are refused with it. A candidacy
// whose resource was removed is superseded, so that its members connect again.
//
// An order that hands a resource over makes an offer to one worker. Until it runs out, or there is a new
// epoch, the candidacies of other workers leave the lease alone, and the one that leads releases it at
// the time that the offer says; handover.go and package offer have the rest. The same goroutine records
// in the database which workers campaign here, among which an operator chooses.
//
// The same statement says which resources guard tables. Under "fence: tables", the writes of a worker that has
// never had an epoch are left to these guards.
//
// # No lease without a leader
//
// A lease that no one knows about leaves a resource without a leader for a TTL. So a
// request that may acquire a lease is never cancelled because its worker has gone: the
// candidacy waits for the response and releases the lease. If there is no response, the
// candidacy releases whatever the request got or may still get, and the provider makes
// sure that the request acquires nothing if it arrives later. A release is retried
// until it succeeds, or until the lease must have expired.
//
// A leader whose proxy cannot reach the database does not lead either, although the lease service
// confirms its lease. So that lease is released, too; reach.go says when.
//
// # The loop
//
// A candidacy is read along its loop (loop.go). Each step
//
//	observes  observe.go   what the worker does, and what the resource looks like
//	decides   decide.go    state.next says what is due; it is pure
//	requests  request.go   from the lease service and the fence, each in a goroutine of its own
//
// and waits for the next event, which may be the result of a request (result.go).
//
// # Goroutines and locks
//
// Elections owns all goroutines: Close waits for them.
//
//   - One samples the workers of all candidacies, and wakes the loops that have something to do (liveness.go).
//   - Each candidacy has one, its loop. It starts one for each request, and ends after them.
//   - Each resource has one that watches its lease (watch.go). It ends, and the resource is
//     forgotten, when there has been no candidacy for Config.Idle.
//   - Each database has one that reads its orders while it has candidacies, and for a second after that (orders.go).
//   - A note of what has become of a hand-over or a grant, and the opening of a database, has one of its own.
//
// There are two locks. Elections.mu guards which databases and resources there are, and resource.mu what is known of
// one resource, with its candidacies: whoever has it sees all of them at one moment. Elections.mu comes first
// (internal/lockorder), and neither is held during a request, or while a member is called, except for Member.Activity.
//
// # Admission
//
// Settings.Users says who may campaign, and Settings.MaxWorkerTimeout limits the worker
// timeout that a client may request. A worker id names one process: it belongs to one
// role at one address. Another role or address that campaigns under the same id is
// refused, unless the first worker is unresponsive. In that case the first client may
// be dead, so both have candidacies, and the fence lets only one of them write. An
// observer from another address has a candidacy of its own.
//
// # Own lease
//
// A worker whose proxy was killed connects through another one, within milliseconds, and the lease
// service still keeps the lease for its former candidacy. The new candidacy recognises that by the
// incarnation that holds the lease (package own), and asks the database whether the proxy of that
// candidacy still has connections to it (Presence). If it has none, the proxy is gone, and the
// candidacy takes the lease away: a request with AcquireRequest.From gets a new award, provided that
// the lease is still as it was seen. The grant then supersedes the former candidacy, as in any
// takeover, so that a proxy which was taken for gone by mistake costs its workers a lead and nothing
// else. While the proxy has connections, the lease is held as any other, and the candidacy looks
// again at most 500 ms later. Its first attempt waits 500 ms for the answer, because the worker may
// be faster than the end of the connections. So two processes with one id do not trade the lease: the
// second one takes it when the proxy of the first is gone, and is refused until then. reclaim.go
// has the details.
//
// # Passing on
//
// In an upgrade in place, another process continues a candidacy that leads: PassOn describes it, and Adopt has a candidacy
// of that process take its place, under the same incarnation, epoch and lease. Both are held meanwhile: they ask for
// nothing. One process has the lease at each moment, and the other one leaves it as it is. passing.go has the details.
//
// # Tokens
//
// Where workers are elected elsewhere (TokenProvider), a candidacy brings a token. It holds a "lease" for as long as
// the generation of its token lasts, and does not care who else does: the grant decides, whose award is the token. All
// candidacies with one token have one incarnation, so they are granted one epoch. After an operator's order that ends
// the epoch and not the token, later candidacies are granted another one, and the earlier ones are superseded. A grant
// that is refused because its award is not newer supersedes the candidacy, since its token will never be high enough.
//
// # Order of awards, per provider
//
// The instance id identifies one instance of the lease service, within which the index
// counts. The fence numbers the instances, each before anyone asks for a lease under
// it. If the service changes to another instance between the numbering and the award,
// the lease is released.
//
//	provider    instance id                          index (order within the instance)
//	postgres    random text, made by the migration   sequence, never below what the fence recorded
//	token       a generation of tokens, begun by an operator  the token that the worker brings
//	consul      random value of <prefix>/.generation ModifyIndex of the locked record
//	etcd        random value of <prefix>/.generation revision of the transaction that awards the lease
//	raft        random text in the log               index in Raft's log of the entry that awards the lease
//	redis       random value of <prefix>/.generation, and the master's replication id  counter in <prefix>/.generation
//	kubernetes  random value of <prefix>.generation  resourceVersion of the write that awards the lease
//	anyone      its name                             sequence of the embedded elector; it is not for use
//	zookeeper   random name below <prefix>/.generation zxid of the transaction that awards the lease
package election
