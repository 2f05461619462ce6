package protocol

import (
	"cmp"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// decideAll decides about the statements of a text. alone says that it is one statement.
func (s *Session) decideAll(t *sqltext.Text, all []sqltext.Statement, alone bool) (r *fencing.Refusal, write bool, need NeedKind) {
	if !t.Known {
		r, need = s.decide(nil, false)
		return fencing.UnreadText(r, t.Unread()), true, need
	}
	for i := range all {
		st := &all[i]
		if r, need = s.decide(st, false); r == nil && need == NeedNothing && joinsCandidacy(st) && s.txn != 'E' {
			r, need = s.join(st, alone)
		}
		if r != nil || need != NeedNothing {
			return r, !st.Read, need
		}
	}
	return nil, false, NeedNothing
}

// decide says whether a statement may be sent, or what is needed before that is known. A nil st is
// one of which nothing is known.
func (s *Session) decide(st *sqltext.Statement, userTypes bool) (*fencing.Refusal, NeedKind) {
	if s.inHand.refusal != nil {
		return s.inHand.refusal, NeedNothing
	}
	fate := sqltext.FateOf(st, s.config.Version.KeepsReadOnly())
	switch {
	case fate == sqltext.RefusedAlways: // also in a failed block, where EXECUTE could run it later
		return fencing.TwoPhaseRefusal, NeedNothing
	case st != nil && s.txn == 'E': // nothing runs but the end of the block, which ends the part of a text
		return nil, NeedNothing
	case st != nil && st.Kind == sqltext.SetFence:
		return s.decideSet(st), NeedNothing
	case st != nil && s.executesChoice(st):
		return fencing.ExecutedChoiceRefusal, NeedNothing
	case st != nil && st.Kind == sqltext.ShowFence && s.shows(st):
		return nil, s.campaign()
	case s.choices.block == blockWrites:
		return nil, NeedNothing
	}
	switch fate {
	case sqltext.Passes, sqltext.HandledByProxy:
		return nil, NeedNothing
	case sqltext.PassesIfProven:
		return s.decideProven(st, userTypes)
	case sqltext.RefusedByServer:
		if s.discards(st) {
			return nil, NeedNothing
		}
		if r := s.deniedRefusal(); r != nil {
			return r, NeedNothing
		}
		return nil, s.campaignForWrite()
	case sqltext.DependsOnName:
		if e := s.names[st.Name]; e != nil && e != plainRead && !e.statement.Does(sqltext.Executes) {
			return s.decide(e.statement, !e.proven)
		}
		return nil, NeedNothing // SQL PREPARE takes only queries, and what they may write the server refuses
	default: // RefusedByText
		r, need := s.refuseWrite("")
		return fencing.CountsAsWrite(r, st.WhyNoRead()), need
	}
}

// decideProven is decide for a read before 16.
func (s *Session) decideProven(st *sqltext.Statement, userTypes bool) (*fencing.Refusal, NeedKind) {
	var c *fencing.Catalog
	if s.config.Catalog != nil {
		c = s.config.Catalog()
	}
	if s.config.Mode == ModeReadOnly && c.Fenceless() { // there is nothing to protect
		return nil, NeedNothing
	}
	why := "a parameter is of a type that is not built in"
	if !userTypes {
		proven, because := sqltext.Proven(c, st)
		if proven {
			return nil, NeedNothing
		}
		why = because
	}
	if s.config.Catalog != nil && !s.inHand.refreshed {
		return nil, NeedCatalog
	}
	return s.refuseWrite(why)
}

// decideSet decides about a SET of a parameter of Fencepost's, but does not join anything.
func (s *Session) decideSet(st *sqltext.Statement) *fencing.Refusal {
	switch {
	case st.Name == "epoch" && s.choices.session == nil && s.choices.local == nil, s.config.Mode == ModeFenced && joinsCandidacy(st):
		return nil
	case st.Name == "epoch":
		return fencing.ChosenParameterRefusal(st.Name)
	default:
		return fencing.SetRefusal(st.Name)
	}
}

// joinsCandidacy reports whether a statement joins candidacies.
func joinsCandidacy(st *sqltext.Statement) bool {
	return st.Kind == sqltext.SetFence && (st.Name == "token" || st.Name == "resource")
}

// joinsForBlock reports whether a statement joins candidacies by SET LOCAL, for the block in which it is.
func joinsForBlock(st *sqltext.Statement) bool {
	return joinsCandidacy(st) && st.Does(sqltext.SetsLocally)
}

// joinsForSession reports whether a statement joins candidacies for the rest of the session.
func joinsForSession(st *sqltext.Statement) bool {
	return joinsCandidacy(st) && !st.Does(sqltext.SetsLocally)
}

// shows reports whether a SHOW is of the worker's role or epoch.
func (s *Session) shows(st *sqltext.Statement) bool {
	return s.config.Mode == ModeFenced && (st.Name == "role" || st.Name == "epoch")
}

// campaign gives the candidacy the chance to lead, if no one does.
func (s *Session) campaign() NeedKind {
	if s.config.Mode == ModeFenced && s.refusedMembership().Status().Vacant && s.inHand.done < NeedCampaign {
		return NeedCampaign
	}
	return NeedNothing
}

// campaignForWrite is campaign for a write, which also waits for a lease that is not confirmed.
func (s *Session) campaignForWrite() NeedKind {
	if need := s.campaign(); need != NeedNothing || s.config.Mode != ModeFenced {
		return need
	}
	one := s.refusedMembership()
	if st := one.Status(); st.Lapsed && one.epochs.current == st.Epoch && s.inHand.done < NeedConfirm {
		return NeedConfirm
	}
	return NeedNothing
}

// refuseWrite gives the candidacy the chance to lead, and refuses. unproven is why a read is not proven.
func (s *Session) refuseWrite(unproven string) (*fencing.Refusal, NeedKind) {
	if need := s.campaignForWrite(); need != NeedNothing {
		return nil, need
	}
	if r := s.deniedRefusal(); r != nil {
		return r, NeedNothing
	}
	return s.notLeaderRefusal(unproven), NeedNothing
}

// deniedRefusal is what a write gets because the backend was not registered, nil if it was not tried, or because of
// what shares its text or batch.
func (s *Session) deniedRefusal() *fencing.Refusal {
	r := cmp.Or(s.inHand.denied, s.exchange.denied, s.choices.denied)
	if r == nil && (s.inHand.leftRelay || s.exchange.leftRelay) && s.choices.local == nil && s.leads() {
		return fencing.WriteWithChoiceRefusal
	}
	return r
}

// notLeaderRefusal is the refusal of a write.
func (s *Session) notLeaderRefusal(unproven string) *fencing.Refusal {
	if s.config.Mode == ModeReadOnly {
		if unproven != "" {
			return fencing.UnprovenRefusal(s.config.Unfenced, unproven)
		}
		return s.config.Unfenced
	}
	one := s.refusedMembership()
	st := one.Status()
	if st.Fault != nil {
		return fencing.FaultRefusal(st.Fault)
	}
	if st.Role == fencing.Superseded {
		return s.supersededRefusal()
	}
	if announced := one.epochs.current; st.CanWrite() && announced > st.Epoch {
		return fencing.EpochTooHighRefusal(one.Resource, s.config.Worker, one.Incarnation(), announced, st)
	}
	r := fencing.ReadOnlyRefusal(one.Resource, s.config.Worker, one.Incarnation(), st)
	if r.SQLState != fencing.StateNotLeader {
		return r
	}
	if unproven != "" {
		r.Hint = fencing.UnprovenHint(unproven, r.Hint)
	}
	worker := fencing.RefusedWorker{Resource: one.Resource, Worker: s.config.Worker, Nameless: s.config.Nameless, Status: st}
	if one.Trouble != nil {
		worker.Trouble = one.Trouble()
	}
	return r.WithCause(worker)
}
