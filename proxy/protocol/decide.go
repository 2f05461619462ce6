package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// action is what goes in front of a client's statement.
type action uint8

const (
	forward      action = iota // nothing
	checkFirst                 // the check; it also refuses those who do not lead
	readFirst                  // read-only mode
	lapsedFirst                // a refusal by the database: the lease is not confirmed
	refuseFirst                // a refusal of the proxy's own
	byRegistry                 // the statement runs alone, under a note
	answerFirst                // SHOW fencepost.…: its value is set in front
	needsMoreFor               // not decided: see need
)

// decision is what is decided of a message that may run a statement.
type decision struct {
	action  action
	reason  gate.Reason      // of forward and byRegistry
	need    Need             // of needsMoreFor
	refusal *fencing.Refusal // of refuseFirst
}

func needs(n Need) decision               { return decision{action: needsMoreFor, need: n} }
func refuses(r *fencing.Refusal) decision { return decision{action: refuseFirst, refusal: r} }

// decide decides what goes in front of a message that may run s. The transaction
// of that message has been carried.
func (m *Machine) decide(s *statement) decision {
	if r, ok := gate.Unfenced(m.mode == ModePassing); ok {
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
	if s.guess.PreparesTransaction || s.known && s.info.Kind == sqltext.Refused {
		return refuses(fencing.TwoPhaseRefusal)
	}
	if m.mode == ModeReadOnly {
		return m.decideReading(s)
	}
	st := m.status()
	if st.Fault != nil {
		return refuses(fencing.FaultRefusal(st.Fault))
	}
	// In a block, what cannot share a transaction is an error of the server's.
	alone := !s.known || s.info.Kind == sqltext.NonTransactional && m.txn.State() != gate.InBlock
	if st.CanWrite() && m.epochs.inHand.announced != 0 {
		return m.decideLeader(s, alone)
	}
	if m.txn.Coverage() == gate.Checked && !alone {
		return m.covered() // checked while it led: the grant waits for this transaction
	}
	if !alone && m.read(s) {
		switch {
		case !m.version.KeepsReadOnly() && !m.proven(s):
			if m.catalog != nil && !m.renewed {
				return needs(NeedCatalog)
			}
		case m.txn.Coverage() >= gate.ReadOnly:
			return m.covered()
		default:
			return decision{action: readFirst}
		}
	}
	return m.decideRefused(st)
}

// covered forwards what the transaction's cover allows.
func (m *Machine) covered() decision {
	r, _ := m.txn.Covered()
	return decision{reason: r}
}

func (m *Machine) decideLeader(s *statement, alone bool) decision {
	switch {
	case alone, m.failsOutside(s):
		return m.decideNonTransactional(s)
	case m.txn.Coverage() == gate.Checked:
		return m.covered()
	}
	if m.provenReads && m.txn.IsOutside() && s.provable != nil && m.catalog != nil {
		if r, ok := gate.Proven(m.catalog(), s.provable); ok {
			return decision{reason: r}
		}
	}
	return decision{action: checkFirst}
}

// decideRefused is for a write that would be refused: it first gives the
// candidacy the chance to lead.
func (m *Machine) decideRefused(st *fencing.Status) decision {
	switch {
	case st.Vacant && m.hasAsked < NeedCampaign:
		return needs(NeedCampaign)
	case st.Lapsed && m.epochs.inHand.announced != 0 && m.hasAsked < NeedConfirm:
		return needs(NeedConfirm)
	case st.Lapsed && m.epochs.inHand.announced == st.Epoch:
		return decision{action: lapsedFirst}
	default:
		return decision{action: checkFirst}
	}
}

// decideNonTransactional sends a statement that cannot share its transaction by the
// registry. If it may not enter, the check in front of it says why.
func (m *Machine) decideNonTransactional(s *statement) decision {
	if r, ok := m.registration.Reason(); ok {
		return decision{action: byRegistry, reason: r}
	}
	switch {
	case !m.tried, m.registerErr == nil: // the last also if the note has gone with a transaction before
		m.flush = s.known && s.info.Kind == sqltext.NonTransactional && !s.info.EndsTransaction || s.guess.Vacuums // VACUUM, and others as rare
		return needs(NeedRegister)
	case m.registerErr.SQLState == fencing.StateNoFence:
		return refuses(m.registerErr)
	default:
		return decision{action: checkFirst}
	}
}

func (m *Machine) decideReading(s *statement) decision {
	if !s.known || s.info.Kind == sqltext.NonTransactional || !m.read(s) {
		return refuses(m.unfencedBy)
	}
	if m.txn.Coverage() >= gate.ReadOnly {
		return m.covered()
	}
	return decision{action: readFirst}
}
