// Package console lets operators look at a running proxy with psql, or with any driver, as they do with
// PgBouncer: they connect to a database of Fencepost's own, and ask with SHOW. Nothing that they send changes
// anything, and nothing of it reaches Postgres.
//
// read.go says what a text asks for, without I/O. session.go is the protocol, and login.go the authentication
// (SCRAM-SHA-256). What there is to be shown is the caller's (Command).
package console
