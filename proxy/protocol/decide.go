package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// decide is the one place that says what goes in front of a statement, and whether its
// message must wait before that is known.
func (q *situation) decide() decision {
	d := q.decideStatement()
	if q.whole && leads(q.status, q.told()) && d.action.insertsFirst() {
		return decision{action: asOne}
	}
	return d
}

// decideStatement decides without regard to the text that the statement stands in.
func (q *situation) decideStatement() decision {
	s := q.statement
	if q.canceled {
		return refuses(canceledRefusal)
	}
	if q.epochs.choices.changes && !q.keepsChoice() {
		return refuses(fencing.ChooseInsideRefusal)
	}
	if q.shows() {
		return q.decideShow()
	}
	if q.carrier == lone && s.known {
		if r, ok := q.txn.NothingOutside(&s.info); ok {
			return passes(r)
		}
	}
	if r, ok := gate.Unfenced(q.mode == ModePassing); ok {
		return passes(r)
	}
	if s.twoPhase() && s.name != "" { // Postgres accepts it in a failed block, too, and EXECUTE of SQL would run it later
		return refuses(fencing.TwoPhaseRefusal)
	}
	// In a failed transaction nothing runs but its end, and nothing is analyzed or bound
	// but what ends it. A text that was not parsed may go on after that end.
	if s.known || q.carrier == call || q.carrier == prepared {
		if r, ok := q.txn.Dead(); ok {
			return passes(r)
		}
	}
	if q.carrier == call && q.txn.Coverage() == gate.Checked {
		return q.covered()
	}
	if s.known {
		if d, ok := q.decideParameters(); ok {
			return d
		}
		if r, ok := q.txn.Harmless(&s.info, q.config.Version); ok {
			return passes(r)
		}
	}
	if s.twoPhase() {
		return refuses(fencing.TwoPhaseRefusal)
	}
	if q.mode == ModeReadOnly {
		return q.decideUnfenced()
	}
	if r, ok := q.leftToGuards(); ok {
		return q.decideUnled(r)
	}
	if q.status.Fault != nil {
		return refuses(fencing.FaultRefusal(q.status.Fault))
	}
	if q.txn.Coverage() == gate.Discarded {
		return q.decideStale()
	}
	if leads(q.status, q.told()) {
		return q.decideLeader()
	}
	return q.decideFollower()
}

// twoPhase reports whether a statement may prepare a transaction, or end one that is prepared.
func (s *statement) twoPhase() bool {
	return s.guess.PreparesTransaction || s.known && s.info.Kind == sqltext.Refused
}

// canceledRefusal is what Postgres says of a statement that its client has canceled.
var canceledRefusal = &fencing.Refusal{
	SQLState: "57014",
	Message:  "canceling statement due to user request",
	Verbatim: true,
	Usage:    true, // it is no finding of the fence's
}

// leftToGuards returns the reason of a statement that only the guards of tables check: its
// candidacy has never had an epoch, so that the client cannot have been told of one. A claim may
// be left in the session only if it has set another token; the guards then compare that.
func (q *situation) leftToGuards() (gate.Reason, bool) {
	r, guarded := gate.Guarded(q.status.Holder.Guards)
	return r, guarded && q.config.Tables && q.aim == nil && q.told() == 0 && q.status.Epoch == 0
}

// decideUnled is for a statement that is left to guards. One that may write gives the
// candidacy the chance to lead, as a refused one does.
func (q *situation) decideUnled(r gate.Reason) decision {
	if q.status.Vacant && q.done < NeedCampaign && (!q.statement.known || !q.reads(q.statement)) {
		return needs(NeedCampaign)
	}
	return passes(r)
}

// leads reports whether a write may be tried: the worker leads, and its client knew
// that when the transaction began.
func leads(st *fencing.Status, announced fencing.Epoch) bool { return st.CanWrite() && announced != 0 }

// alone reports whether the statement cannot share its transaction with a check, or may
// end that transaction inside. In a block, Postgres refuses what cannot stand there.
func (q *situation) alone() bool {
	s := q.statement
	if !s.known {
		return true
	}
	return s.info.Kind == sqltext.NonTransactional && q.txn.State() != gate.InBlock
}

