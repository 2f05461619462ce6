package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// relay passes the messages of a session on as they are. A session is relayed while its backend
// is registered, or if it may write without a fence. The relay puts nothing into the stream. It
// follows only what it needs in order to know whether the session is at rest: where messages
// begin, how many ReadyForQuery are due, and what the last one said.
//
// It begins at rest. It ends where nothing is due, in front of a message that Fencepost has to
// look at: one whose text mentions a parameter of Fencepost's or prepares a transaction, or any
// message that begins a transaction while the lease is not confirmed.
type relay struct {
	on bool
	// due holds what the server has been sent that matters for ReadyForQuery, in order: 'Q', 'F'
	// and 'S' are messages that it answers with one, and 'c' is the end of COPY data. 'b' is each message
	// of the extended protocol that is not answered and has a Query or a FunctionCall, and no Sync, behind it: if it fails, the
	// server skips that.
	due relayQueue
	// batch counts the messages of the extended protocol since the last Sync, Query or FunctionCall, and answered counts
	// the replies that have completed one since the last ReadyForQuery.
	batch, answered int
	inBatch         bool // the batch has begun
	endsCopy        bool // it has an end of COPY data
	flushed         int  // to how many messages of the batch the server was asked for the replies
	status          byte // of the last ReadyForQuery
	failed          bool // the server has said ERROR since then
	copying         bool // the server reads COPY data, and has not been sent their end
	ignored         bool // a Sync was sent among these data
	swallowed       bool // the server has ignored a Sync in front of these data, unless the COPY has failed before it read any
	extra           extraReady
	endsDue         bool // the last message that was sent is the last of due
	// lost means that the client has sent messages in an order from which no one can know how many
	// ReadyForQuery are due. The session is never at rest again.
	lost          bool
	reason        gate.Reason // of what is relayed
	awaitsReplies bool        // a message waits for the replies to everything before it
	// own is what Fencepost has sent, and is not answered. Nothing of the client's is sent meanwhile.
	own     *own
	refusal *fencing.Refusal // of a text that was replaced by one that fails, and is not answered
	refused Attempt          // what was
	shows   bool             // a SHOW of Fencepost's parameters is not answered
	sets    bool             // a SET fencepost.epoch is not, which has named epoch
	epoch   fencing.Epoch
	// text is the start of the last text, or "" if stmt is the name of the last statement that was bound.
	text, stmt []byte
	named      []byte // the name of the prepared statement of which text is the text
}

// extraReady says whether one more ReadyForQuery may come than the client's messages are known to be owed: a COPY has
// failed, and the server has ignored a Sync in front of the data, or answers it.
type extraReady uint8

const (
	noExtra   extraReady = iota
	extraNext            // the next ReadyForQuery is owed, and the one after it may be extra
	extraNow             // the next one is extra, unless something else comes before it
)

// maxRelayed bounds what due holds, so that a client cannot fill the memory by messages whose
// replies it does not read.
const maxRelayed = 64 << 10

// relayQueue is a queue of bytes that does not allocate once it has grown.
type relayQueue struct {
	bytes []byte
	first int
}

func (q *relayQueue) len() int { return len(q.bytes) - q.first }

func (q *relayQueue) push(b byte) {
	if q.first > 0 && len(q.bytes) == cap(q.bytes) {
		q.bytes, q.first = append(q.bytes[:0], q.bytes[q.first:]...), 0
	}
	q.bytes = append(q.bytes, b)
}

func (q *relayQueue) pop() byte {
	b := q.bytes[q.first]
	if q.first++; q.first == len(q.bytes) {
		q.bytes, q.first = q.bytes[:0], 0
	}
	return b
}

// skipCopyEnds drops ends of COPY data from the front: no COPY has read them.
func (q *relayQueue) skipCopyEnds() {
	for q.len() > 0 && q.bytes[q.first] == 'c' {
		q.pop()
	}
}

// atRest reports that the server has answered everything, is outside a transaction, and has been
// sent nothing since.
func (r *relay) atRest() bool { return r.quiet() && !r.inBatch && r.status == 'I' }

// quiet reports that no reply is due.
func (r *relay) quiet() bool {
	return r.due.len() == 0 && !r.lost && !r.copying && r.extra == noExtra && (!r.inBatch || r.failed || r.answered >= r.batch)
}

// isSkipping reports that the server is known to skip what is sent now, up to a Sync.
func (r *relay) isSkipping() bool { return r.inBatch && r.failed && !r.lost && r.due.len() == 0 }

// isWorking reports whether the server is known to be working for the client, which has asked for the result. inside says
// that the server has not been sent the last message to its end.
func (r *relay) isWorking(inside bool) bool {
	n := r.due.len()
	if inside && r.endsDue {
		for n--; n > 0 && r.due.bytes[r.due.first+n-1] == 'b'; n-- { // it asks for their replies
		}
	}
	return !r.lost && !r.copying && (n > 0 || r.due.len() == 0 && !r.failed && r.answered < r.flushed)
}

