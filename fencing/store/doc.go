// Package store is the fence of one database, seen from the control connection:
// it registers resources, grants epochs, keeps the registry of backends that
// write outside the check, and reads the catalogue.
//
// # A grant
//
// fencepost.grant decides first, with the fence row locked, and makes nobody
// wait for an award that is refused. Then it queues for the resource's sequence
// behind the transactions that were checked under the old epoch. Beside it, on
// another connection, a watch ends those that outlast the grace. What cannot be
// ended (a superuser's backend, a prepared transaction) is reported at once, to
// the log and to Config.Blocked. When the grace is over it makes the watch cancel
// the grant, as a frozen process does, so that the leader's checks do not pile up
// after it; the error is an GrantBlockedError that names it.
//
// When Grant returns nil, the new epoch is on disk (and at the synchronous
// standbys), and no transaction that was checked under a lower one commits any
// more. When it returns an error other than a refusal, the epoch may have been
// recorded or not: the same award asked again tells, and returns the same epoch.
//
// # The operator's way back
//
// Two things can go back in time. When the database was restored from an older
// state, its epochs are lower than those that were granted: proxies that saw them
// are refused (ZF004) until RaiseEpochs puts every resource above them, under an
// epoch that nobody holds. When the lease service was restored or rebuilt, or
// another one is configured, its awards look older than the recorded ones (ZF006)
// until it has a new marker, which is numbered as a new generation when it is
// first seen, before the first bid under it; a grant under a marker without a
// number is refused (ZF007), so that no award of an older generation can pass for
// a newer one. BumpGeneration does the same for a marker that cannot change. Both are
// what `fencepost generation bump` is made of.
//
// # The catalogue
//
// Proven reads need to know what the database's names mean: fencing.Catalog is
// an allow-list of names under which nothing but harmless things exist, in
// whatever schema. It is read in one snapshot when it is first asked for. From
// then on the database is asked about once a second whether anything changed (3 ms
// of the server with 300 tables, 30 ms with 5000), and everything is read again
// when it did (20 ms, 120 ms). An answer older than five seconds proves nothing.
// So a name that is given another meaning is taken for what it was for a second,
// or five at most: for those who do not lead, read-only mode stands behind that.
//
// # Connections
//
// Four pools per database, all as the control role, with every setting pinned that
// a default of the role or the database could spoil, and 22 connections at most.
// They close after a minute without use. The pool that Pool returns (8) never waits
// for a lock of a fence, so that a lease that is renewed over it cannot starve after
// a grant. What reads a fence, or enters the registry (4), waits for its lock for 20
// ms at a time, and holds no connection in between.
//
// Grants have 8. While no more than 8 resources are being taken over, each grant
// stands in its sequence's queue until it has returned. When there are more, one
// that has waited for 100 ms leaves the queue for the next; it comes back when those
// that were in its way are gone. Its grace goes on meanwhile, and the two
// connections that watch over grants look, and end backends, for all of them.
package store
