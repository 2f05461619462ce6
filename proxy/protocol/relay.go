package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// relay passes the messages of a session on as they are. A session is relayed while its backend
// is registered, or if it may write without a fence. It adds to the stream only SETs before a SHOW of Fencepost's parameters,
// a Flush when it has to wait within a batch, and a text that fails in place of one that is refused. It
// follows only what it needs in order to know whether the session is at rest (pending).
//
// It begins at rest. It ends where nothing is due: before a SET of fencepost.resource or fencepost.token, and before a
// message that begins a transaction while the worker does not lead or its lease is not confirmed.
type relay struct {
	on bool
	pending
	failed        bool        // the server has said ERROR since the last ReadyForQuery
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

// maxRelayed bounds what is not answered, in runs of messages, so that a client cannot fill the memory by messages whose
// replies it does not read.
const maxRelayed = 16 << 10

// clientSent follows a message of the client's. body is what has arrived of it.
func (r *relay) clientSent(typ byte, body []byte) {
	r.sent(typ, len(body))
	switch typ {
	case 'Q':
		r.keepText(body)
	case 'F':
		r.keepText([]byte(sqltext.FunctionCall))
	}
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
