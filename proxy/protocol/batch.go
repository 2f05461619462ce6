package protocol

// batch is what was sent since the last Sync, Query or fast path call, the client's
// messages and Fencepost's. It begins empty. Messages of the extended protocol open it
// and move it on, a COMMIT, ROLLBACK or DISCARD ALL among them takes it back to open, and
// the next Sync, Query or fast path call ends it, which begins another.
//
// Only a Sync really ends a batch for the server: after a Query or a fast path call it
// may go on skipping what a failed batch has left, or keep the transaction open.
type batch struct {
	id       uint64 // batches are counted
	progress progress
	// snapshot: the client has parsed or bound a query.
	snapshot bool
	unsynced unsynced
	// ended is what Syncs have ended since the server was at rest, unless they stand among COPY data.
	ended unsynced
	// skipping: an earlier batch was ended by a Query or a fast path call. If it has
	// failed, the server skips everything up to a Sync.
	skipping bool
	// mayUndo: what was sent for a stale write may have run a function that undoes read-only
	// mode, and nothing has looked since.
	mayUndo bool
	// claimed: the session has claimed its epoch, and nothing was executed since.
	claimed bool
	unowed  unowed
	// untouched is the number of the last Bind, if nothing has come since that may run SQL; else 0.
	untouched uint64
}

// unowed says whether messages that are owed no reply were sent in the batch, the client's or
// Fencepost's. A server raises an expired statement_timeout at the next message, whatever it
// is. A later value replaces an earlier one, and flushPending becomes flushShown.
type unowed uint8

const (
	nothingUnowed unowed = iota
	// flushShown: a Flush. If an error answers it, the server skips everything up to a Sync. But
	// replies have come since, or messages were sent whose replies will show what became of it.
	flushShown
	// flushPending: a Flush, and neither has happened since.
	flushPending
	// strayUnowed: a message of COPY behind messages of the batch, perhaps outside a COPY. If
	// an error answers it, ReadyForQuery follows, and the server skips nothing.
	strayUnowed
)

// progress is how far a batch has come. What comes later includes what comes before.
type progress uint8

const (
	batchEmpty   progress = iota // no message
	batchOpen                    // messages, of which none has executed anything
	batchChecked                 // Fencepost's messages have executed something, the client's have not
	batchRan                     // the client's have
	// batchFailed: it has failed, and nothing of it goes to the server before its Sync. A Sync
	// of Fencepost's may have ended it there.
	batchFailed
)

// unsynced says whether the client has executed something after which neither a Sync nor
// what ends it in another way has come. The server goes on with its transaction until then. Before PostgreSQL 18 a Query
// and a fast path call end it, too.
type unsynced uint8

const (
	nothingUnsynced unsynced = iota
	// maybeUnsynced: the last that was executed may have committed, as VACUUM or a CALL do
	// inside. Only the answer to a Query says whether a transaction goes on.
	maybeUnsynced
	surelyUnsynced
)

// sent follows a message that executes nothing.
func (b *batch) sent() { b.progress = max(b.progress, batchOpen) }

// checked follows messages of Fencepost's that execute something.
func (b *batch) checked() { b.progress = max(b.progress, batchChecked) }

// ran follows a message of the client's that executes something.
func (b *batch) ran() { b.executes(batchRan, surelyUnsynced) }

// ranAlone follows one that executes what may have committed when it ends.
func (b *batch) ranAlone() { b.executes(batchRan, maybeUnsynced) }

// committed follows a COMMIT, ROLLBACK or DISCARD ALL: what was executed ended with it. If
// it fails, the server skips what follows, up to a Sync.
func (b *batch) committed() { b.executes(min(b.progress, batchOpen), nothingUnsynced) }

func (b *batch) executes(p progress, u unsynced) {
	if b.progress == batchFailed {
		panic("protocol: a message of a batch that has failed is sent")
	}
	b.progress, b.unsynced = p, u
}

// end follows a Query, a fast path call, or a Sync that the server may ignore.
func (b *batch) end() {
	id, unsynced, ended, skipping := b.id+1, b.unsynced, b.ended, b.mayBeSkipped()
	*b = batch{} // a literal with these fields would be made elsewhere, and copied
	b.id, b.unsynced, b.ended, b.skipping = id, unsynced, ended, skipping
}

// synced says that it was a Sync that ended the last batch.
func (b *batch) synced() {
	b.skipping, b.unsynced, b.ended = false, nothingUnsynced, max(b.ended, b.unsynced)
}

// mayHaveCopied follows the end of COPY data for a COPY that the server may have begun. It has then
// ignored the Syncs among them.
func (b *batch) mayHaveCopied() { b.unsynced = max(b.ended, b.unsynced) }

// syncedBefore follows a Sync of Fencepost's in front of a message of the client's, which
// ends what the check has begun. For the client the batch goes on.
func (b *batch) syncedBefore() {
	if b.progress != batchChecked {
		panic("protocol: a Sync of Fencepost's ends what is the client's")
	}
	b.progress, b.skipping, b.untouched = batchEmpty, false, 0
}

