package protocol

import (
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/wire"
)

// kind is what a message sent to the server is owed.
type kind uint8

const (
	parse    kind = iota // ParseComplete
	bind                 // BindComplete
	describe             // RowDescription or NoData (a statement: ParameterDescription before)
	execute              // rows, then CommandComplete, EmptyQueryResponse or PortalSuspended
	closing              // CloseComplete
	syncing              // ReadyForQuery
	query                // results of each statement, then ReadyForQuery
	function             // FunctionCallResponse, then ReadyForQuery
	copyEnd              // CopyDone or CopyFail: nothing of its own; it ends copy-in
	run                  // of Fencepost only: Bind, Execute, Close: BindComplete, rows, CommandComplete, CloseComplete
)

// injectedCheck says what a message of Fencepost's does for the transaction it stands in.
type injectedCheck uint8

const (
	noCheck       injectedCheck = iota
	fullCheck                   // the check of the epoch
	readOnly                    // makes the transaction read-only
	refusal                     // always fails, in the client's place
	verdict                     // the variant of it that does not fail: its tag says whether the worker is stale
	nothing                     // runs nothing, in the place of a write that is discarded
	stillReadOnly               // fails if the read-only mode of a stale transaction was undone
)

// maxPending bounds the entries: a client that sends many small messages and reads
// no reply would otherwise cost a multiple of what it sent. It must be well
// above the number of replies that the server keeps in its output buffer of
// 8 kB, which it need not send before a Sync.
const maxPending = 8192

// origin says whose message is answered, and what more matters of Fencepost's own.
type origin uint8

const (
	fromClient  origin = iota
	own                // Fencepost's: what answers it does not go to the client
	ownRestated        // the Parse of a text of the client's that is prepared again: the client had its notices before
	ownAhead           // in a batch of its own: its error is nobody's
	ownAsking          // the same, to learn which Syncs in front the server answers: it does not skip this
	// ownCommit: a Sync in front of the message in hand, whose error is that of the message.
	// It commits what the client's messages before it have done by a user's code.
	ownCommit
)

// certainty says whether the server answers a message at all.
type certainty uint8

const (
	answered certainty = iota
	// perhaps: a Sync that the server may have taken for COPY data, and a Close that it
	// may skip.
	perhaps
	// perhapsInBatch: such a Sync in a COPY that was executed, where an error makes the
	// server skip up to a Sync.
	perhapsInBatch
	// perhapsBefore: a Sync behind the COPY, which no error there makes the server skip. Its ReadyForQuery may have
	// been taken for that of a Sync before it.
	perhapsBefore
)

// standIn says that a Describe or an Execute stands for a Query that went as extended
// messages.
type standIn uint8

const (
	noStandIn standIn = iota
	// queryStandIn: the client gets no NoData, and CommandComplete only after the
	// transaction has ended: a Query commits first.
	queryStandIn
	lateStandIn // nor a RowDescription before the statement has run
)

// reply is one entry of the FIFO of expected replies: a message that was sent
// to the server, whose it is, and what the proxy must know when it is answered.
type reply struct {
	kind      kind
	origin    origin
	certainty certainty
	standIn   standIn
	check     injectedCheck
	class     readClass // of a Query, if it is audited
	unowed    unowed    // what else was sent before, in the same batch
	// first marks a check in front of all that was sent since the session was at rest.
	first bool
	// early marks a Sync that came before all COPY data, and malformed what the server
	// answers with an error for its form. A Sync or Flush in COPY data it ignores all the same.
	early, malformed bool
	announces        bool // see announced
	// refuse is the error that takes the place of the one a refusal provokes.
	refuse *fencing.Refusal
	// announced is the epoch that this reply tells the client when it succeeds (SHOW and
	// SET, which announce), or when its check fails with ZF003.
	announced fencing.Epoch
	more      *promises // that it tells of what was chosen, in the place of announced
	// after is the transaction in hand once the message has run, and adds what that has then had
	// besides.
	after    transaction
	adds     had
	stmt     *statement // the statement a Parse defines, or that is run
	prepares int        // of a Parse: the generation of the checks that is prepared with it
	sql      replyText  // of a Query
}

// readies reports that ReadyForQuery ends the replies to the message, also inside a batch.
func (e *reply) readies() bool { return e.kind == query || e.kind == function }

// mayBeReady reports whether ReadyForQuery may come next. Postgres answers a Query and a fast path call before.
func (e *reply) mayBeReady() bool { return e.sql.done > 0 || !e.readies() }

// own reports that the message is Fencepost's.
func (e *reply) own() bool { return e.origin != fromClient }

// malformedFlush reports that the message is a Flush with a body.
func (e *reply) malformedFlush() bool { return e.kind == closing && e.malformed }

// maybe reports that the server may not answer the message.
func (e *reply) maybe() bool { return e.certainty != answered }

