// Package raft awards leases by Raft among the proxies themselves, as a Service of package standstill. No
// other server runs: three or more proxies are the nodes, each with a stable name and a disk of
// its own.
//
// # Records
//
// Package state is the replicated state machine: records of leases by key, and a marker. Every
// award, renewal and release is an entry of Raft's log, so that a quorum has it before anyone
// counts on it. A node that does not lead passes a request on to the leader. A new leader extends nothing, and
// has no timers to take over.
//
// # Order of awards
//
// The index of an award is the index of its entry in Raft's log. It grows as long as no voter
// forgets what it has acknowledged. A voter that lost its disk would forget, so a node never
// starts with an empty directory: Bootstrap or Add makes one, once, and New refuses any other. A
// member is a name and the directory that was made for it, so that a process that continues with a
// directory that was deleted is no member, although another one with its name is. A restore of all
// nodes repeats indexes; the marker comes back with them.
//
// # Members
//
// A change of the members is in force at the leader before it is committed. The leader therefore
// asks the voters first: a change that no majority of the new voters can commit would be the end of
// the cluster.
//
// # Time
//
// No node measures a TTL for another one (see package standstill). A TTL is at least three heartbeat
// timeouts, because otherwise every election of Raft's could cost all leases.
//
// # Reads
//
// What decides goes to Raft's leader, which proves with an entry of its own (Barrier) that it still
// leads, and that it has applied everything that was committed before. A leader that was frozen believes in its
// old state until then. A watch begins with such a proof, and continues without one: it says when a read is due,
// and decides nothing.
//
// # Repeats
//
// What is sent to the leader may be carried out although no answer comes (ErrLeadershipLost). It
// is sent again until it is answered or the caller gives up. The state machine applies a repeated command at
// most once.
//
// # Connections
//
// Raft and the requests of other proxies and of commands share one port, with TLS in which both
// sides show a certificate of the same authority. The protocol that they negotiate (ALPN) distinguishes
// them apart. The name of Raft's contains the ids of the cluster and of the directory of the node
// that is meant, so that nodes of two clusters cannot mix. Whoever has a certificate of the authority may do
// everything.
package raft
