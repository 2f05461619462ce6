package proxy

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
)

// verdict is what goes in front of a client's statement.
type verdict uint8

const (
	forward      verdict = iota // nothing
	checkFirst                  // the check; it also refuses those who do not lead
	readFirst                   // read-only mode
	lapsedFirst                 // a refusal by the database: the lease is not confirmed
	refuseFirst                 // a refusal of the proxy's own
	byRegistry                  // the statement runs alone, under a note
	answerFirst                 // SHOW fencepost.…: its value is set in front
	needsMoreFor                // not decided: see need
)

// decision is what is decided of a message that may run a statement.
type decision struct {
	verdict verdict
	reason  gate.Reason      // of forward and byRegistry
	need    need             // of needsMoreFor
	refusal *fencing.Refusal // of refuseFirst
}

func needs(n need) decision               { return decision{verdict: needsMoreFor, need: n} }
func refuses(r *fencing.Refusal) decision { return decision{verdict: refuseFirst, refusal: r} }

// mayWrite reports whether writes may be tried now, in the transaction in hand.
func (m *machine) mayWrite() bool { return m.standing().May() && m.txTold != 0 }

// judge decides what goes in front of a message that may run s. The transaction
// of that message has been carried.
func (m *machine) judge(s *statement) decision {
	if r, ok := gate.Unfenced(m.mode == passing); ok {
		return decision{reason: r}
	}
	// In a failed transaction nothing runs but its end; a text that cannot be
	// read may go on after that.
	if s.known {
		if r, ok := m.txn.Dead(); ok {
			return decision{reason: r}
		}
		if r, ok := m.txn.Harmless(&s.info, m.version); ok {
			return decision{reason: r}
		}
	}
	if s.guess.PreparesTransaction || s.known && s.info.Kind == fencing.Refused {
		return refuses(twoPhaseRefusal)
	}
	if m.mode == reading {
		return m.judgeReading(s)
	}
	st := m.standing()
	if st.Fault != nil {
		return refuses(faultRefusal(st.Fault))
	}
	// In a block, what cannot share a transaction is an error of the server's.
	alone := !s.known || s.info.Kind == fencing.Alone && m.txn.State() != gate.InBlock
	if st.May() && m.txTold != 0 {
		return m.judgeLeader(s, alone)
	}
	if m.txn.Cover() == gate.Checked && !alone {
		return m.covered() // checked while it led: the grant waits for this transaction
	}
	if !alone && m.read(s) {
		switch {
		case m.version < readOnlyHolds && !m.proven(s):
			if m.catalogue != nil && !m.renewed {
				return needs(needCatalogue)
			}
		case m.txn.Cover() >= gate.ReadOnly:
			return m.covered()
		default:
			return decision{verdict: readFirst}
		}
	}
	return m.judgeRefused(st)
}

// covered forwards what the transaction's cover allows.
func (m *machine) covered() decision {
	r, _ := m.txn.Covered()
	return decision{reason: r}
}

func (m *machine) judgeLeader(s *statement, alone bool) decision {
	switch {
	case alone, m.failsOutside(s):
		return m.judgeAlone(s)
	case m.txn.Cover() == gate.Checked:
		return m.covered()
	}
	if m.provenReads && m.txn.IsOutside() && s.proof != nil && m.catalogue != nil {
		if r, ok := gate.Proven(m.catalogue(), s.proof); ok {
			return decision{reason: r}
		}
	}
	return decision{verdict: checkFirst}
}

// judgeRefused is for a write that would be refused: it first gives the
// candidacy the chance to lead.
func (m *machine) judgeRefused(st *fencing.Standing) decision {
	switch {
	case st.Vacant && m.hasAsked < needDemand:
		return needs(needDemand)
	case st.Lapsed && m.txTold != 0 && m.hasAsked < needConfirm:
		return needs(needConfirm)
	case st.Lapsed && m.txTold == st.Epoch:
		return decision{verdict: lapsedFirst}
	default:
		return decision{verdict: checkFirst}
	}
}

// judgeAlone sends a statement that cannot share its transaction by the
// registry. If it may not enter, the check in front of it says why.
func (m *machine) judgeAlone(s *statement) decision {
	if r, ok := m.note.Reason(); ok {
		return decision{verdict: byRegistry, reason: r}
	}
	switch {
	case !m.tried, m.enterErr == nil: // the last also if the note has gone with a transaction before
		m.flush = s.known && s.info.Kind == fencing.Alone && !s.info.EndsTx || s.guess.Vacuums // VACUUM, and others as rare
		return needs(needEnter)
	case m.enterErr.SQLState == fencing.StateNoFence:
		return refuses(m.enterErr)
	default:
		return decision{verdict: checkFirst}
	}
}

func (m *machine) judgeReading(s *statement) decision {
	if !s.known || s.info.Kind == fencing.Alone || !m.read(s) {
		return refuses(m.unfencedBy)
	}
	if m.txn.Cover() >= gate.ReadOnly {
		return m.covered()
	}
	return decision{verdict: readFirst}
}