// shows reports whether the statement shows a parameter of Fencepost's, and is about to
// run.
func (q *situation) shows() bool {
	s := q.statement
	return q.mode == ModeFenced && q.carrier != prepared && s.known && s.info.Kind == sqltext.ShowFence && q.txn.State() != gate.Failed
}

// decideShow gives the candidacy the chance to lead before its role is announced.
func (q *situation) decideShow() decision {
	r, _ := q.txn.Harmless(&q.statement.info, q.config.Version)
	switch q.statement.info.Name {
	case "role", "epoch", "worker", "resource":
	default:
		return passes(r) // the server knows what was set, or that there is no such parameter
	}
	if q.aim != nil && q.statement.info.Name == "resource" {
		return passes(r) // the server knows it, and the checks compare what it knows
	}
	if q.status.Vacant && q.done < NeedCampaign {
		return needs(NeedCampaign)
	}
	return decision{action: answerFirst, reason: r}
}

// decideParameters is for a statement that sets or resets parameters of Fencepost's, or runs one that
// may. ok is false for all others.
func (q *situation) decideParameters() (_ decision, ok bool) {
	s := q.statement
	switch {
	case s.info.Kind == sqltext.SetFence:
		return q.decideSet(), true
	case q.resetsChoice():
		return q.decideChoice(), true
	case q.mode == ModeFenced && q.carrier != prepared && q.names.choosesIn(s):
		return refuses(fencing.UnseenChoiceRefusal), true
	default:
		return decision{}, false
	}
}

// decideSet is for a SET of a parameter of Fencepost's.
func (q *situation) decideSet() decision {
	s := q.statement
	pass, _ := q.txn.Harmless(&s.info, q.config.Version)
	switch {
	case s.info.Name == "resource" && q.mode == ModeFenced:
		return q.decideChoice()
	case q.aim != nil && q.carrier != prepared && (s.info.Name == "epoch" || s.info.Name == "token"):
		return refuses(fencing.ChosenParameterRefusal(s.info.Name))
	case s.info.Name == "epoch":
		return passes(pass)
	case s.info.Name != "token" || q.mode != ModeFenced:
		return refuses(fencing.SetRefusal(s.info.Name))
	case q.carrier == prepared:
		return passes(pass)
	case q.carrier == among:
		return refuses(fencing.TokenInsideRefusal)
	}
	switch r := fencing.SetTokenRefusal(s.info.Value, s.info.Local); {
	case r != nil:
		return refuses(r)
	case q.token.refusal != nil:
		return refuses(q.token.refusal)
	case q.token.asked:
		return passes(pass)
	default:
		if d := q.decideAlone(); d.action != forward {
			return d
		}
		return needs(NeedJoin)
	}
}

// decideAlone is for what must not share its transaction. Whether it would is known once all that
// came before it is answered. It forwards what does not.
func (q *situation) decideAlone() decision {
	switch {
	case q.copy.stalls(): // unless the COPY has failed, the server ends the connection
		return refuses(fencing.TokenInsideRefusal)
	case q.pending.certain():
		return decision{action: answersFirst}
	case !q.txn.LeftIdle() || !q.batch.fresh() || q.batch.unsynced != nothingUnsynced:
		return refuses(fencing.TokenInsideRefusal)
	default:
		return decision{}
	}
}

// covered passes what the transaction's coverage allows.
func (q *situation) covered() decision {
	r, _ := q.txn.Covered()
	return passes(r)
}

// decideUnfenced is for a connection without a resource, which may only read.
func (q *situation) decideUnfenced() decision {
	switch {
	case !q.statement.known, q.statement.info.Kind == sqltext.NonTransactional, !q.reads(q.statement):
		return refuses(q.config.Unfenced)
	case !q.config.Version.KeepsReadOnly() && !q.fenceless() && !q.proven():
		if q.config.Catalog != nil && !q.refreshed {
			return needs(NeedCatalog)
		}
		return refuses(q.unproven())
	case q.txn.Coverage() >= gate.ReadOnly:
		return q.covered()
	default:
		return q.readFirst()
	}
}

