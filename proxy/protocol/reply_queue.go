package protocol

import "github.com/fencepost/fencepost/fencing"

// Kind is what a message sent to the server is owed.
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
	run                  // ours only: Bind, Execute, Close: BindComplete, rows, CommandComplete, CloseComplete
)

// injectedCheck says what a message of ours does for the transaction it stands in.
type injectedCheck uint8

const (
	noCheck   injectedCheck = iota
	fullCheck               // the check of the epoch
	readOnly                // makes the transaction read-only
	refusal                 // always fails, in the client's place
)

// maxPending bounds the entries: a client that sends many small messages and reads
// no reply would otherwise cost a multiple of what it sent. It must be well
// above the number of replies that the server keeps in its output buffer of
// 8 kB, which it need not send before a Sync.
const maxPending = 8192

// reply is one entry of the FIFO of expected replies: a message that was sent
// to the server, whose it is, and what the proxy must know when it is answered.
type reply struct {
	kind kind
	ours bool // swallow what answers it
	// restated marks the Parse of a text of the client's that is prepared again: the
	// client had its notices before.
	restated bool
	// maybe marks a message that the server may not answer: a Sync that it may have taken
	// for COPY data, and a Close that it may skip.
	maybe bool
	skips bool // in a COPY that was executed: an error makes the server skip up to a Sync
	early bool // and it came before all COPY data
	// malformed marks a Sync with a body, which the server answers with an error and
	// ReadyForQuery unless it takes it for COPY data.
	malformed bool
	check     injectedCheck
	// announced is the epoch that this reply tells the client when it succeeds (SHOW,
	// SET), or when its check fails with ZF003.
	announced fencing.Epoch
	announces bool
	// commits marks a Sync of ours behind messages of the client's that can run a user's
	// code, a Bind for instance: what that has done is committed by it, or lost.
	commits bool
	// after is the transaction in hand once the message has run.
	after transaction
	stmt  *statement // the statement a Parse defines, or that is run
	// prefix is the length of the text of ours in front of a Query, 0 if none;
	// done counts the statements of a Query that were answered.
	prefix, done int
	inserts      []insertion // of a Query of several statements
	hideNoData   bool        // of a Describe that stands for a Query
	holds        bool        // and its RowDescription waits until the statement has run
	first        bool        // a check in front of all that was sent since the session was at rest
	ahead        bool        // ours, in a batch of its own: its error is nobody's
	prepares     int         // of a Parse: the generation of the checks that is prepared with it
	// refuse is the error that takes the place of the one a refusal provokes.
	refuse *fencing.Refusal
	// Text is the client's SQL that the guard stands in front of, for the
	// audit line: at most maxAuditText bytes, memory kept for the next use.
	text  []byte
	reads bool // it is nothing but a read
}

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
}

// maxQueryTexts bounds, in bytes, the texts of Queries that are kept for the
// audit while they are pending.
const maxQueryTexts = 256 << 10

// keepText keeps the start of a Query's SQL for the audit, if there is room.
// reads says that it is nothing but a read. e is the entry pushed last.
func (r *replyQueue) keepText(e *reply, text []byte, reads bool) {
	e.reads = reads
	text = text[:min(len(text), maxAuditText)]
	if r.texts+len(text) > maxQueryTexts {
		return
	}
	e.text = append(e.text, text...)
	r.texts += len(e.text)
}

func (r *replyQueue) len() int { return r.n }

func (r *replyQueue) empty() bool { return r.n == 0 }

// push appends a cleared entry and returns it. The pointer is good until the
// next push.
func (r *replyQueue) push(k kind, ours bool) *reply {
	if r.n == len(r.ring) {
		r.grow()
	}
	e := &r.ring[(r.head+r.n)&(len(r.ring)-1)]
	*e = reply{kind: k, ours: ours, text: e.text[:0]}
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
	next := make([]reply, max(16, 2*len(r.ring)))
	for i := range r.n {
		next[i] = *r.at(i)
	}
	r.ring, r.head = next, 0
}

// at returns the i-th entry from the front.
func (r *replyQueue) at(i int) *reply { return &r.ring[(r.head+i)&(len(r.ring)-1)] }

// removeEarly takes out the Syncs that came between a COPY and its data.
func (r *replyQueue) removeEarly() {
	for i := 0; i < r.n; {
		if e := r.at(i); e.early && e.maybe {
			r.remove(i)
		} else {
			i++
		}
	}
}

// certain reports whether anything will be answered for sure.
func (r *replyQueue) certain() bool { return r.certainIn(r.n) }

// certainIn reports whether any of the first n entries will be answered for
// sure.
func (r *replyQueue) certainIn(n int) bool {
	for i := range n {
		if e := r.at(i); !e.maybe && e.kind != copyEnd {
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

func (r *replyQueue) pop() {
	const long = 64
	e := r.at(0)
	r.texts -= len(e.text)
	if e.kind == parse && !e.ours && e.stmt != nil {
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

// remove takes the i-th entry from the front out, order kept.
func (r *replyQueue) remove(i int) {
	if i >= r.asked {
		r.asked++ // pop takes it back
	}
	if i >= r.call {
		r.call++
	}
	for ; i > 0; i-- {
		*r.at(i), *r.at(i - 1) = *r.at(i - 1), *r.at(i)
	}
	r.pop()
}
