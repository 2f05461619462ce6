// Package proxy runs the sessions: it accepts clients, connects each to Postgres, joins
// the candidacy of its worker, and moves the bytes of both sides through the machine of
// package protocol, which puts the check in front of every transaction.
//
// # One session
//
//	client ──bytes──▶ up ──▶ FromClient ──plan──▶ server
//	client ◀──plan── FromServer ◀── down ◀──bytes── server
//	                      │
//	                 FIFO of replies: each entry the client's or ours
//
// The machine is pure: bytes of either side go in, a plan comes out (ranges to
// forward, bytes to insert, ranges to drop, what is owed). Two goroutines, up
// and down, stand for the two directions; while one of them would only wait, the
// event loop of package netloop moves the bytes in its place. Each read is scanned
// in place and answered by at most one write. The session owns both goroutines and
// waits for them.
//
// # What goes in front of a message
//
//   - extended protocol: Bind, Execute, Close of a named portal of a statement
//     prepared once under a random name, in the same write as the client's
//     message, never with a Sync or BEGIN of ours while a message of the
//     client's is outstanding;
//   - where nothing can stand in front of it, a lighter form of it;
//   - simple protocol: EXECUTE of it, in front of the client's text, and after
//     each COMMIT and ROLLBACK inside the text;
//   - what cannot share a transaction, may end it inside, or cannot be read:
//     nothing; the backend is noted in the registry over the control connection
//     for as long as it runs, and a grant ends noted backends.
//
// All of that passes package gate, which wants a reason for each message that can
// run something.
//
// Replies to what is ours are dropped by the FIFO, the rest is forwarded
// untouched. What cannot answer the entry in front ends the session.
package proxy