// unproven is the refusal of a read that is not proven, on a connection without a resource.
func (q *situation) unproven() *fencing.Refusal {
	why := "its text is not one that can be proven"
	switch {
	case q.config.Catalog == nil:
	case q.catalog == nil:
		why = "Fencepost could not read in time what the names in this database mean"
	case q.statement.provable != nil:
		if _, reason := sqltext.Proven(q.catalog, q.statement.provable); reason != "" {
			why = reason
		}
	}
	return fencing.UnprovenRefusal(q.config.Unfenced, why)
}

// fenceless reports whether the database has no fence, so that there is nothing to protect
// from what read-only mode lets pass.
func (q *situation) fenceless() bool {
	return q.catalog.Fenceless()
}

// readFirst makes the transaction read-only, which makes a block of one statement.
func (q *situation) readFirst() decision {
	if q.carrier == lone && q.statement.requiresBlock() && q.txn.State() == gate.AtRest {
		return refuses(needsBlockRefusal)
	}
	return decision{action: readFirst}
}

// needsBlockRefusal is what Postgres says of a DECLARE outside a block. The proxy says
// it in Postgres's place to those who do not lead: analyzing the cursor's query may run
// functions, and read-only mode in front of it would make a block.
var needsBlockRefusal = &fencing.Refusal{
	SQLState: "25P01",
	Message:  "DECLARE CURSOR can only be used in transaction blocks",
	Verbatim: true,
	Usage:    true, // Postgres would refuse it as well
}

func (q *situation) decideLeader() decision {
	s := q.statement
	switch {
	case !s.known && (s.mayChoose() || q.names.choosesIn(s)): // its client would take what follows for checked
		return refuses(fencing.UnseenChoiceRefusal)
	case q.alone() && q.underImported() && q.txn.Coverage() != gate.Checked:
		if !q.txn.IsOutside() && (q.carrier == prepared || q.carrier == executed) {
			return q.plainCheck() // for one statement in a block, a check can stand in front
		}
		return refuses(fencing.SnapshotRefusal)
	case q.alone(), q.noticesBlock() && !(q.aim != nil && q.chain.had&hadBegin != 0):
		return q.byRegistry()
	case q.txn.Coverage() == gate.Checked:
		return q.covered()
	case s.info.LocksTables:
		return q.lockFirst()
	}
	if q.config.ProvenReads && q.aim == nil && q.txn.IsOutside() && s.provable != nil {
		if r, ok := gate.Proven(q.catalog, s.provable); ok {
			return passes(r)
		}
	}
	if q.carrier == lone && q.mustStandAlone() && !q.chain.imported && !q.showsItsCheck() {
		return q.byRegistry()
	}
	if r, ok := q.behindLock(); ok {
		return passes(r)
	}
	return q.check()
}

// lockFirst is for a LOCK TABLE in front of anything that was checked. The check would take the
// snapshot of a REPEATABLE READ or SERIALIZABLE transaction before the lock is there, and the
// transaction would not see what others have committed until then. The registry, whose note makes
// a grant wait for the backend, covers the lock and what follows. It needs no claim.
//
// A choice has no registration, so that its check stands in front.
func (q *situation) lockFirst() decision {
	if q.aim != nil {
		return q.plainCheck()
	}
	if r, ok := q.registration.Reason(); ok {
		return passes(r)
	}
	return q.byRegistry()
}

// behindLock returns the reason of a statement behind the LOCK TABLE that has begun its transaction:
// a grant waits for the backend as long as it is registered. A check would wait for that grant,
// so that the transaction could not go on. There has to be one where a snapshot was imported, which
// the registry cannot see, where tables are guarded, because it makes the claim, and where it undoes a
// read-only mode.
func (q *situation) behindLock() (gate.Reason, bool) {
	if q.chain.had&hadLock == 0 || q.aim != nil || q.chain.imported || q.status.Holder.Guards > 0 || q.inherits() {
		return gate.Reason{}, false
	}
	return q.registration.Reason()
}

// check puts the check in front, or the verdict in its place.
func (q *situation) check() decision {
	switch {
	case !q.asks():
		return q.plainCheck()
	case q.undoes():
		return decision{action: undoVerdictFirst}
	default:
		return decision{action: verdictFirst}
	}
}

