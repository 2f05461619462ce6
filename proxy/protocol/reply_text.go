package protocol

import (
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

// replyText is the text of a Query: what was put into it, and how far it was answered.
type replyText struct {
	prefix  int         // the length of what stands in front of the client's text, 0 if nothing
	inserts []insertion // into a text of several statements, which has no prefix
	done    int         // the statements that were answered
	// audit is the client's text, for the audit line: at most maxAuditText bytes, memory
	// kept for the next use. reads says that it is nothing but a read.
	audit []byte
	reads bool
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

// insertionAt returns the statement of Fencepost's that is the i-th of a Query's text.
func (e *reply) insertionAt(i int) (x insertion, ok bool) {
	if n := e.sql.prefix; n > 0 {
		return insertion{n: n, check: e.check, refuse: e.refuse}, i == 0
	}
	at, ok := slices.BinarySearchFunc(e.sql.inserts, i, func(x insertion, i int) int { return x.index - i })
	if !ok {
		return insertion{}, false
	}
	return e.sql.inserts[at], true
}
