// Package zookeeper implements the lease service with ZooKeeper, as a Store of package kv.
//
// # Znodes
//
//	/<prefix>/.generation/<marker>     the marker is the name of the only child
//	/<prefix>/.lives/<life>            ephemeral: a life, which goes on while it is there
//	/<prefix>/<database>/<resource>    the record of a lease
//
// A record names the life that holds the lease, and the version of its own data. An award is one
// multi that writes the record, and that fails unless the life and the marker are there. The name
// of a life is never used twice, so a late request of an old term finds nothing that it could
// disturb; the version of a znode, in contrast, begins at 0 again when the znode is made again. A
// lease is held while its record has the version that it names, and its life is there. So whatever
// an operator writes or deletes frees it. A record that is deleted, and then written as often as
// the one before, while somebody who has read that one is about to write, is taken for the same:
// the lease then changes hands, in order, and its holder notices when it renews it.
//
// # Order of awards
//
// The index of an award is the zxid of its transaction. It grows throughout the life of one
// ensemble, whatever happens to a znode, while versions and the numbers of sequential znodes begin
// anew. A restore repeats zxids, with the epoch in their upper half.
//
// # Sessions
//
// Lives whose TTL is the same share one session, with that TTL as its timeout, over one
// connection. The session stands for the proxy: it ends when the proxy dies. The client library
// keeps it alive by itself, so the store deletes lives that nobody has renewed for their TTL. The
// library would begin another session on the same connection after the old one has expired; here
// it cannot. A connection has one session, and what is asked over it is done in that session, or
// not at all.
//
// The library sends the highest zxid that it has seen when it connects, and an ensemble that was
// restored to an older state would refuse it for as long as it has not passed that. It is not sent
// here: what is decided rests on writes, and on reads after a sync. If the restored ensemble still
// knows the session, it may have lives again that ended after the backup. The store deletes those
// too.
//
// # Time
//
// The ensemble's leader counts a session's timeout, and rounds its end up to a tick. A new leader,
// or a restart, begins it anew, so it is a lower bound only. The servers grant a timeout between
// two and twenty ticks (4 s and 40 s by default). A renewal is a multi that checks the life, which a
// quorum has to accept, and then a read of the record. A read after a sync may come from a leader
// that has lost its quorum and not noticed yet; one after a write in the same session shows no less
// than that write rests on.
//
// A follower tells the leader every half tick whose sessions are alive. A transaction that it passes
// on does not: the leader's checkSession leaves the session's end as it is (3.8). If the follower
// dies before it has told, a session that has renewed its leases ends as if it had not, up to a third
// of its timeout earlier. Only the fence keeps two terms apart then.
//
// # Permissions
//
// With a user or a client certificate, all znodes are made for that identity alone; otherwise for
// everybody. It needs all permissions but admin on the prefix, or create on / to make it.
package zookeeper