// plainCheck puts the check in front, also where stale writes are discarded.
func (q *situation) plainCheck() decision {
	if q.undoes() {
		return decision{action: undoCheckFirst}
	}
	return decision{action: checkFirst}
}

// undoes reports whether a read-only mode that was handed on has to be undone in front of the
// check: a leader's transaction may write.
func (q *situation) undoes() bool { return q.inherits() && leads(q.status, q.told()) }

// inherits reports whether the transaction was handed a read-only mode that can be undone.
func (q *situation) inherits() bool { return q.chain.undoes() && !q.settings.readOnly }

// asks reports whether stale writes are discarded, and a verdict can stand in front of the
// statement. Of a worker that has not led, the server does not know that where several bring one token.
func (q *situation) asks() bool {
	return q.config.Discards && fencing.Discardable(q.status) && q.canAsk()
}

// canAsk reports whether a verdict can stand in front of the statement. What is several
// statements, goes by the registry, or would notice an implicit block, has the plain check. So has
// a lone Query of 18 that would notice that it goes as extended messages behind a verdict: a FETCH
// of a binary cursor, and what lists portals and prepared statements.
func (q *situation) canAsk() bool {
	s, inBlock := q.statement, q.txn.State() == gate.InBlock
	switch {
	case q.aim != nil, q.verdict != noVerdict, q.carrier == among, q.carrier == call, !s.known, q.copy.stalls():
		return false
	case !inBlock && (s.info.Kind == sqltext.NonTransactional || s.requiresBlock()):
		return false
	case q.carrier == lone && !inBlock && q.config.Version.QueryContinuesBatch():
		return !q.names.copiesIn(s) && !s.info.Fetches && !s.info.MentionsKeptText
	default:
		return true
	}
}

// decideStale is for a transaction that is stale, as the verdict has said. A plain check
// refuses what can neither pass nor be discarded. A Query that is discarded waits for the
// answers of its batch: should one of its messages fail, the server skips the Query, but not
// the Sync that is sent for it.
func (q *situation) decideStale() decision {
	s := q.statement
	switch {
	case q.alone(), q.carrier == call:
	case q.reads(s):
		if q.config.Version.KeepsReadOnly() || q.proven() {
			return q.covered()
		}
		if q.config.Catalog != nil && !q.refreshed {
			return needs(NeedCatalog)
		}
	case s.info.Command == sqltext.NoCommand, q.carrier == among:
	case q.carrier == prepared:
		return q.covered()
	case q.carrier == lone && q.pending.certain():
		return decision{action: answersFirst}
	default:
		return decision{action: discard}
	}
	return q.plainCheck()
}

// underImported reports whether the statement, or a part of it, may run under a snapshot
// that was imported, which the registry cannot see: by a statement before it in the
// transaction, or by itself.
func (q *situation) underImported() bool {
	s := q.statement
	return q.chain.imported || s.importsSnapshot() && (s.info.Hides || !sqltext.AtMostOne(bytesOf(s.text)))
}

// noticesBlock reports whether the block that the Execute of a check makes up to the next
// Sync would change what Postgres does. There may be none yet if the client has executed
// nothing in the batch, or something that may have committed. Then Postgres refuses what
// requires a block, or does nothing for it; and what only prepares begins none, in which a
// Query behind it would run.
func (q *situation) noticesBlock() bool {
	return q.config.Version.ExecuteOpensBlock() && q.noticesOpenedBlock()
}

// noticesOpenedBlock is noticesBlock where an Execute makes a block.
func (q *situation) noticesOpenedBlock() bool {
	if q.txn.State() == gate.InBlock {
		return false
	}
	maybe := q.batch.unsynced == maybeUnsynced
	return (maybe || q.batch.fresh()) && q.statement.requiresBlock() || maybe && q.carrier == prepared
}

