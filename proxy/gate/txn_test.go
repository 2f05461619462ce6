package gate

import "testing"

// step is something that is sent or answered.
type step func(t *Txn)

func send(s Sent) step { return func(t *Txn) { t.Send(s, false) } }

// starts is the next message, while replies are pending or not.
func starts(pending bool) step { return func(t *Txn) { t.Send(Starts, pending) } }

// ready is a ReadyForQuery after which nothing is pending.
func ready(a Answered) step { return func(t *Txn) { t.Answer(a, false) } }

func answer(a Answered) step { return func(t *Txn) { t.Answer(a, true) } }

func TestTxn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		steps []step
		state State
		cover Coverage
	}{
		{"new", nil, AtRest, Uncovered},
		{"the first message", []step{starts(false)}, AtRest, Uncovered},
		{"after the first message", []step{starts(false), send(Message)}, Outside, Uncovered},
		{"after a check", []step{starts(false), send(RunCheck), send(Message)}, Outside, Checked},
		{"after a batch", []step{starts(false), send(RunCheck), send(Message), send(EndBatch)}, Unknown, Uncovered},
		{"a batch while replies are pending", []step{starts(false), send(Message), send(EndBatch), starts(true)}, Unknown, Uncovered},
		{"at rest again", []step{starts(false), send(RunCheck), send(Message), send(EndBatch), answer(CheckPassed), ready(Idle), starts(false)}, AtRest, Uncovered},
		{"ready, with more pending", []step{starts(false), send(Message), send(EndBatch), answer(Idle)}, Unknown, Uncovered},
		{"in a block", []step{starts(false), send(Message), send(EndBatch), ready(Block), starts(false)}, InBlock, Uncovered},
		{"in a checked block", []step{starts(false), send(Message), send(EndBatch), answer(CheckPassed), ready(Block), starts(false)}, InBlock, Checked},
		{"in a failed block", []step{starts(false), send(Message), send(EndBatch), answer(CheckPassed), ready(FailedBlock), starts(false)}, Failed, Uncovered},
		// BEGIN was executed and answered, but no ReadyForQuery came since: the
		// last one still says idle.
		{"after a BEGIN that was flushed", []step{starts(false), send(Message), send(BeginBlock), starts(false)}, Unknown, Uncovered},
		{"after an executed SELECT that was flushed", []step{starts(false), send(RunCheck), send(Message), starts(false)}, Outside, Checked},
		{"after COMMIT in a batch", []step{starts(false), send(RunCheck), send(Message), send(MayEnd)}, Outside, Uncovered},
		{"after COMMIT in a block", []step{ready(Block), starts(false), send(Message), send(MayEnd)}, Unknown, Uncovered},
		{"several statements in one text", []step{starts(false), send(BeginBlock), send(Message)}, Unknown, Uncovered},
		{"read-only mode undone", []step{starts(false), send(SetReadOnly), send(UndoReadOnly), send(Message)}, Outside, Uncovered},
		{"a check is not undone", []step{starts(false), send(RunCheck), send(UndoReadOnly), send(Message)}, Outside, Checked},
		{"read-only mode and RELEASE", []step{answer(ReadOnlySet), answer(ReadOnlyUndone), ready(Block), starts(false)}, InBlock, Uncovered},
		{"a verdict that was not taken", []step{starts(false), send(Message), answer(VerdictStale)}, Outside, Uncovered},
		{"a verdict that says stale", []step{starts(false), send(Message), answer(VerdictStale), send(TakeVerdict)}, Outside, Discarded},
		{"a verdict that lets pass", []step{starts(false), send(Message), answer(CheckPassed), send(TakeVerdict)}, Outside, Checked},
		{"a verdict and RELEASE", []step{answer(VerdictStale), answer(ReadOnlyUndone), ready(Block), starts(false)}, InBlock, Uncovered},
		{"a verdict undone", []step{starts(false), send(Message), answer(VerdictStale), send(TakeVerdict), send(UndoReadOnly)}, Outside, Uncovered},
		{"a verdict and ROLLBACK", []step{answer(VerdictStale), answer(TransactionEnded), ready(Block), starts(false)}, InBlock, Uncovered},
		{"in a stale block", []step{answer(VerdictStale), ready(Block), starts(false)}, InBlock, Discarded},
		{"a check and RELEASE", []step{answer(CheckPassed), answer(ReadOnlyUndone), ready(Block), starts(false)}, InBlock, Checked},
		{"a check and ROLLBACK", []step{answer(CheckPassed), answer(TransactionEnded), ready(Block), starts(false)}, InBlock, Uncovered},
		{"a Sync that was ignored", []step{starts(false), send(RunCheck), send(Message), send(EndBySync), answer(SyncIgnored), starts(false)}, Outside, Checked},
		{"Syncs that were ignored in a block", []step{ready(Block), starts(false), send(RunCheck), send(Message), send(EndBySync), send(EndBySync), answer(SyncIgnored), starts(false)}, InBlock, Checked},
		{"a Sync that was ignored, behind the end of a block", []step{answer(CheckPassed), ready(Block), starts(false), send(Message), send(MayEnd), send(EndBySync), answer(SyncIgnored), starts(false)}, Unknown, Uncovered},
		{"a Sync that was ignored, behind a Query", []step{starts(false), send(RunCheck), send(Message), send(EndBatch), send(EndBySync), answer(SyncIgnored)}, Unknown, Uncovered},
		{"a Sync that was ignored, and what was sent since", []step{starts(false), send(RunCheck), send(Message), send(EndBySync), starts(true), answer(SyncIgnored)}, Unknown, Uncovered},
		{"a Sync that was ignored, after one that was not", []step{starts(false), send(RunCheck), send(Message), send(EndBySync), ready(Idle), starts(false), send(EndBySync), answer(SyncIgnored)}, AtRest, Uncovered},
		{"answered without a ReadyForQuery", []step{answer(CheckPassed), ready(Block), starts(false), send(Message), send(EndBatch), starts(false)}, Unknown, Uncovered},
		{"idle ends cover", []step{answer(CheckPassed), ready(Idle), ready(Block), starts(false)}, InBlock, Uncovered},
	} {
		var txn Txn
		for _, s := range c.steps {
			s(&txn)
		}
		if txn.State() != c.state || txn.Coverage() != c.cover {
			t.Errorf("%s: state %d, cover %d; want %d, %d", c.name, txn.State(), txn.Coverage(), c.state, c.cover)
		}
		if _, ok := txn.Covered(); ok != (c.cover != Uncovered) {
			t.Errorf("%s: a message is covered: %v", c.name, ok)
		}
		if _, ok := txn.Dead(); ok != (c.state == Failed) {
			t.Errorf("%s: a message is in a block that has failed: %v", c.name, ok)
		}
		if txn.AtRest() != (c.state == AtRest) {
			t.Errorf("%s: at rest: %v", c.name, txn.AtRest())
		}
	}
}

func TestSkippingEndsWithReadyForQuery(t *testing.T) {
	t.Parallel()
	var txn Txn
	txn.Answer(Skipping, true)
	if _, ok := txn.Skipped(true); ok {
		t.Error("skipped while replies are pending: one may be the ReadyForQuery")
	}
	if _, ok := txn.Skipped(false); !ok {
		t.Error("not skipped")
	}
	txn.Answer(Idle, false)
	if _, ok := txn.Skipped(false); ok {
		t.Error("skipped after ReadyForQuery")
	}
}
