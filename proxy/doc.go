// Package proxy runs the sessions: it accepts clients, connects each one to Postgres, joins
// the candidacy of its worker, and relays the bytes of both sides. Package protocol decides
// what is sent to either side; this package does the input and output, waits, and reads the
// clock.
//
// # One session
//
//	client ──bytes──▶ up ──▶ FromClient ──plan──▶ server
//	client ◀──plan── FromServer ◀── down ◀──bytes── server
//
// A session begins with the startup: startup.go reads what the client requests, handshake.go
// relays the authentication, and join.go joins the candidacy. Then two goroutines, the up
// pump and the down pump, relay the bytes of one direction each (pump_up.go, pump_down.go).
// Each gives the bytes that it has read to the session's protocol.Machine, and carries out
// the plan that it gets. While a pump would only wait, the event loop of package netloop
// relays the bytes in its place. Each read is scanned in place and causes at most one write.
// The session owns both goroutines and waits for them.
//
// phase.go describes the phases of a session, and ending.go how it ends. The comment on
// session says which lock guards which field.
//
// # What the machine needs
//
// Where the machine needs something from outside, the up pump provides it without the
// session's lock: pump_needs.go calls the candidacy, the fence and the analysis of long
// texts, and registration.go adds the backend to the registry, which the down pump deletes
// again when the session is at rest. handover.go holds the points at which one pump waits for
// the other.
package proxy