// mustStandAlone reports whether a Query can have nothing of Fencepost's in front of it,
// for one of these reasons:
//   - Its text shows query texts, and would show what stands in front of it, too.
//   - The server keeps its text, so with a check it would go as extended messages. Their
//     Sync would end the skipping if the batch before it has failed.
//   - It requires a block, and a check in front would make one where there may be none.
//   - The server's version lets a lone statement continue what was executed before in the
//     batch, but not one with a check in front.
//
// Where a snapshot was imported, a check stands in front nevertheless, because the registry
// cannot see an imported snapshot.
func (q *situation) mustStandAlone() bool {
	s := q.statement
	if q.ownsItsText() {
		return true
	}
	return s.requiresBlock() && q.txn.State() != gate.InBlock ||
		q.config.Version.QueryContinuesBatch() && q.batch.unsynced != nothingUnsynced
}

// ownsItsText reports whether nothing can stand in the text of a Query because of what the text shows, or
// what the server keeps of it: the first two reasons of mustStandAlone.
func (q *situation) ownsItsText() bool {
	s := q.statement
	if s.info.Kind == sqltext.ByMessage {
		return q.batch.mayBeSkipped()
	}
	return s.info.MentionsQueryText
}

func (q *situation) decideFollower() decision {
	if !q.alone() {
		if q.txn.Coverage() == gate.Checked {
			return q.covered() // checked while it led: the grant waits for this transaction
		}
		if r, ok := q.behindLock(); ok {
			return passes(r) // registered while it led, which is the same
		}
		if q.reads(q.statement) {
			switch {
			case !q.config.Version.KeepsReadOnly() && !q.proven():
				if q.config.Catalog != nil && !q.refreshed {
					return needs(NeedCatalog)
				}
			case q.txn.Coverage() >= gate.ReadOnly:
				return q.covered()
			default:
				return q.readFirst()
			}
		}
	}
	return q.decideRefused()
}

// proven reports whether the catalog proves the statement harmless now. What a cursor is
// read by is as harmless as what declared it.
func (q *situation) proven() bool {
	s := q.statement
	if s == cursorStatement {
		return true
	}
	if s.provable == nil {
		return false
	}
	ok, _ := sqltext.Proven(q.catalog, s.provable)
	return ok
}

// decideRefused is for a write that would be refused: it first gives the candidacy the
// chance to lead. The check says why it is refused.
func (q *situation) decideRefused() decision {
	st := q.status
	switch {
	case st.Vacant && q.done < NeedCampaign:
		return needs(NeedCampaign)
	case st.Lapsed && q.told() != 0 && q.done < NeedConfirm:
		return needs(NeedConfirm)
	case st.Lapsed && q.told() == st.Epoch && q.asks():
		return decision{action: lapsedVerdictFirst}
	case st.Lapsed && q.told() == st.Epoch:
		return decision{action: lapsedFirst}
	default:
		return q.check()
	}
}

// byRegistry passes a statement while its backend is registered, with nothing in front.
// If the registry refuses, the check in front says why.
func (q *situation) byRegistry() decision {
	if q.aim != nil {
		return q.withoutRegistry()
	}
	if r, ok := q.registration.Reason(); ok {
		if q.status.Holder.Guards > 0 && !(q.statement.known && q.flushes()) {
			return decision{action: claimFirst, reason: r}
		}
		return passes(r)
	}
	switch {
	case !q.registry.asked, q.registry.refusal == nil: // the last also if the registration ended with a transaction before
		return needs(NeedRegister)
	case q.registry.refusal.SQLState == fencing.StateNoFence:
		return refuses(q.registry.refusal)
	default:
		return q.plainCheck()
	}
}

// withoutRegistry takes the place of byRegistry while something is chosen: the registration is that of
// one candidacy, and outlasts a transaction. It refuses the statement, unless it stands in a block, where
// a check can stand in front. Whether it does is known when everything before it is answered.
func (q *situation) withoutRegistry() decision {
	s := q.statement
	switch {
	case q.carrier != among && q.pending.certain() && !q.copy.stalls():
		return decision{action: answersFirst}
	case s.known && q.chain.had&hadBegin != 0 && !(q.carrier == lone && q.ownsItsText()):
		return q.check()
	default:
		return refuses(fencing.ChosenAloneRefusal)
	}
}

// flushes reports whether the registration must be durable before the statement runs:
// for VACUUM, and others as rare, which commit inside.
func (q *situation) flushes() bool {
	s := q.statement
	return s.known && s.info.Kind == sqltext.NonTransactional && !s.info.EndsTransaction || s.guess.Vacuums
}
