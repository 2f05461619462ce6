// Package fencing is the domain of Fencepost: its vocabulary, the interfaces through which its parts interact, and the
// errors that a client sees. It depends on nothing but the standard library.
//
// # The promise
//
// A worker connects to Fencepost as if it were Postgres. Fencepost holds a lease for
// the worker and gives it an epoch, and Postgres lets only backends write that are registered
// under the highest epoch recorded in the fence table: a grant of the next epoch ends them.
//
//   - G1, fencing. Once a grant of epoch e' on a resource has returned, no transaction
//     that wrote through Fencepost under e < e' commits any more; every one that did
//     commit is visible to the new holder's first snapshot.
//   - G2, order. Epochs on a resource only grow, in the order in which the lease
//     service awarded the lease.
//   - G3, announcement. A connection writes only under the epoch that was last
//     announced to it, and only in a transaction that began under that epoch.
//   - G4, fail closed. What cannot be fenced is refused, with its own SQLSTATE. Safety
//     never depends on guessing what a statement does.
//
// Not promised: writes that do not pass through the proxy; effects outside this
// Postgres, including notifications; snapshots that a client imports; what a process or its
// pool carries in memory from one connection to the next; drivers that pipeline a write before
// reading the previous response; a superuser, or a user who deliberately attacks the fence from
// inside the server; a grant lost in an asynchronous failover of Postgres.
//
// Time (TTLs, deadlines, timeouts) only decides who may try to lead, and stops a worker
// early. The registry, and that a grant ends what is in it, are the guarantee.
//
// # Glossary
//
// These words are used throughout; synonyms are not.
//
//   - resource: what only one worker at a time may write. It is a row of the fence
//     table.
//   - worker: a process that wants to write a resource. Its connections share an id, which
//     must be different each time the process starts.
//   - lease: the right to try to lead. A lease service (the provider) awards it until
//     it is released or expires. A lease service never decides who may write.
//   - candidacy: one attempt of a worker to lead a resource of one database through one
//     proxy, with at most one lease. Its incarnation is its random id, from which another
//     proxy can tell whether it is one of the same worker and role.
//   - campaign: to ask for the lease until the candidacy has it.
//   - bid: one such request.
//   - award: the provider's decision to give the lease to one candidacy. Awards are
//     ordered.
//   - epoch: the fencing token of a resource, a bigint. It grows with each grant; 0 means
//     none.
//   - grant: to record a new epoch for an award. Afterwards no transaction of an older
//     epoch commits, because their backends are gone. The ledger keeps all grants.
//   - hold: to have a lease that was awarded, or an epoch that was granted.
//   - fence: the row of a resource that holds its epoch. The rows are the
//     fence table.
//   - term: what a proxy knows about a lease that it holds.
//   - false alarm: a lease that was released because its worker seemed unresponsive, although
//     the worker became active again before anyone else was granted an epoch.
//   - heartbeat: whatever a worker sends to keep its promise to send something at regular
//     times.
//   - status: the state of a candidacy (Status): its role and its epoch.
//   - announce: to let a connection know the epoch under which it may write. That
//     connection, and its worker, then know it.
//   - stale: below the highest recorded epoch. A worker whose epoch is stale is
//     superseded.
//   - registered: of a backend, that it is in the backend registry under an epoch, so that it may
//     write and a grant of another epoch ends it. A leader's is registered once, for as long as it
//     lives. The session registers it at rest.
//   - at rest: of a session, that the server has answered everything, is outside a transaction,
//     and has been sent nothing since.
//   - relay: to pass a session's messages as they are, with nothing put in between. A session is
//     relayed while its backend is registered for as long as it lives, or if it may write unfenced.
//   - drain: what a grant does before it records its epoch: it asks the proxies to end their
//     registered sessions at rest, ends the backends that are left, and waits until they are gone.
//   - settled: of a session, that it is not relayed. The server itself keeps it read-only, and one
//     exchange follows another.
//   - backend registry: the backends that may write. A grant ends them. An entry names the fence, the epoch, the
//     backend by its process id and start, and a number of its own.
//   - instance: of a lease service, what it is from when it was built or restored until it is built or restored
//     again. Its awards are ordered within one instance only.
//   - marker: the key or row in which a lease service keeps its instance id, which is another one in each instance
//     that is known to be one.
//   - generation: the number of the instance in which an award was made; see Award.InstanceID.
//   - order: what an operator has had the fence do: evict a worker, pause or resume a
//     resource, hand one over, remove one, prune the ledger. The database keeps all orders.
//   - bar: an order that keeps a worker, or everyone, from being granted an epoch.
//   - offer: an order that hands a resource over to one worker: for a while no one else is
//     granted an epoch, and the leader stops for it.
//   - catalog: a snapshot of the objects that names in a database refer to. Reads are
//     proven harmless from it.
//
// # Layout
//
// Package proxy speaks the protocol and registers backends; package election holds the
// leases. They do not import each other and interact through Candidates, Candidacy and
// Member. Package fencing/fence implements Fence in PostgreSQL. Package fencing/sqltext
// analyses SQL text.
package fencing
