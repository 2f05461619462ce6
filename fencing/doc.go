// Package fencing is the pure core of Fencepost: it decides, and does nothing.
//
// # The promise
//
// A worker connects to Fencepost as if it were Postgres. Fencepost holds a
// lease for it, gives it an epoch, and lets its writes through only while that
// epoch is the highest one recorded in the fence table.
//
//   - G1, fencing. When a grant of epoch e' on a resource has returned, no
//     transaction that wrote through Fencepost under e < e' commits any more;
//     every one that did commit is visible to the new holder's first snapshot.
//   - G2, order. Epochs on a resource only grow, in the order in which the
//     lease service awarded the lease.
//   - G3, told. A connection writes only under the epoch that it was last told,
//     and only in a transaction that began under it.
//   - G4, closed. What cannot be checked is refused, with its own SQLSTATE.
//     Safety never rests on guessing what a statement does.
//
// Not promised: writes that never pass the proxy; effects outside this
// Postgres, notifications among them; what a process or its pool carries in
// memory from one connection to the next; drivers that queue writes before they
// read the answer; a user who attacks the check on purpose from inside the
// server; a grant lost by an asynchronous failover of Postgres.
//
// Time (TTL, deadlines, silence) only decides who may try, and stops a worker
// early. The check inside the write's own transaction is the guarantee.
//
// # What is in here
//
// The words (Epoch, Term, Standing), the interfaces in which proxy and election
// meet without importing each other (Candidates, Candidacy, Member, Fence), the
// SQL text of the check, the classification of SQL text, and the refusals that
// a client sees. No I/O, no clock, no goroutine: all of that is in
// fencing/store, election and proxy.
package fencing
