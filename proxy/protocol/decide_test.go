package protocol

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
)

// workers are the statuses that the table names.
var workers = map[string]fencing.Status{
	"leader":   {Role: fencing.Leader, Epoch: 5, Holder: fencing.Record{Epoch: 5}},
	"follower": {Role: fencing.Follower, Holder: fencing.Record{Epoch: 5}},
	"vacant":   {Role: fencing.Follower, Vacant: true},
	"lapsed":   {Role: fencing.Follower, Epoch: 5, Lapsed: true, Holder: fencing.Record{Epoch: 5}},
	"fault":    {Role: fencing.Leader, Epoch: 5, Fault: fencing.RetryRefusal},
	"former":   {Role: fencing.Superseded, Epoch: 4, Holder: fencing.Record{Epoch: 5}},
}

// blocks are the transactions that the table names.
var blocks = map[string][]gate.Answered{
	"rest":      nil,
	"block":     {gate.Block},
	"checked":   {gate.CheckPassed, gate.Block},
	"read-only": {gate.ReadOnlySet, gate.Block},
	"failed":    {gate.FailedBlock},
	"stale":     {gate.VerdictStale, gate.Block},
}

func (d decision) String() string {
	switch d.action {
	case forward:
		return "pass: " + d.reason.String()
	case chooses:
		return "choose"
	case claimFirst:
		return "claim, " + d.reason.String()
	case checkFirst:
		return "check"
	case undoCheckFirst:
		return "undo, check"
	case readFirst:
		return "read-only mode"
	case lapsedFirst:
		return "lapsed"
	case refuseFirst:
		return "refuse " + d.refusal.SQLState
	case answerFirst:
		return "answer"
	case verdictFirst:
		return "verdict"
	case undoVerdictFirst:
		return "undo, verdict"
	case lapsedVerdictFirst:
		return "lapsed verdict"
	case discard:
		return "discard"
	case asOne:
		return "as one"
	case answersFirst:
		return "wait"
	default:
		return map[NeedKind]string{NeedRegister: "register", NeedCampaign: "campaign", NeedConfirm: "confirm", NeedCatalog: "catalog", NeedJoin: "join"}[d.need]
	}
}

