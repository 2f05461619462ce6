// Package fencing is the domain of Fencepost: its words, the interfaces in which
// its parts meet, the SQL text of the check, and the refusals that a client sees.
// It needs nothing but the standard library.
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
// # Glossary
//
// These words are used everywhere, and no synonyms of them.
//
//   - resource: what one worker at a time may write. It is a row of the fence table.
//   - worker: a process that wants to write a resource. Its connections share an id.
//   - lease: the right to try, given by a lease service (the provider) until it is
//     released or expires. A lease service never decides who may write.
//   - candidacy: one attempt of a worker to lead a resource through one proxy, with
//     one lease at most. Its incarnation is its random id.
//   - campaign: to ask for the lease until the candidacy has it.
//   - award: what the provider gives to one candidacy; awards are ordered.
//   - epoch: the fencing token of a resource. It grows with each grant.
//   - grant: to record a new epoch for an award. Afterwards no transaction of an
//     older epoch commits. The ledger keeps all grants.
//   - fence: the row and the sequence of a resource that hold its epoch.
//   - term: what a proxy knows of a lease that it holds.
//   - status: where a candidacy stands (Status): its role and its epoch.
//   - announce: to let a connection know the epoch under which it may write.
//   - stale: of an epoch below the highest recorded one. A worker whose epoch is
//     stale is superseded.
//   - check: the statement that the proxy injects into a transaction, and that fails
//     unless the announced epoch is the current one. A transaction's coverage is what
//     was injected into it: nothing, read-only mode, or the check.
//   - backend registry: the backends that may write outside the check. A grant ends
//     them.
//   - generation: which life of a lease service an award comes from; see
//     Award.InstanceID.
//   - catalog: what a database's names mean, from which reads are proven to be
//     nothing but reads.
//
// # Where things are
//
// Package proxy speaks the protocol and injects the check; package election holds the
// leases. They do not import each other: they meet in Candidates, Candidacy and Member.
// Package fencing/store implements Fence in PostgreSQL, and fencing/sqltext says what
// a SQL text does.
package fencing