// replyQueue is the FIFO: a ring that grows and is reused, so that it costs no
// allocation per message.
type replyQueue struct {
	ring  []reply
	head  int
	n     int
	texts int // bytes of the texts that the entries keep

	// asked counts the entries in front whose replies the client has asked for:
	// by a Sync, a Query or a Flush that was sent after them. Until then the
	// server may keep what it answers. call counts the entries up to the last
	// fast path call, which asks as well once it was sent whole.
	asked, call int

	// pushed counts the entries there were, but for Close, which runs nothing.
	pushed uint64

	// had is what the transaction that the server is in has had, by the messages that were answered.
	had had
}

// maxQueryTexts bounds, in bytes, the texts of Queries that are kept for the
// audit while they are pending.
const maxQueryTexts = 256 << 10

// keepText keeps the start of a Query's SQL for the audit, if there is room. e is the entry
// pushed last.
func (r *replyQueue) keepText(e *reply, text []byte) {
	text = text[:min(len(text), maxAuditText)]
	if r.texts+len(text) > maxQueryTexts {
		return
	}
	e.sql.audit = append(e.sql.audit, text...)
	r.texts += len(e.sql.audit)
}

func (r *replyQueue) len() int { return r.n }

func (r *replyQueue) empty() bool { return r.n == 0 }

// push appends a cleared entry and returns it. The pointer is good until the
// next push.
func (r *replyQueue) push(k kind, from origin) *reply {
	if r.n == len(r.ring) {
		r.grow()
	}
	e := &r.ring[(r.head+r.n)&(len(r.ring)-1)]
	audit := e.sql.audit[:0]
	*e = reply{} // a literal with these fields would be made elsewhere, and copied
	e.kind, e.origin, e.sql.audit = k, from, audit
	r.n++
	if k != closing {
		r.pushed++
	}
	switch k {
	case syncing, query:
		r.asked = r.n
	case function:
		r.call = r.n
	}
	return e
}

// ask notes that the client has sent a Flush.
func (r *replyQueue) ask() { r.asked = r.n }

func (r *replyQueue) grow() {
	next := make([]reply, max(4, 2*len(r.ring)))
	for i := range r.n {
		next[i] = *r.at(i)
	}
	r.ring, r.head = next, 0
}

// at returns the i-th entry from the front.
func (r *replyQueue) at(i int) *reply { return &r.ring[(r.head+i)&(len(r.ring)-1)] }

// onlyDoubtfulSyncs reports whether nothing is pending but Syncs of which it is open whether they are answered, and ends
// of COPY.
func (r *replyQueue) onlyDoubtfulSyncs() bool {
	for i := range r.n {
		if e := r.at(i); e.kind != copyEnd && (e.kind != syncing || !e.maybe()) {
			return false
		}
	}
	return true
}

// hasSync reports whether a Sync is pending that is answered for sure.
func (r *replyQueue) hasSync() bool {
	for i := range r.n {
		if e := r.at(i); e.kind == syncing && !e.maybe() {
			return true
		}
	}
	return false
}

// removeEarly takes out the Syncs that came between a COPY and its data, and reports whether there were any.
func (r *replyQueue) removeEarly() (found bool) {
	return r.remove(r.n, func(e *reply) bool { return e.early && e.maybe() }) > 0
}

// answersSyncs: no COPY has read the Syncs that are pending, so the server answers them.
func (r *replyQueue) answersSyncs() {
	for i := range r.n {
		if e := r.at(i); e.kind == syncing {
			e.certainty = answered
		}
	}
}

// runsBeforeSync reports whether a message that may run something is pending behind the entry in front, before the
// next Sync that is answered for sure.
func (r *replyQueue) runsBeforeSync() bool {
	for i := 1; i < r.n; i++ {
		switch e := r.at(i); {
		case e.kind == syncing && !e.maybe():
			return false
		case e.kind != syncing && e.kind != copyEnd && e.kind != closing:
			return true
		}
	}
	return false
}

// endsCopy reports whether the end of COPY data was sent behind something that is pending.
func (r *replyQueue) endsCopy() bool {
	for i := range r.n {
		if r.at(i).kind == copyEnd {
			return true
		}
	}
	return false
}

// certain reports whether anything will be answered for sure.
func (r *replyQueue) certain() bool { return r.certainIn(r.n) }

// certainIn reports whether any of the first n entries will be answered for
// sure.
func (r *replyQueue) certainIn(n int) bool {
	for i := range n {
		if e := r.at(i); !e.maybe() && e.kind != copyEnd {
			return true
		}
	}
	return false
}

// front returns the entry whose reply comes next, nil if none is owed.
func (r *replyQueue) front() *reply {
	if r.n == 0 {
		return nil
	}
	return r.at(0)
}

// pop takes out the entry in front, which was answered or skipped.
func (r *replyQueue) pop() {
	const long = 64
	e := r.at(0)
	r.texts -= len(e.sql.audit)
	r.had |= e.adds & hadWork
	if e.kind == parse && !e.own() && e.stmt != nil {
		r.texts -= len(e.stmt.text)
	}
	r.head = (r.head + 1) & (len(r.ring) - 1)
	if r.n--; r.n == 0 { // the first entries are used again, so that few keep memory for their texts
		if r.head = 0; len(r.ring) > long {
			r.ring = nil
		}
	}
	r.asked, r.call = max(r.asked-1, 0), max(r.call-1, 0)
}

