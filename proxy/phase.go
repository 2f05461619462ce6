package proxy

import (
	"sync/atomic"

	"github.com/fencepost/fencepost/fencing"
)

// phase says how far a session has come. A session only moves forward:
//
//	Starting ──▶ Serving ──▶ Draining
//	    │           │            │
//	    └───────────┴────────────┴──▶ Ending
type phase uint32

const (
	// phaseStarting: the client and the server authenticate each other, and the session
	// joins its candidacy. The client cannot send a statement yet. A session is created
	// in this phase. It leaves the phase for Serving just before it greets the client,
	// or for Ending if the startup fails or the proxy shuts down.
	phaseStarting phase = iota
	// phaseServing: both pumps relay. The phase begins with the greeting. It ends in
	// Draining when the proxy shuts down, or in Ending when the client or the server has
	// gone, or when the client is sent the reason why its session ends. A superseded session has
	// lost its server, but stays in this phase until its client uses it and gets the error.
	phaseServing
	// phaseDraining: both pumps relay as before, but the session ends at its next safe
	// point, where no reply is pending and no transaction is open. The phase begins when
	// the proxy shuts down while it serves the client. It ends in Ending, at that safe
	// point or earlier for the same reasons as Serving. A session that is passed on is in Ending
	// when the other process has it.
	phaseDraining
	// phaseEnding: the proxy reads nothing more from the client. It still relays the
	// server's replies to what was sent before, unless the client has been sent the reason why the
	// session ends. The phase begins when the client or the server has gone, when the client
	// is sent the reason, or when the startup is refused. It ends when both connections are closed.
	phaseEnding
)

// nextPhases lists the phases that may follow each phase.
var nextPhases = [...][]phase{
	phaseStarting: {phaseServing, phaseEnding},
	phaseServing:  {phaseDraining, phaseEnding},
	phaseDraining: {phaseEnding},
	phaseEnding:   {},
}

// lifecycle is the phase of a session and whether its client was sent the reason for the end.
// The session's mu guards it; only the phase may also be read without that lock.
type lifecycle struct {
	current atomic.Uint32 // a phase
	// reason is what the client will be sent after the server's last reply, or nil.
	reason *fencing.Refusal
	// notified: a caller of markNotified has sent the client the reason why the session ends, is about to,
	// or has given up on that because a reply was sent only in part. Nothing else is sent to the
	// client.
	notified bool
	// audited: the statement that a superseded client tried is in the audit log, or will
	// be as soon as the client has the error.
	audited bool
	// postponed is what is audited when both pumps have ended, or nil.
	postponed *fencing.Rejection
}

// phase may be called without the session's mu.
func (l *lifecycle) phase() phase { return phase(l.current.Load()) }

// advance moves the session to another phase. It reports false, and changes nothing, if
// that phase cannot follow the current one.
func (l *lifecycle) advance(to phase) bool {
	for _, next := range nextPhases[l.phase()] {
		if next == to {
			l.current.Store(uint32(to))
			return true
		}
	}
	return false
}

// markNotified reports whether the caller is the one that sends the client the reason why the session
// ends: only the first caller does.
func (l *lifecycle) markNotified() bool {
	first := !l.notified
	l.notified = true
	return first
}

// markAudited reports whether the caller is the one that audits the statement that a superseded
// client tried: only the first caller does, because both pumps may find the server gone.
func (l *lifecycle) markAudited() bool {
	first := !l.audited
	l.audited = true
	return first
}