// clientSent follows a message of the client's. body is what has arrived of it.
func (r *relay) clientSent(typ byte, body []byte) {
	r.endsDue = typ == 'Q' || typ == 'F'
	switch typ {
	case 'Q', 'F':
		r.endBatch()
		r.lost = r.lost || r.copying
		if !r.inBatch {
			r.due.push(typ)
		}
		if typ == 'Q' {
			r.keepText(body)
		} else {
			r.keepText([]byte(sqltext.FunctionCall))
		}
	case 'S':
		if r.copying {
			r.ignored = true
			return
		}
		r.inBatch, r.endsCopy, r.batch, r.flushed = false, false, 0, 0
		r.due.push(typ)
	case 'P', 'B', 'D', 'E', 'C':
		r.lost = r.lost || r.copying
		r.inBatch, r.batch = true, r.batch+1
	case 'H':
		if len(body) > 0 && !r.copying { // the server refuses it, and skips what follows up to a Sync
			r.inBatch, r.batch = true, r.batch+1
		}
		r.flushed = r.batch
	case 'c', 'f':
		if r.copying {
			r.copying = false
		} else if r.due.len() > 0 || r.inBatch {
			r.endsCopy = r.inBatch
			r.due.push('c')
		}
	}
}

// endBatch ends a batch with a Query or a FunctionCall in place of a Sync, unless the server is known to skip that.
func (r *relay) endBatch() {
	if !r.inBatch || r.isSkipping() {
		return
	}
	n := r.batch
	if r.due.len() == 0 {
		n -= min(r.answered, n)
	}
	r.lost = r.lost || r.endsCopy || n > maxRelayed
	for range min(n, maxRelayed) {
		r.due.push('b')
	}
	r.inBatch, r.endsCopy, r.batch, r.flushed, r.answered = false, false, 0, 0, 0
}

// completed follows a reply that completes a message.
func (r *relay) completed() {
	if r.due.len() > 0 && r.due.bytes[r.due.first] == 'b' {
		r.due.pop()
		return
	}
	r.answered++
}

// skip follows an error in a batch that a Query or a FunctionCall has ended: the server skips what it has been sent, and is
// sent, up to a Sync.
func (r *relay) skip() {
	if r.due.len() == 0 || r.due.bytes[r.due.first] != 'b' {
		return
	}
	for r.due.len() > 0 && r.due.bytes[r.due.first] != 'S' {
		r.due.pop()
	}
	r.inBatch = r.inBatch || r.due.len() == 0
}

// keepText keeps the start of a text, for the audit.
func (r *relay) keepText(text []byte) {
	if i := len(text) - 1; i >= 0 && text[i] == 0 {
		text = text[:i]
	}
	r.text, r.stmt, r.named = append(r.text[:0], text[:min(len(text), maxRelayedText)]...), r.stmt[:0], r.named[:0]
}

// maxRelayedText is how much of a text a relay keeps, in bytes.
const maxRelayedText = 512

// serverSent follows a message of the server's.
func (r *relay) serverSent(typ byte) {
	if r.extra == extraNow && typ != 'N' && typ != 'A' && typ != 'S' {
		r.extra = noExtra
	}
	switch typ {
	case 'C':
		r.swallowed = false
		r.completed()
	case '1', '2', '3', 'n', 'T', 'I', 's':
		r.completed()
	case 'E':
		r.failed = true
		r.skip()
		r.lost = r.lost || r.copying && r.ignored // those Syncs may be answered, or not
		if r.swallowed {
			r.extra = extraNext
		}
		r.copying, r.ignored, r.swallowed = false, false, false
	case 'G':
		r.copyStarts()
	}
}

// copyStarts follows CopyInResponse. The server ignores each Sync up to the end of the data. That
// end may have been sent already.
func (r *relay) copyStarts() {
	var kept []byte
	rest := r.due.bytes[r.due.first:]
	if len(rest) > 0 && rest[0] == 'Q' { // the Query that copies
		kept, rest = rest[:1:1], rest[1:]
	} else {
		r.inBatch = true // up to the next Sync
	}
	for i, b := range rest {
		if b == 'c' {
			r.due.bytes, r.due.first = append(kept, rest[i+1:]...), 0
			r.inBatch = r.inBatch && r.due.len() == 0
			return
		}
		r.lost, r.swallowed = r.lost || b != 'S', true
	}
	r.lost = r.lost || r.batch > 0 && len(rest) > 0 // the server reads more messages than those of a COPY
	r.due.bytes, r.due.first = append(r.due.bytes[:0], kept...), 0
	r.copying, r.ignored = true, false
}

// ready follows ReadyForQuery.
func (r *relay) ready(status byte) {
	r.due.skipCopyEnds()
	switch n := r.due.len(); {
	case r.extra == extraNow && (n == 0 || r.due.bytes[r.due.first] != 'S'): // a Query is answered by something else first
		r.extra = noExtra
	case n == 0:
		r.lost = true
	default:
		r.due.pop()
		r.due.skipCopyEnds()
		if r.extra == extraNext {
			r.extra = extraNow
		}
	}
	r.status, r.answered, r.failed, r.copying, r.ignored, r.swallowed = status, 0, false, false, false, false
}
