// Package zookeeper implements the lease service with ZooKeeper, as a Service of package standstill.
//
// # Znodes
//
//	/<prefix>/.generation              its data are the marker
//	/<prefix>/<database>/<resource>    the record of a lease
//
// A write names the version of the data that it replaces. The version begins at 0 again when a znode is made
// again. So a record that is deleted, and then written as often as the one before, while someone who has read
// that one is about to write, is taken for the same: the lease then changes hands, in order, and its holder
// notices when it renews it.
//
// # Order of awards
//
// The version of a write is the zxid of its transaction. It grows throughout the life of one
// ensemble, whatever happens to a znode, while versions and the numbers of sequential znodes begin
// anew. A restore repeats zxids, with the epoch in their upper half.
//
// # Sessions
//
// Nothing rests on a session. Requests share one connection of the library, which connects again by itself. The
// library sends the highest zxid that it has seen when it connects, and an ensemble that was restored to an older
// state refuses it for as long as it has not passed that; a connection that is refused for a while is replaced by
// a new one.
//
// # Reads
//
// What decides is read after a sync. It may still come from a leader that has lost its quorum and not noticed
// yet; a write that rests on it is refused then.
//
// # Permissions
//
// With a user or a client certificate, all znodes are made for that identity alone; otherwise for
// everyone. It needs all permissions but admin on the prefix, or create on / to make it.
package zookeeper