// runs notes that the message of the entry in front has run. Its tag says whether it has begun a block or
// left one, whatever was known of it when it was sent. What pop notes of a message that was skipped allows
// less, not more.
func (r *replyQueue) runs(begins, leaves bool) {
	adds := r.at(0).adds
	switch {
	case leaves && adds&hadEnd != 0:
		r.had = adds & hadBegin // AND CHAIN
	case leaves:
		r.had &^= hadBegin | hadLock
	case begins:
		r.had |= hadBegin
	}
	switch {
	case adds&hadUnsure != 0:
		r.had &^= hadLock
	case r.had&hadWork == 0:
		r.had |= adds & hadLock
	}
}

// rests follows a ReadyForQuery, which says whether the server is in a block.
func (r *replyQueue) rests(inBlock bool) {
	if !inBlock {
		r.had = 0
		return
	}
	r.had |= hadBegin
}

// remove takes out those of the first n entries for which unwanted says so, and returns how many. The order of the rest
// is kept. It takes each entry in hand once, because a client can make thousands pending.
func (r *replyQueue) remove(n int, unwanted func(*reply) bool) (removed int) {
	asked, call, to := r.asked, r.call, n
	for i := n - 1; i >= 0; i-- {
		if unwanted(r.at(i)) {
			removed++
			if i >= asked {
				r.asked++ // pop takes it back
			}
			if i >= call {
				r.call++
			}
			continue
		}
		to--
		*r.at(to), *r.at(i) = *r.at(i), *r.at(to)
	}
	for range removed { // they are in front now
		r.pop()
	}
	return removed
}

// replyText is the text of a Query: what was put into it, and how far it was answered.
type replyText struct {
	prefix  int         // the length of what stands in front of the client's text, 0 if nothing
	inserts []insertion // into a text of several statements, which has no prefix
	ends    []textEnd   // its COMMITs and ROLLBACKs, if it has several statements
	done    int         // the answers: to statements, to an empty text or a fast path call, or an error
	// audit is the client's text, for the audit line: at most maxAuditText bytes, memory
	// kept for the next use.
	audit []byte
}

// textEnd is a COMMIT or ROLLBACK among the statements of a text.
type textEnd struct {
	index int         // which statement of the text that is sent, from 0
	after transaction // the one that is in hand behind it
}

// ended returns the transaction that is in hand behind the statement that is answered next, if
// that is a COMMIT or ROLLBACK.
func (t *replyText) ended() (after transaction, ok bool) {
	if len(t.ends) == 0 || t.ends[0].index != t.done {
		return transaction{}, false
	}
	after, t.ends = t.ends[0].after, t.ends[1:]
	return after, true
}

// insertion is a statement of Fencepost's inside the text of a Query.
type insertion struct {
	index  int // which statement of the text that is sent, from 0
	at     int // in characters of the client's text
	n      int // length in characters; ASCII
	check  injectedCheck
	refuse *fencing.Refusal
}

// edited reports that the text is not the client's alone.
func (t *replyText) edited() bool { return t.prefix > 0 || len(t.inserts) > 0 }

// first is the first statement of Fencepost's in an edited text.
func (t *replyText) first() insertion {
	if t.prefix > 0 {
		return insertion{n: t.prefix}
	}
	return t.inserts[0]
}

// position maps a position in the text that was sent to the client's text.
func (t *replyText) position(v []byte) []byte {
	if t.prefix > 0 {
		return wire.ShiftPosition(v, t.prefix)
	}
	pos, err := strconv.Atoi(string(v))
	if err != nil {
		return v
	}
	p := pos - 1
	sum := 0
	for _, x := range t.inserts {
		if p >= x.at+sum {
			sum += x.n
		}
	}
	return wire.ShiftPosition(v, sum)
}

// insertedAt reports whether the i-th statement of a Query's text is Fencepost's, and what that
// does for the transaction; refuse is what it refuses.
func (e *reply) insertedAt(i int) (g injectedCheck, refuse *fencing.Refusal, ok bool) {
	switch {
	case len(e.sql.inserts) > 0:
		return e.sql.insertedAmong(i)
	case e.sql.prefix > 0 && i == 0:
		return e.check, e.refuse, true
	default:
		return noCheck, nil, false
	}
}

// insertedAmong is insertedAt for a text of several statements.
func (t *replyText) insertedAmong(i int) (g injectedCheck, refuse *fencing.Refusal, ok bool) {
	at, ok := slices.BinarySearchFunc(t.inserts, i, func(x insertion, i int) int { return x.index - i })
	if !ok {
		return noCheck, nil, false
	}
	return t.inserts[at].check, t.inserts[at].refuse, true
}

// works reports whether the server is known to be working for the client. It is
// not while it waits for the client: for COPY data, for the rest of a message,
// or for the Sync or Flush without which it need not send what it has answered.
func (m *Machine) works() bool {
	if m.copy.reading() {
		return false
	}
	asked := m.pendingReplies.asked
	if whole := !m.up.body.inside() || m.pendingReplies.call < m.pendingReplies.len(); whole {
		asked = max(asked, m.pendingReplies.call)
	}
	return m.pendingReplies.certainIn(asked)
}
