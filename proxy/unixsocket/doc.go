// Package unixsocket listens for clients on a Unix socket, as Postgres does at
// /run/postgresql/.s.PGSQL.5432.
//
// A socket file outlives a process that was killed. Listen replaces such a file, and refuses
// one that a living process listens on. The file is removed when the listener is closed,
// unless someone else's has its name by then.
//
// A local client has no address of its own. Its connection's remote address is a Peer, which
// says which process it is where the system provides that.
package unixsocket
