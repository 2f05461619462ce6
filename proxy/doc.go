// Package proxy runs the sessions: it accepts clients, connects each one to Postgres, joins
// the candidacy of its worker, and relays the bytes of both sides. Package protocol decides
// what is sent to either side; this package does the input and output, waits, and reads the clock.
//
// The backend of a session whose worker leads is registered for as long as it lives, and a
// grant of another epoch ends it. Until then, its messages are relayed as they are. All other
// sessions may only read.
//
// # One session
//
//	client ──bytes──▶ up ──▶ FromClient ──plan──▶ server
//	client ◀──plan── FromServer ◀── down ◀──bytes── server
//
// A session begins with the startup (startup.go): package startup reads what the client requests, package
// handshake relays the authentication, and join.go joins the candidacy, and registers the backend if the
// worker leads by then. The session's part in a candidacy is a membership (membership.go); it has more of them if its
// client chooses other resources. Then the up pump and the down pump relay the bytes of one direction
// each (pump_up.go, pump_down.go).
// Each gives the bytes that it has read to the session's core (protocol.Session), and carries out the
// plan that it gets. Each read is scanned in place and causes at most one write.
//
// # Goroutines of a session
//
// The goroutine that accepted a connection runs its startup, and ends. From then on, the event loop of
// package netloop relays the bytes (Serve of a pump). What may block it leaves to the pump: then it calls
// Resume, and the pump continues in a goroutine of its own, which ends at the next wait for bytes
// (await). So each pump has one goroutine at most, and none while its session is idle. The last one
// of the up pump waits for the end of the down pump, and ends the session (finish). The Server waits
// for its sessions.
//
// phase.go describes the phases of a session, and ending.go how it ends. The comment on
// session says which lock guards which field.
//
// When another process takes over, a draining session that writes is passed on to it, with both connections, in place of
// its end (passing.go): at rest, its state is in its backend. Those of a leader are passed on together, with its
// candidacy (passing_leader.go). The other process examines and begins them (arrival.go).
//
// # What the core needs
//
// Where the core needs something from outside, the up pump provides it without the
// session's lock: pump_needs.go calls the candidacy, the fence and the analysis of long
// texts, and registration.go adds the backend to the registry. A session that ends deletes
// nothing there: its backend may still work, and the next grant has to find it. While it lives, an
// entry is deleted only at rest: after a transaction that has chosen resources, while the lease is
// not confirmed, if the session brings another token, or if it discards and a grant waits.
// pump_signals.go has what one pump waits for from the other.
//
// # Grants and lost entries
//
// registered.go ends a registered session when a grant waits for its backend, as soon as the
// session is at rest. Its client gets the error at its next use. Once a second it also compares the
// registered sessions with the registry, and ends those whose entries are missing.
package proxy
