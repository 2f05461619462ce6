package protocol

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// refusedWord is what makes a text one that Postgres cannot parse. It is no keyword, so no statement begins
// with it. It appears in the server's log.
const refusedWord = "fencepost_refused"

// refusedSuffix follows a text whose own syntax errors are to be reported first.
const refusedSuffix = "\n;" + refusedWord

// poison returns the text that takes the place of a refused one. Postgres parses all of a text before it
// runs any of it, so nothing of it can run. A text that the grammar does not know may have a syntax error of
// its own, which its client wants to see.
func poison(sql []byte, known bool) string {
	if known || len(sql) > maxAnalyzed {
		return refusedWord
	}
	return string(sql) + refusedSuffix
}

// refuseQuery sends what fails in place of a Query. Its exchange has begun.
func (s *Session) refuseQuery(p *gate.Plan, sql []byte, known bool, r *fencing.Refusal, write bool) {
	x := &s.exchange
	x.refusal, x.refused = r, Attempt{Text: x.text, Write: write}
	text := poison(sql, known)
	s.gate.PassText(p, wire.AppendQuery(nil, []byte(text)), unparsable(text))
}

// refuseInBatch sends what fails in place of a message of a batch, and drops what follows up to the
// Sync. text is that of a refused Parse of name, "" for another message.
func (s *Session) refuseInBatch(p *gate.Plan, name, text string, r *fencing.Refusal, what Attempt) {
	x := &s.exchange
	x.refusal, x.refused, x.skip = r, what, true
	if text == "" {
		name, text = refusedWord, refusedWord
	}
	s.gate.PassText(p, wire.AppendParse(nil, name, text), unparsable(text))
}

// refuseAfterBatch refuses a Query or a fast path call that ends a batch in place of a Sync, and may write. It is owed
// a ReadyForQuery.
func (s *Session) refuseAfterBatch(p *gate.Plan, what Attempt) {
	s.refuseInBatch(p, "", "", afterBatchRefusal, what)
	p.Own(wire.AppendSync(nil))
	s.exchange.synced = true
}

// unparsable is the reason of a poison.
func unparsable(text string) gate.Reason {
	r, ok := gate.Unparsable(text, refusedWord)
	if !ok {
		panic("protocol: a refused text that may run")
	}
	return r
}

// afterEndRefusal is the refusal of what follows the end of a transaction, or BEGIN READ WRITE, in a batch.
var afterEndRefusal = &fencing.Refusal{
	SQLState: fencing.StateUnfenceable,
	Message:  "on a connection that may only read, this message cannot follow COMMIT, ROLLBACK, ROLLBACK TO or a change to READ WRITE in one batch: its transaction may not be read-only",
	Hint:     "Send a Sync after the statement that ends or changes the transaction.",
}

// afterBatchRefusal is the refusal of a Query or a fast path call after extended messages without a Sync.
var afterBatchRefusal = &fencing.Refusal{
	SQLState: fencing.StateUnfenceable,
	Message:  "on a connection that may only read, a simple query or a fast path call cannot follow COMMIT, ROLLBACK, a change to READ WRITE or of the resource by extended messages without a Sync",
	Detail:   "{}",
	Hint:     "Send a Sync first.",
}

// canceledRefusal is what Postgres says of a statement that its client has canceled.
var canceledRefusal = &fencing.Refusal{
	SQLState: "57014",
	Message:  "canceling statement due to user request",
	Verbatim: true,
	Usage:    true,
}

// isRefusedWord reports whether an error is that of refusedWord. An error about a quote that is not closed quotes
// the suffix, too.
func isRefusedWord(e *wire.ServerError) bool {
	return e.Code == "42601" && strings.Contains(e.Message, refusedWord) && !strings.Contains(e.Message, refusedSuffix)
}

// ownSyntaxError returns the client's own error in sql, to which the suffix was added, without it.
func (s *Session) ownSyntaxError(msg []byte, e *wire.ServerError, sql string) []byte {
	const atSuffix, atEnd = `syntax error at or near ";"`, "syntax error at end of input"
	length := len(sql)
	if s.settings.utf8 {
		length = utf8.RuneCountInString(sql)
	}
	end := e.Position == length+2 && e.Message == atSuffix
	return wire.EditError(nil, msg, func(field byte, v []byte) ([]byte, bool) {
		switch {
		case field == 'M' && end:
			return []byte(atEnd), true
		case field == 'P' && end:
			return strconv.AppendInt(nil, int64(length+1), 10), true
		case field == 'M':
			return bytes.ReplaceAll(v, []byte(refusedSuffix), nil), true
		default:
			return v, true
		}
	})
}
