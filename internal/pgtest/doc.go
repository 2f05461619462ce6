// Package pgtest gives tests real PostgreSQL servers.
//
// Shared is one server per test process, started on first use; Start is a
// server of the test's own, to crash, restart or restore. Both listen on a free
// port of 127.0.0.1, keep their data in a temporary directory, in memory where
// there is plenty (TMPDIR is respected), and end with the test process even if
// that is killed. A missing server fails the test: nothing here ever skips.
//
// The roles of every server: Superuser; Control, which owns the schema
// fencepost and may end other roles' backends, but is no superuser; App, a plain
// role that may create tables in the schema public of the databases made here;
// and cleartext_user, md5_user and scram_user, which must give Password by the
// method in their name. All others are trusted.
package pgtest