// rests follows a ReadyForQuery after which nothing was sent. outside says that it left
// no transaction open.
func (b *batch) rests(outside bool) {
	b.skipping, b.ended = false, nothingUnsynced
	if outside {
		b.unsynced = nothingUnsynced
	}
}

// flushed follows a Flush.
func (b *batch) flushed() { b.unowed = max(b.unowed, flushPending) }

// shown follows what shows, or will show, whether the last Flush was answered by an error.
func (b *batch) shown() {
	if b.unowed == flushPending {
		b.unowed = flushShown
	}
}

// strayed follows a message of COPY. A statement_timeout runs only behind messages of the batch.
func (b *batch) strayed() {
	if b.open() {
		b.unowed = strayUnowed
	}
}

// flushMayFail reports whether an error that comes while no reply is pending can only answer a
// Flush of the batch.
func (b *batch) flushMayFail() bool {
	return b.open() && (b.unowed == flushShown || b.unowed == flushPending)
}

// fresh reports that nothing was executed.
func (b *batch) fresh() bool { return b.progress <= batchOpen }

// onlyChecked reports that nothing but Fencepost's messages were executed, also in front of a Sync that a COPY has
// ignored.
func (b *batch) onlyChecked() bool {
	return b.progress == batchChecked && b.unsynced == nothingUnsynced
}

// commits follows a Query or a fast path call that ends the transaction of what was executed in front of it.
func (b *batch) commits() { b.unsynced, b.ended = nothingUnsynced, nothingUnsynced }

// open reports that extended messages were sent.
func (b *batch) open() bool { return b.progress >= batchOpen }

// mayBeSkipped reports whether the server may skip messages up to a Sync, because
// extended messages were sent since the last.
func (b *batch) mayBeSkipped() bool { return b.open() || b.skipping }

// wait says what the message in hand waits for, and what has come of it. It begins with
// noWait, and ends with the message. While it waits, nothing that follows the message is
// taken, and FromClient says NeedRoom.
type wait uint8

const (
	// noWait: the message waits for nothing, or what it has waited for is answered.
	noWait wait = iota

	// waitsForReplies: it waits until no reply is pending, because what becomes of it depends
	// on them. The client has asked for them, or the message ends the session. An error among
	// them is that of an earlier message.
	waitsForReplies

	// waitsForOwn: Fencepost has sent a Flush for it, so that the server answers what it keeps,
	// or a Sync that ends what only Fencepost's messages have begun. It waits for the answers.
	// An error that answers the Flush or the Sync itself is a timeout, or what the Sync runs,
	// and makes it ownFailed.
	waitsForOwn

	// waitsForFlush: the same, after a Flush of the client's right in front of the message, to
	// learn whether an error answers that one. This makes it flushFailed.
	waitsForFlush

	// ownFailed: an error has answered what Fencepost has sent for the message. Without that, it
	// would have answered the message, so it is the message's: a Query or a fast path call is
	// replaced by a Sync, and any other message has failed with its batch.
	ownFailed

	// flushFailed: an error has answered the client's Flush, so the server skips the message, and
	// the rest of its batch.
	flushFailed
)

// begin has the message wait for something.
func (w *wait) begin(what wait) {
	if what < waitsForReplies || what > waitsForFlush || *w != noWait && *w != what {
		panic("protocol: a message waits for two things, or for none")
	}
	*w = what
}

// answered says that no reply is pending.
func (w *wait) answered() { *w = noWait }

// answeredOwn is answered for what Fencepost has sent, unless an error has answered that.
func (w *wait) answeredOwn() {
	if *w == waitsForOwn {
		*w = noWait
	}
}

// fails follows an error that answers a Flush, or a Sync of Fencepost's. It says nothing of a
// message that does not wait for that.
func (w *wait) fails() {
	switch *w {
	case waitsForOwn:
		*w = ownFailed
	case waitsForFlush:
		*w = flushFailed
	}
}

// fate is what becomes of a message of the client's after what it has waited for.
type fate uint8

const (
	// goesOn: it is dealt with as any other.
	goesOn fate = iota
	// replaced: it has failed, and was not sent. A Sync takes its place, whose ReadyForQuery is
	// the one that it is owed.
	replaced
	// leftOut: its batch has failed, and the server may not know that. It is not sent, and owed
	// nothing.
	leftOut
)

// follow says what becomes of a message of type typ that has waited as w says. The first one
// that has failed, and has no ReadyForQuery, fails the batch. A Sync ends that, and Terminate
// ends the session.
func (b *batch) follow(w wait, typ byte) fate {
	switch {
	case w == ownFailed && (typ == 'Q' || typ == 'F'):
		return replaced
	case w == ownFailed, w == flushFailed:
		b.progress = batchFailed
	}
	if b.progress == batchFailed && typ != 'S' && typ != 'X' {
		return leftOut
	}
	return goesOn
}
