package gate

import (
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// State is where a transaction stands.
type State uint8

const (
	// Unknown: replies decide that are still pending.
	Unknown State = iota
	// AtRest: the server is idle, outside any transaction, and nothing was sent
	// since it said so.
	AtRest
	// Outside: no block was begun, but messages were sent since the session was
	// at rest. They share an implicit transaction.
	Outside
	// InBlock: an explicit transaction block, as ReadyForQuery said.
	InBlock
	// Failed: a block that has failed, as ReadyForQuery said.
	Failed
)

// Coverage is what a transaction was given before the client's messages.
type Coverage uint8

const (
	Uncovered Coverage = iota
	ReadOnly           // read-only mode was set
	Discarded          // so it was, by a verdict: the transaction is stale, and its writes are discarded
	Checked            // the epoch was checked, and the sequence is locked; or the transaction is refused
)

// IsReadOnly reports whether read-only mode was set, and the epoch not checked.
func (c Coverage) IsReadOnly() bool { return c == ReadOnly || c == Discarded }

// Sent is something that goes to the server and matters to the transaction.
type Sent uint8

const (
	// Starts: a message that works in a transaction is about to be sent.
	Starts Sent = iota
	// Message: a message goes out, the client's or the proxy's own.
	Message
	// SetReadOnly: read-only mode, or what is refused in it.
	SetReadOnly
	// RunCheck: a check, or a refusal in its place: what follows it in the same
	// batch or text is skipped if it fails.
	RunCheck
	// BeginBlock: BEGIN, or a text of several statements, which is a block of its
	// own.
	BeginBlock
	// MayEnd: what may end the transaction, or a savepoint, or is not known.
	MayEnd
	// UndoReadOnly: what may undo read-only mode.
	UndoReadOnly
	// ResetSettings: what resets a setting that the check has made.
	ResetSettings
	// TakeVerdict: a verdict was sent before, and everything is answered.
	TakeVerdict
	// EndBatch: Query or FunctionCall, after which only ReadyForQuery says what holds.
	EndBatch
	// EndBySync: Sync, which does the same unless the server ignores it among COPY data.
	EndBySync
)

// Answered is something that the server said and that matters to the
// transaction.
type Answered uint8

const (
	CheckPassed      Answered = iota // our check has completed
	ReadOnlySet                      // so has our read-only mode
	VerdictStale                     // our verdict has completed: it has set read-only mode
	TransactionEnded                 // the tag of COMMIT or ROLLBACK
	ReadOnlyUndone                   // the tag of what may undo read-only mode
	SettingsReset                    // the tag of what may reset a setting that the check has made
	Skipping                         // an error after which everything is skipped up to a Sync
	PerhapsSkipping                  // the same, if the Syncs that were sent already were ignored, as it seems
	SyncIgnored                      // the Syncs that were sent last were ignored, and all before them is answered
	Idle                             // ReadyForQuery, by its status
	Block
	FailedBlock
)

// status is what a ReadyForQuery said.
type status uint8

const (
	idle status = iota
	block
	failedBlock
)

// skipping says whether the server reads messages without running them, up to the next
// Sync. It begins with an error, and every ReadyForQuery ends it.
type skipping uint8

const (
	runs skipping = iota
	// seemsToSkip rests on what the text of an error seems to say, which a function can
	// choose. Until the next Sync no other error makes it certain.
	seemsToSkip
	skips
)

// sent is what the messages of a batch say that were sent.
type sent struct {
	begun     bool // state and coverage hold for the batch in hand
	uncertain bool // that batch began while replies were pending
	state     State
	coverage  Coverage
}

// Txn is what is known of a session's transaction. The zero Txn is at rest.
// Send and Answer alone change it, one for each side.
type Txn struct {
	sent
	synced  sent // what was sent before the last Syncs; none if another message has ended the last batch
	pending bool // a message was sent since the ReadyForQuery that left none pending

	// What was answered.
	ready    status // by the last ReadyForQuery
	skipping skipping
	answered Coverage
	carried  Coverage // answered, at the last ReadyForQuery
}

// State returns where the transaction of the next message stands.
func (t *Txn) State() State {
	switch {
	case t.AtRest() && (!t.begun || t.state == Outside):
		return AtRest
	case !t.begun:
		return Unknown
	default:
		return t.state
	}
}

// AtRest reports that the server is idle, and that nothing was sent since.
func (t *Txn) AtRest() bool { return t.ready == idle && !t.pending }

// LeftIdle reports that the last ReadyForQuery left no transaction open. Something that was sent
// since may have begun one.
func (t *Txn) LeftIdle() bool { return t.ready == idle }

// LeftFailed reports that the last ReadyForQuery left a block that has failed. Something that was
// sent since may have ended it.
func (t *Txn) LeftFailed() bool { return t.ready == failedBlock }

// Settled reports that nothing was sent since the last ReadyForQuery.
func (t *Txn) Settled() bool { return !t.pending }

// IsOutside reports that the next message is known to stand outside any block.
func (t *Txn) IsOutside() bool {
	s := t.State()
	return s == AtRest || s == Outside
}

// Uncertain reports that the batch in hand began while replies were pending.
func (t *Txn) Uncertain() bool { return t.uncertain }

// Coverage is what the next message's transaction was given: confirmed, or in
// front of it in the same batch.
func (t *Txn) Coverage() Coverage { return t.coverage }

// ServerCoverage is what the server's transaction was given, as far as the server has said.
func (t *Txn) ServerCoverage() Coverage { return t.answered }

// Send follows something that goes to the server. pending says, of Starts,
// whether replies are pending; fresh that it took over what the last
// ReadyForQuery had said.
func (t *Txn) Send(s Sent, pending bool) (fresh bool) {
	if s == Message { // inlined, for every message
		t.pending = true
		return false
	}
	return t.send(s, pending)
}

// send is Send of anything but a Message.
func (t *Txn) send(s Sent, pending bool) (fresh bool) {
	switch s {
	case Starts:
		return t.starts(pending)
	case SetReadOnly:
		t.coverage = ReadOnly
	case RunCheck:
		t.coverage = Checked
	case BeginBlock:
		if t.state == Outside {
			t.state = Unknown
		}
	case MayEnd:
		t.coverage = Uncovered
		if t.state != Outside {
			t.state = Unknown
		}
	case UndoReadOnly:
		if t.coverage.IsReadOnly() {
			t.coverage = Uncovered
		}
	case ResetSettings:
		if t.coverage == Checked {
			t.coverage = Uncovered
		}
	case TakeVerdict:
		t.coverage = t.answered
	case EndBySync:
		if t.begun {
			t.synced = t.sent
		}
		t.sent = sent{}
	case EndBatch:
		t.synced, t.sent = sent{}, sent{}
	}
	return false
}

// starts takes over what the last ReadyForQuery said for the messages that
// follow, if nothing was sent since.
func (t *Txn) starts(pending bool) (fresh bool) {
	if t.begun {
		return false
	}
	if t.begun = true; pending || t.pending { // or it was answered without a ReadyForQuery
		t.uncertain = true
		return false
	}
	t.uncertain, t.state, t.coverage = false, Outside, Uncovered
	switch t.ready {
	case block:
		t.state, t.coverage = InBlock, t.carried
	case failedBlock:
		t.state = Failed
	}
	return true
}

// Answer follows something that the server said. pending says, of a
// ReadyForQuery, whether further replies are pending.
func (t *Txn) Answer(a Answered, pending bool) {
	switch a {
	case CheckPassed:
		t.answered = Checked
	case ReadOnlySet:
		t.answered = ReadOnly
	case VerdictStale:
		t.answered = Discarded
	case TransactionEnded:
		t.answered = Uncovered
	case ReadOnlyUndone:
		if t.answered.IsReadOnly() {
			t.answered = Uncovered
		}
	case SettingsReset:
		if t.answered == Checked {
			t.answered = Uncovered
		}
	case PerhapsSkipping:
		t.skipping = seemsToSkip
	case Skipping:
		if t.skipping == runs {
			t.skipping = skips
		}
	case SyncIgnored:
		if !t.begun {
			t.sent = t.synced
		}
	case Idle:
		t.ready, t.answered = idle, Uncovered
	case Block:
		t.ready = block
	case FailedBlock:
		t.ready = failedBlock
	}
	if a >= Idle {
		if t.carried, t.skipping, t.pending = t.answered, runs, pending; !pending {
			t.synced = sent{}
		}
	}
}

// Skips reports that the server skips everything up to the next Sync, as far as
// can be told.
func (t *Txn) Skips() bool { return t.skipping != runs }

// Covered is the reason of a message whose transaction was given a check, or is
// read-only.
func (t *Txn) Covered() (Reason, bool) {
	if t.coverage.IsReadOnly() {
		return Reason{readOnly}, true
	}
	return Reason{checked}, t.coverage == Checked
}

// Dead is the reason of a message in a block that has failed, where nothing runs
// but its end. It is none for a text that cannot be read: that may go on after
// the end.
func (t *Txn) Dead() (Reason, bool) { return Reason{failed}, t.State() == Failed }

// Skipped is the reason of any message while the server is known to skip
// everything. What only seems to be skipped has none.
func (t *Txn) Skipped(pending bool) (Reason, bool) {
	return Reason{failed}, t.skipping == skips && !pending
}

// Harmless is the reason of a statement that can neither read nor write anything
// of the database, or that only ends a transaction, on a server of this major
// version.
func (t *Txn) Harmless(s *sqltext.Statement, version Version) (Reason, bool) {
	return Reason{harmless}, unguarded(s) && (!s.UnsetsReadOnly || version.KeepsReadOnly())
}

// unguarded reports whether a statement of this kind needs nothing in front of
// it. A check in front of RELEASE or ROLLBACK TO would make it fail in a failed
// transaction.
func unguarded(s *sqltext.Statement) bool {
	switch s.Kind {
	case sqltext.Session, sqltext.Begin, sqltext.Commit, sqltext.Rollback,
		sqltext.Discard, sqltext.Deallocate, sqltext.ShowFence, sqltext.SetFence:
		return true
	default:
		return s.EndsSavepoint
	}
}

// NothingOutside is the reason of a Query of one statement, at rest, that
// Postgres refuses outside a transaction block before it looks at its parts, or
// that does nothing there: LOCK, SAVEPOINT, SET CONSTRAINTS and SET LOCAL. DECLARE is none
// of them, since its query is analyzed first, which may run functions.
func (t *Txn) NothingOutside(s *sqltext.Statement) (Reason, bool) {
	return Reason{harmless}, t.State() == AtRest && s.RequiresTransactionBlock && s.Kind != sqltext.ByMessage
}
