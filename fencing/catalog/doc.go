// Package catalog reads what the names of a database mean, which proofs that a read is harmless rest on (package
// sqltext).
//
// fencing.Catalog is an allow-list of names under which only harmless things exist, in any schema. It is read
// in one snapshot when it is first used. From then on the database is asked about once
// a second whether anything has changed (3 ms of server time with 300 tables, 30 ms
// with 5000), and everything is read again if so (20 ms, 120 ms). An answer older than
// five seconds proves nothing. So a name whose meaning changes is trusted with its old
// meaning for one second, or at most five. Read-only mode still protects against writes
// by a connection that does not lead.
package catalog
