// Package fence is the fences of a database: it creates them, registers backends, grants epochs, and says what a grant
// waits for. It does so on control connections (package store). A Database is the fences of one database, and a Fence
// is that of one resource.
//
// # The registry
//
// fencepost.running has the backends that may write, each under an epoch. RegisterBackend adds one by a statement that
// commits by itself: it locks the fence's row FOR KEY SHARE, compares the epochs, and inserts. Backends that come
// together share a statement (registry.go). If there is no answer, the backend does not count as registered, and its
// entry is left: a grant then ends the backend. Each entry has a random number, and UnregisterBackend deletes the entry
// of that number and no other. It is for sessions at rest that discard from then on, or bring another token; all other
// entries are deleted by the next grant, or by a sweep of backends that are gone. Unregistered says which entries are
// missing.
//
// # Grants
//
// fencepost.grant first locks the fence's row FOR NO KEY UPDATE and decides; an award that is refused makes no one
// wait. Then it locks the row FOR UPDATE, for which it waits until the registrations that are under way and the
// transactions that write under fencepost.claim have ended. Meanwhile a watch on another connection terminates those
// that outlast the grace. When it has the lock, it drains the registry (fencepost.drain): it says that it waits
// (drains.go notifies this proxy and the others, which end sessions at rest), ends what is idle 250 ms later and what
// works after the grace, and returns when all of them are gone. If it may not end one of them, it ends none. What the
// control role cannot terminate (a superuser's backend, a prepared transaction) is reported at once, to the log and to
// Config.Blocked. If it is still there when the grace has passed, or if a terminated backend does not go away (a frozen
// process), the watch cancels the grant, so that the registrations do not queue up after it. The error is then a
// GrantBlockedError that names the obstacles.
//
// When Grant returns nil, the new epoch is on disk (and on the synchronous standbys), and no backend that was
// registered under a lower epoch is left, so that none of its transactions commits any more. When it returns an error
// other than a refusal, the epoch may or may not have been recorded: asking again with the same award settles that, and
// returns the same epoch.
//
// A grant whose wait for the synchronous standbys was cancelled can be read on the primary, and is
// lost in a failover to one of them. So Record says whether the grant that it returns is known to be
// confirmed: because this Database was granted it, or because it has read it again in a
// transaction of its own that wrote to the write-ahead log, and whose commit the standbys have
// confirmed. Without synchronous standbys, every grant counts as confirmed, and nothing is written.
//
// # Connections
//
// A Database has two pools, with at most 22 connections in total. The pool that Pool returns (8) never waits for a
// fence's lock, so lease renewals that use it cannot starve because of a grant; at most one of its connections waits
// for a synchronous standby, for at most 5 s at a time (see durable.go). The other pool is for what follows. Statements
// that read a fence or enter the registry (4) wait for its lock for 20 ms at a time, and hold no connection in between.
//
// Grants have 8 connections. While no more than 8 resources are being taken over, each grant waits in the server until
// it returns. If there are more, a grant that has waited for 100 ms gives its turn to the next one, and waits for
// another turn. Its grace keeps running meanwhile. The remaining two connections poll for all grants and terminate
// backends.
package fence
