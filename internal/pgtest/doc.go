// Package pgtest runs real PostgreSQL servers for tests.
//
// Shared is one server per test process, started on first use. Start returns a server
// for one test, to crash, restart or restore. Both listen on a free port of 127.0.0.1
// and keep their data in a temporary directory, which is in memory if there is enough
// (TMPDIR is respected). They end with the test process, even if that is killed. A
// missing server fails the test: nothing here ever skips.
//
// Every server has these roles: Superuser; Control, which owns the schema fencepost and
// may end other roles' backends, but is not a superuser; App, a plain role that may
// create tables in the schema public of the databases created here; and cleartext_user,
// md5_user and scram_user, which must authenticate with Password by the method in their
// name. All others are trusted. It also has the database Template. Both come from the image of a
// data directory in .cache/initdb, from which every server begins.
package pgtest