// TestDecide is the table of what goes in front of a statement.
func TestDecide(t *testing.T) {
	t.Parallel()
	const (
		garbage  = "this cannot be parsed"
		update   = "update t set v = 1"
		read     = "select 1"
		covered  = "pass: covered by a check"
		harmless = "pass: unable to do anything"
		dead     = "pass: in what has failed"
		quiet    = "pass: covered by read-only mode"
		claimed  = "claim, while the backend is registered"
	)
	asked := func(q *situation) { q.done = NeedConfirm }
	stale := func(q *situation) { q.epochs.inHand.announced = 0 }
	refused := func(q *situation) {
		q.registry = registryAnswer{asked: true, refusal: &fencing.Refusal{SQLState: fencing.StateNotLeader}}
	}
	unknownFence := func(q *situation) {
		q.registry = registryAnswer{asked: true, refusal: &fencing.Refusal{SQLState: fencing.StateNoFence}}
	}
	registered := func(q *situation) { *q.registration = gate.Registered(nil) }
	unfenced := func(q *situation) { q.mode = ModeReadOnly }
	fenceless := func(q *situation) { q.mode, q.catalog = ModeReadOnly, fencelessCatalog(t) }
	passing := func(q *situation) { q.mode = ModePassing }
	guarded := func(q *situation) {
		q.config.Tables, q.status.Holder.Guards = true, 1
		if q.status.Epoch == 0 {
			q.epochs.inHand.announced = 0
		}
	}
	batchRan := func(q *situation) { q.batch.ran() }
	open := func(q *situation) { q.batch.sent() }
	unsynced := func(q *situation) { q.batch.unsynced = surelyUnsynced }
	perhaps := func(q *situation) { q.batch.unsynced = maybeUnsynced }
	imported := func(q *situation) { q.chain.imported = true }
	joined := func(q *situation) { q.token = tokenAnswer{value: 43, asked: true} }
	notJoined := func(q *situation) {
		q.token = tokenAnswer{value: 43, asked: true, refusal: &fencing.Refusal{SQLState: fencing.StateAwardNotNewer}}
	}
	chose := func(q *situation) { q.choosing = &choosing{answers: []chooseAnswer{{value: "b", choice: &choice{}}}} }
	notChosen := func(q *situation) {
		q.choosing = &choosing{answers: []chooseAnswer{{value: "b", refusal: &fencing.Refusal{SQLState: "53400"}}}}
	}
	chosen := func(q *situation) { // for the session
		q.epochs.choices.base = &choice{}
		q.aim = &aim{choice: q.epochs.choices.base, told: 5}
	}
	begun := func(q *situation) { q.chain.had = hadBegin }
	catalog := func(q *situation) { q.config.Catalog = func() *fencing.Catalog { return nil } }
	refreshed := func(q *situation) { catalog(q); q.refreshed = true }
	discards := func(q *situation) { q.config.Discards = true }
	asking := func(q *situation) { discards(q); q.verdict = verdictGiven }
	pending := func(q *situation) { q.pending.push(parse, fromClient) }
	copying := func(q *situation) { q.copy.begin(false) }
	inherits := func(q *situation) { q.chain.inherited = true }
	whole := func(q *situation) { q.whole = true }
	occurs := map[action]bool{}
	for _, c := range []struct {
		carrier            carrier
		sql, worker, block string
		version            gate.Version
		but                func(*situation)
		want               string
	}{
		// Who leads.
		{lone, update, "leader", "rest", 15, nil, "check"},
		{lone, update, "leader", "block", 15, nil, "check"},
		{lone, update, "leader", "checked", 15, nil, covered},
		{lone, update, "leader", "read-only", 15, nil, "check"},
		{lone, update, "leader", "failed", 15, nil, dead},
		{lone, read, "leader", "rest", 15, nil, "check"},
		{prepared, update, "leader", "rest", 18, nil, "check"},
		{executed, update, "leader", "checked", 18, nil, covered},
		{among, update, "leader", "block", 15, nil, "check"},
		{lone, update, "leader", "rest", 15, stale, "check"},
		{lone, update, "leader", "checked", 15, stale, covered},
		{lone, update, "leader", "rest", 18, unsynced, "register"},
		{lone, update, "leader", "rest", 15, unsynced, "check"},
		{lone, update, "leader", "rest", 18, perhaps, "register"},
		{prepared, update, "leader", "rest", 18, unsynced, "check"},
		{prepared, update, "leader", "rest", 18, perhaps, "register"},
		{prepared, update, "leader", "rest", 15, perhaps, "check"},
		{executed, update, "leader", "rest", 18, perhaps, "check"},

		// A read-only mode that was handed on, which a leader's check undoes.
		{lone, update, "leader", "block", 15, inherits, "undo, check"},
		{prepared, update, "leader", "read-only", 15, inherits, "undo, check"},
		{among, update, "leader", "block", 15, inherits, "undo, check"},
		{lone, update, "leader", "checked", 15, inherits, covered},
		{lone, update, "leader", "block", 15, func(q *situation) { inherits(q); stale(q) }, "check"},
		{lone, update, "follower", "block", 15, inherits, "check"},
		{lone, read, "follower", "block", 16, inherits, "read-only mode"},
		{lone, "call p()", "leader", "block", 15, func(q *situation) { inherits(q); refused(q) }, "undo, check"},
		{lone, update, "leader", "block", 15, func(q *situation) { inherits(q); discards(q) }, "undo, verdict"},

		// A text that shows itself.
		{among, update, "leader", "block", 15, whole, "as one"},
		{among, update, "leader", "checked", 15, whole, covered},
		{among, "commit", "leader", "block", 15, whole, harmless},
		{among, "lock t", "leader", "rest", 18, whole, "register"},
		{among, update, "follower", "block", 15, whole, "check"},
		{among, update, "leader", "block", 15, func(q *situation) { whole(q); stale(q) }, "check"},

		// What needs nothing.
		{lone, "begin", "leader", "rest", 15, nil, harmless},
		{lone, "commit", "follower", "block", 15, nil, harmless},
		{prepared, "set work_mem = '1MB'", "follower", "rest", 15, nil, harmless},
		{lone, "discard all", "follower", "rest", 18, nil, harmless},
		{executed, "rollback to a", "follower", "failed", 15, nil, dead},
		{lone, "savepoint a", "follower", "rest", 15, nil, harmless},
		{lone, "lock t", "leader", "rest", 15, nil, harmless},
		{prepared, "lock t", "leader", "rest", 15, nil, "register"},
		{prepared, "lock t", "leader", "rest", 18, nil, "register"},
		{prepared, "lock t", "leader", "rest", 18, batchRan, "register"},
		{lone, "lock t", "leader", "block", 15, nil, "register"},

		// What cannot share a transaction, and what could not be parsed.
		{lone, "vacuum t", "leader", "rest", 15, nil, "register"},
		{lone, "vacuum t", "leader", "block", 15, nil, "check"},
		{lone, "do $$begin end$$", "leader", "rest", 15, registered, "pass: while the backend is registered"},
		{lone, "call p()", "leader", "rest", 15, refused, "check"},
		{lone, "call p()", "leader", "rest", 15, unknownFence, "refuse ZF004"},
		{lone, "call p()", "leader", "checked", 15, nil, covered},
		{lone, "vacuum t", "follower", "rest", 15, nil, "check"},
		{lone, garbage, "leader", "checked", 15, nil, "register"},
		{prepared, garbage, "leader", "rest", 15, nil, "register"},
		{lone, garbage, "leader", "failed", 15, nil, "register"},
		{prepared, garbage, "leader", "failed", 15, nil, dead},
		{lone, "select current_query()", "leader", "rest", 15, nil, "register"},
		{lone, "select current_query()", "leader", "checked", 15, nil, covered},
		{lone, "execute p", "leader", "rest", 15, nil, "check"},
		{executed, garbage, "leader", "failed", 15, nil, "register"},
		{lone, garbage, "follower", "rest", 15, nil, "check"},
		{lone, "declare k cursor for select 1", "leader", "rest", 15, nil, "register"},
		{lone, "declare k cursor for select 1", "leader", "block", 15, nil, "check"},
		{lone, "declare k cursor for select 1", "leader", "block", 15, open, "register"},
		{lone, "declare k cursor for select 1", "follower", "rest", 16, nil, "refuse 25P01"},
		{lone, "declare k cursor for select 1", "follower", "block", 16, nil, "read-only mode"},
		{lone, "prepare transaction 'x'", "leader", "checked", 15, nil, "refuse ZF005"},
		{prepared, "prepare transaction 'x'", "follower", "block", 15, nil, "refuse ZF005"},
		{lone, "commit prepared 'x'", "leader", "rest", 15, nil, "refuse ZF005"},
		{lone, "prepare transaction 'x'", "leader", "failed", 15, nil, dead},

		// Who does not lead.
		{lone, update, "follower", "rest", 15, nil, "check"},
		{lone, update, "follower", "checked", 15, nil, covered},
		{lone, read, "follower", "rest", 16, nil, "read-only mode"},
		{prepared, read, "follower", "block", 18, nil, "read-only mode"},
		{lone, read, "follower", "read-only", 16, nil, quiet},
		{lone, update, "follower", "read-only", 16, nil, "check"},
		{lone, read, "follower", "rest", 15, catalog, "catalog"},
		{lone, read, "follower", "rest", 15, refreshed, "check"},
		{lone, read, "follower", "rest", 15, nil, "check"},
		{lone, update, "vacant", "rest", 15, nil, "campaign"},
		{lone, update, "vacant", "rest", 15, asked, "check"},
		{lone, read, "vacant", "rest", 16, nil, "read-only mode"},
		{lone, update, "lapsed", "rest", 15, nil, "confirm"},
		{lone, update, "lapsed", "rest", 15, asked, "lapsed"},
		{lone, update, "lapsed", "rest", 15, stale, "check"},
		{lone, update, "fault", "rest", 15, nil, "refuse ZF002"},
		{lone, "begin", "fault", "rest", 15, nil, harmless},

		// SHOW of a parameter of Fencepost's.
		{lone, "show fencepost.role", "leader", "rest", 15, nil, "answer"},
		{executed, "show fencepost.role", "follower", "block", 15, nil, "answer"},
		{prepared, "show fencepost.role", "follower", "block", 15, nil, harmless},
		{among, "show fencepost.role", "vacant", "block", 15, nil, "campaign"},
		{among, "show fencepost.role", "vacant", "block", 15, asked, "answer"},
		{executed, "show fencepost.role", "leader", "failed", 15, nil, dead},
		{lone, "show fencepost.role", "leader", "rest", 15, unfenced, harmless},

		// A snapshot that was imported.
		{lone, update + " where current_query() <> ''", "leader", "block", 15, nil, "register"},
		{lone, update + " where current_query() <> ''", "leader", "block", 15, imported, "check"},
		{lone, update + " where current_query() <> ''", "leader", "checked", 15, imported, covered},
		{lone, garbage, "leader", "block", 15, imported, "refuse ZF005"},
		{lone, garbage, "follower", "block", 15, imported, "check"},
		{lone, garbage + "; set transaction snapshot 'x'; " + garbage, "leader", "rest", 15, nil, "refuse ZF005"},
		{lone, "set transaction snapshot 'x'", "leader", "block", 15, nil, harmless},
		{call, garbage, "leader", "block", 15, imported, "refuse ZF005"},
		{prepared, garbage, "leader", "block", 15, imported, "check"},
		{executed, garbage, "leader", "block", 18, imported, "check"},
		{executed, garbage, "leader", "rest", 15, imported, "refuse ZF005"},
		{lone, "do $$begin commit; set transaction snapshot 'x'; end$$", "leader", "rest", 15, nil, "refuse ZF005"},
		{lone, "do $$begin commit; set transaction snapshot 'x'; end$$", "leader", "block", 15, nil, "check"},
		{prepared, update, "leader", "block", 18, imported, "check"},

		// Fast path calls.
		{call, garbage, "leader", "rest", 15, nil, "register"},
		{call, garbage, "leader", "checked", 15, nil, covered},
		{call, garbage, "leader", "failed", 15, nil, dead},
		{call, garbage, "follower", "read-only", 16, nil, "check"},
		{call, garbage, "follower", "rest", 15, unfenced, "refuse ZF002"},

		// Connections without a resource.
		{lone, update, "follower", "rest", 15, unfenced, "refuse ZF002"},
		{lone, read, "follower", "rest", 16, unfenced, "read-only mode"},
		{prepared, read, "follower", "read-only", 16, unfenced, quiet},
		{lone, read, "follower", "rest", 15, func(q *situation) { unfenced(q); catalog(q) }, "catalog"},
		{lone, read, "follower", "rest", 15, func(q *situation) { unfenced(q); refreshed(q) }, "refuse ZF002"},
		{prepared, read, "follower", "read-only", 15, func(q *situation) { unfenced(q); refreshed(q) }, "refuse ZF002"},
		{lone, read, "follower", "rest", 15, unfenced, "refuse ZF002"},
		{lone, read, "follower", "rest", 15, fenceless, "read-only mode"},
		{lone, update, "follower", "rest", 15, fenceless, "refuse ZF002"},
		{lone, "reset transaction_read_only", "follower", "read-only", 15, unfenced, "refuse ZF002"},
		{lone, garbage, "follower", "rest", 15, unfenced, "refuse ZF002"},
		{lone, "vacuum t", "follower", "rest", 15, unfenced, "refuse ZF002"},
		{lone, "declare k cursor for select 1", "follower", "rest", 16, unfenced, "refuse 25P01"},
		{lone, "set fencepost.role = 'leader'", "leader", "rest", 15, nil, "refuse 55P02"},
		{prepared, "reset fencepost.worker", "follower", "block", 15, nil, "refuse 55P02"},
		{lone, "set fencepost.resource = 'r'", "follower", "rest", 15, unfenced, "refuse 55P02"},
		{lone, "set fencepost.resource = 'r'", "follower", "rest", 15, passing, "pass: unfenced by configuration"},
		{lone, "set fencepost.epoch = 5", "leader", "rest", 15, nil, harmless},

		// A token.
		{lone, "set fencepost.token = '43'", "leader", "rest", 15, nil, "join"},
		{executed, "set fencepost.token = '43'", "follower", "rest", 18, nil, "join"},
		{prepared, "set fencepost.token = '43'", "leader", "rest", 15, nil, harmless},
		{lone, "set fencepost.token = '43'", "leader", "rest", 15, joined, harmless},
		{lone, "set fencepost.token = '43'", "leader", "rest", 15, notJoined, "refuse ZF006"},
		{lone, "set fencepost.token = '43'", "leader", "failed", 15, nil, dead},
		{among, "set fencepost.token = '43'", "leader", "block", 15, nil, "refuse 25001"},
		{lone, "set local fencepost.token = '43'", "leader", "rest", 15, nil, "refuse 55P02"},
		{lone, "set fencepost.token = 'next'", "leader", "rest", 15, nil, "refuse 22023"},
		{executed, "reset fencepost.token", "leader", "rest", 15, nil, "refuse 22023"},
		{lone, "set fencepost.token = '43'", "follower", "rest", 15, unfenced, "refuse 55P02"},
		{lone, "set fencepost.token = '43'", "leader", "rest", 15, pending, "wait"},
		{executed, "set fencepost.token = '43'", "leader", "block", 15, pending, "wait"},
		{lone, "set fencepost.token = '43'", "leader", "block", 15, nil, "refuse 25001"},
		{executed, "set fencepost.token = '43'", "leader", "rest", 15, open, "join"},
		{executed, "set fencepost.token = '43'", "leader", "rest", 15, batchRan, "refuse 25001"},
		{lone, "set fencepost.token = '43'", "leader", "rest", 18, unsynced, "refuse 25001"},
		{lone, "set fencepost.token = '43'", "leader", "rest", 15, func(q *situation) { copying(q); pending(q) }, "refuse 25001"},
		{lone, update, "follower", "rest", 15, passing, "pass: unfenced by configuration"},

		// What the client has chosen.
		{lone, "set local fencepost.resource = 'b'", "leader", "block", 15, nil, "join"},
		{executed, "set local fencepost.resource = 'b'", "follower", "block", 18, nil, "join"},
		{prepared, "set local fencepost.resource = 'b'", "leader", "block", 15, nil, harmless},
		{lone, "set local fencepost.resource = 'b'", "leader", "block", 15, chose, "choose"},
		{among, "set local fencepost.resource = 'b'", "leader", "outside", 15, func(q *situation) { chose(q); begun(q) }, "choose"},
		{lone, "set local fencepost.resource = 'b'", "leader", "block", 15, notChosen, "refuse 53400"},
		{lone, "set local fencepost.resource = 'b'", "leader", "block", 15, pending, "wait"},
		{lone, "set local fencepost.resource = 'b'", "leader", "rest", 15, nil, "refuse ZF005"},
		{lone, "set local fencepost.resource = 'b'", "leader", "checked", 15, nil, "refuse ZF005"},
		{lone, "set local fencepost.resource = 'b'", "follower", "read-only", 15, nil, "refuse ZF005"},
		{lone, "set local fencepost.resource = 'b'", "leader", "block", 15, func(q *situation) { q.chain.had = hadWork }, "refuse ZF005"},
		{lone, "set local fencepost.resource to default", "leader", "block", 15, nil, "refuse 22023"},
		{lone, "set fencepost.resource = 'b,,c'", "leader", "rest", 15, nil, "refuse 22023"},
		{lone, update, "follower", "block", 15, func(q *situation) { registered(q); q.chain.had = hadLock }, "pass: while the backend is registered"},
		{lone, update, "lapsed", "block", 15, func(q *situation) { registered(q); q.chain.had = hadLock }, "pass: while the backend is registered"},
		{lone, update, "follower", "block", 15, func(q *situation) { q.chain.had = hadLock }, "check"},
		{executed, garbage, "leader", "rest", 15, func(q *situation) { registered(q); q.statement.guess.Chooses = true }, "refuse ZF005"},
		{lone, "set fencepost.resource from current", "leader", "rest", 15, chose, "refuse 22023"},
		{lone, "set fencepost.resource = 'b'", "leader", "rest", 15, nil, "join"},
		{lone, "set fencepost.resource = 'b'", "leader", "rest", 15, chose, "choose"},
		{lone, "set fencepost.resource = 'b'", "leader", "block", 15, nil, "refuse ZF005"},
		{among, "set fencepost.resource = 'b'", "leader", "rest", 15, nil, "refuse ZF005"},
		{executed, "set fencepost.resource = 'b'", "leader", "rest", 15, batchRan, "refuse ZF005"},
		{lone, "set fencepost.resource = 'b'", "leader", "rest", 15, pending, "wait"},
		{lone, "reset all", "leader", "rest", 15, nil, harmless},
		{lone, "reset all", "leader", "rest", 15, chosen, "join"},
		{lone, "discard all", "leader", "rest", 15, chosen, "join"},
		{lone, "reset all", "leader", "block", 15, chosen, "refuse ZF005"},
		{lone, update, "leader", "rest", 15, chosen, "check"},
		{lone, "lock table t", "leader", "block", 15, chosen, "check"},
		{lone, "vacuum t", "leader", "rest", 15, func(q *situation) { chosen(q); registered(q) }, "refuse ZF005"},
		{lone, "set fencepost.epoch = 3", "leader", "rest", 15, chosen, "refuse ZF005"},
		{lone, "set fencepost.token = '3'", "leader", "rest", 15, chosen, "refuse ZF005"},

		// What is left to the guards of tables.
		{lone, update, "follower", "rest", 15, guarded, "pass: left to the guards of tables"},
		{prepared, update, "follower", "block", 15, guarded, "pass: left to the guards of tables"},
		{executed, garbage, "follower", "rest", 18, guarded, "pass: left to the guards of tables"},
		{call, garbage, "follower", "rest", 15, guarded, "pass: left to the guards of tables"},
		{lone, "do $$begin commit; end$$", "follower", "rest", 15, guarded, "pass: left to the guards of tables"},
		{lone, update, "fault", "rest", 15, guarded, "refuse ZF002"},
		{lone, update, "vacant", "rest", 15, guarded, "campaign"},
		{lone, read, "vacant", "rest", 15, guarded, "pass: left to the guards of tables"},
		{lone, update, "vacant", "rest", 15, func(q *situation) { guarded(q); asked(q) }, "pass: left to the guards of tables"},
		{lone, update, "leader", "rest", 15, guarded, "check"},
		{lone, update, "leader", "rest", 15, func(q *situation) { guarded(q); asked(q) }, "check"},
		{lone, update, "follower", "rest", 15, func(q *situation) { guarded(q); q.epochs.inHand.announced = 5 }, "check"},
		{lone, update, "lapsed", "rest", 15, func(q *situation) { guarded(q); q.epochs.inHand.announced, q.done = 5, NeedConfirm }, "lapsed"},
		{lone, update, "lapsed", "rest", 15, func(q *situation) { guarded(q); q.epochs.inHand.announced = 0 }, "check"},
		{lone, update, "follower", "rest", 15, func(q *situation) { guarded(q); q.status.Holder.Guards = 0 }, "check"},
		{lone, "prepare transaction 'x'", "follower", "block", 15, guarded, "refuse ZF005"},

		// Where tables have guards, a session that goes by the registry claims its epoch.
		{lone, "call p()", "leader", "rest", 15, func(q *situation) { guarded(q); registered(q) }, claimed},
		{executed, garbage, "leader", "rest", 15, func(q *situation) { guarded(q); registered(q) }, claimed},
		{lone, "vacuum t", "leader", "rest", 15, func(q *situation) { guarded(q); registered(q) }, "pass: while the backend is registered"},

		// Where stale writes are discarded, a verdict takes the place of the check.
		{lone, update, "leader", "rest", 15, discards, "verdict"},
		{prepared, read, "leader", "block", 18, discards, "verdict"},
		{lone, update, "former", "rest", 15, discards, "verdict"},
		{lone, update, "follower", "rest", 15, discards, "check"}, // it has not led
		{lone, update, "leader", "checked", 15, discards, covered},
		{lone, "vacuum t", "leader", "rest", 15, discards, "register"},
		{lone, update, "vacant", "rest", 15, discards, "campaign"},
		{lone, update, "lapsed", "rest", 15, discards, "confirm"},
		{lone, update, "lapsed", "rest", 15, func(q *situation) { discards(q); asked(q) }, "lapsed verdict"},
		{lone, update, "lapsed", "rest", 15, func(q *situation) { discards(q); q.epochs.inHand.announced = 0 }, "verdict"},
		{lone, update, "fault", "rest", 15, discards, "refuse ZF002"},
		{lone, update, "leader", "rest", 15, asking, "check"},
		{lone, update, "leader", "rest", 15, func(q *situation) { discards(q); copying(q) }, "check"},
		{among, update, "leader", "block", 15, discards, "check"},
		{prepared, "lock t", "leader", "rest", 15, discards, "register"},
		{lone, "fetch from k", "leader", "rest", 18, discards, "check"},
		{lone, "fetch from k", "leader", "block", 18, discards, "verdict"},
		{lone, "copy t from stdin", "leader", "rest", 18, discards, "check"},
		{executed, "copy t from stdin", "leader", "rest", 18, discards, "verdict"},
		{lone, "select from pg_cursors", "leader", "rest", 18, discards, "check"},
		{lone, "select from pg_cursors", "leader", "rest", 15, discards, "verdict"},

		// A transaction that is stale, as a verdict has said.
		{lone, update, "follower", "stale", 15, discards, "discard"},
		{executed, update, "leader", "stale", 18, discards, "discard"},
		{lone, update, "follower", "stale", 15, func(q *situation) { discards(q); pending(q) }, "wait"},
		{executed, update, "follower", "stale", 15, func(q *situation) { discards(q); pending(q) }, "discard"},
		{prepared, update, "follower", "stale", 15, discards, quiet},
		{among, update, "follower", "stale", 15, discards, "check"},
		{call, garbage, "follower", "stale", 15, discards, "check"},
		{lone, garbage, "follower", "stale", 15, discards, "check"},
		{lone, "create table u ()", "follower", "stale", 15, discards, "check"},
		{lone, read, "follower", "stale", 16, discards, quiet},
		{lone, read, "follower", "stale", 15, func(q *situation) { discards(q); catalog(q) }, "catalog"},
		{lone, read, "follower", "stale", 15, func(q *situation) { discards(q); refreshed(q) }, "check"},
		{lone, "commit", "follower", "stale", 15, discards, harmless},
	} {
		name := fmt.Sprintf("carrier %d, %q, %s, %s, %d", c.carrier, c.sql, c.worker, c.block, c.version)
		st := workers[c.worker]
		var txn gate.Txn
		for _, a := range blocks[c.block] {
			txn.Answer(a, false)
		}
		txn.Send(gate.Starts, false)
		q := &situation{
			carrier: c.carrier, statement: described(c.sql),
			surroundings: &surroundings{
				mode: ModeFenced, config: &Config{Version: c.version, Unfenced: fencing.UnfencedRefusal("u")},
				inHand: &inHand{status: &st}, txn: &txn, batch: &batch{}, copy: &copyState{}, pending: &replyQueue{}, names: &names{},
				epochs: &announced{inHand: transaction{announced: 5}}, chain: &chain{}, settings: &settings{}, registration: &gate.Registration{},
				reads: func(s *statement) bool { return s.class == isRead },
			},
		}
		if c.but != nil {
			c.but(q)
		}
		d := q.decide()
		occurs[d.action] = true
		if got := d.String(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	for a := forward; a <= needsMoreFor; a++ {
		if !occurs[a] {
			t.Errorf("no row of the table decides %q", decision{action: a})
		}
	}
}

// described is what the proxy knows of a text.
func described(sql string) *statement {
	t := sqltext.Analyze(sql, sqltext.DefaultSettings)
	if !t.Known || len(t.Statements) != 1 {
		return &statement{text: sql, guess: sqltext.GuessOf([]byte(sql))}
	}
	s := &statement{known: true, parsed: parseConfirmed, class: isWrite, info: t.Statements[0]}
	if s.info.Read {
		s.class = isRead
	}
	return s
}

// TestACheckAfterARefusedNoteCannotPass: what the registry has refused goes after a
// check, which says why. The candidacy may lead again between the two, so that a
// check with the epoch held now would pass, and the text go on after a COMMIT.
func TestACheckAfterARefusedNoteCannotPass(t *testing.T) {
	t.Parallel()
	const text = "not one statement; commit; insert into t values (1)"
	for name, message := range map[string][]byte{
		"as a Query": wiretest.Query(text), "as a Parse": wiretest.Parse("", text),
	} {
		st := *standings[0]
		m := fuzzMachine(ModeFenced, &st)
		p := &gate.Plan{}
		p.Reset(message)
		if _, need, err := m.FromClient(message, p); need.Kind != NeedRegister || err != nil {
			t.Fatalf("%s: need %v, want the registry", name, need)
		}
		st.Role = fencing.Follower
		if e := m.RegisterRequest(); e.Held != 0 {
			t.Fatalf("%s: without the lease it holds epoch %d", name, e.Held)
		}
		m.Answer(Answer{Need: NeedRegister, Refusal: &fencing.Refusal{SQLState: fencing.StateNotLeader}})
		st.Role = fencing.Leader
		p.Reset(message)
		if _, need, err := m.FromClient(message, p); need.Kind != NeedNothing || err != nil {
			t.Fatalf("%s: need %v after the registry's refusal", name, need)
		}
		sent, _ := p.Bytes(nil)
		passes := fencing.InlineCheckSQL(7, "w", "i", false, 5, 5)
		refuses := fencing.InlineCheckSQL(7, "w", "i", false, 5, 0)
		held5 := append([]byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5}, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5)
		held0 := append([]byte{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5}, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0)
		if bytes.Contains(sent, []byte(passes)) || bytes.Contains(sent, held5) || !bytes.Contains(sent, []byte(refuses)) && !bytes.Contains(sent, held0) && !bytes.Contains(sent, []byte("(5,0)")) {
			t.Errorf("%s: %q goes to the server", name, sent)
		}
	}
}

// TestARefusedTextMayHaveTakenNames: the check in front of a text that the registry has refused
// refuses too. Nothing rests on that: the text could give the names of the checks to others, so the
// next statement does not use them.
func TestARefusedTextMayHaveTakenNames(t *testing.T) {
	t.Parallel()
	m := leading(15)
	var p gate.Plan
	text := wiretest.Query(`prepare x as select 1; prepare U&'\zzzz'`)
	p.Reset(text)
	if _, need, err := m.FromClient(text, &p); need.Kind == NeedAnalysis {
		m.Answer(Answer{Need: NeedAnalysis, Text: m.config.Cache.Analyze(need.Text, need.Settings)})
	} else if err != nil {
		t.Fatal(err)
	}
	p.Reset(text)
	if _, need, err := m.FromClient(text, &p); need.Kind != NeedRegister || err != nil {
		t.Fatalf("need %v, %v; want the registry", need, err)
	}
	m.RegisterRequest()
	m.Answer(Answer{Need: NeedRegister, Refusal: &fencing.Refusal{SQLState: fencing.StateSuperseded}})
	check := "EXECUTE " + m.checks.names.check
	if sent := pumpUp(t, m, text, 1<<20); !bytes.Contains(sent, []byte(check)) {
		t.Fatalf("%q is sent, want a check in front", sent)
	}
	if sent := pumpUp(t, m, wiretest.Query("insert into t values (1)"), 1<<20); bytes.Contains(sent, []byte(check)) {
		t.Errorf("%q is sent, which names the old check", sent)
	}
}

// TestADecisionLooksAtOneCatalog: the catalog may change at any time, so that a decision which
// looked at it twice could contradict itself.
func TestADecisionLooksAtOneCatalog(t *testing.T) {
	t.Parallel()
	m := leading(15)
	looks := 0
	m.config.Catalog = func() *fencing.Catalog { looks++; return nil }
	m.config.Mode, m.config.Unfenced = ModeReadOnly, fencing.UnfencedRefusal("u")
	m.around = m.surroundings()
	m.inHand.refreshed = true
	s := described("select 1")
	s.provable = &s.info
	q := m.situation(lone, s)
	if d := m.decide(&q); d.action != refuseFirst || looks != 1 {
		t.Errorf("%s after %d looks at the catalog, want a refusal after one", d, looks)
	}
}

// fencelessCatalog is the catalog of a database that has no fence.
func fencelessCatalog(t *testing.T) *fencing.Catalog {
	t.Helper()
	none := fencing.NewCatalogs(func(context.Context, string) (fencing.CatalogReader, func(), error) {
		return nil, nil, fencing.ErrNoFence
	})
	c, _, err := none.Open(t.Context(), "db")
	if err != nil {
		t.Fatal(err)
	}
	return c.Catalog()
}

// TestARefusedReadNamesTheCatalog: what cannot be proven because the catalog could not be read
// is not said to be the text's fault.
func TestARefusedReadNamesTheCatalog(t *testing.T) {
	t.Parallel()
	for why, catalog := range map[string]func() *fencing.Catalog{
		"could not read in time": func() *fencing.Catalog { return nil },
		"its text is not one":    nil,
	} {
		q := &situation{statement: described("select 1"), surroundings: &surroundings{inHand: &inHand{}, config: &Config{Unfenced: fencing.UnfencedRefusal("u"), Catalog: catalog}}}
		if r := q.unproven(); !strings.Contains(r.Message, why) {
			t.Errorf("%q; want that it says %q", r.Message, why)
		}
	}
}
