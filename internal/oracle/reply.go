package oracle

import (
	"bytes"
	"regexp"
	"slices"
)

// received processes one message of the server.
func (o *Observer) received(f frame) {
	if o.over {
		return
	}
	o.script.received(f)
	switch f.typ {
	case 'N', 'A', 'K':
		return
	case 'S':
		name, rest, _ := text(f.body)
		value, _, _ := text(rest)
		o.setting(string(name), string(value))
		return
	case 'E':
		o.failure(f)
		return
	}
	m := o.first()
	if m == nil {
		o.lost("%q while nothing is owed", f.typ)
		return
	}
	if m.maybe && f.typ != 'Z' {
		o.pop()
		o.received(f)
		return
	}
	o.answer(m, f)
}

// first returns the message that the next reply belongs to, after removing those that
// the server skips or never replies to.
func (o *Observer) first() *message {
	for len(o.queue) > 0 {
		m := o.queue[0]
		silent := m.typ == 'H' && !m.bad || m.typ == 'd' || m.typ == 'c' || m.typ == 'f' || m.typ == 'X'
		if !silent && (m.typ == 'S' || !o.skipping()) {
			return m
		}
		ok, bad := o.apply(o.confirmed, m, false)
		o.confirmed = union(ok, bad)
		o.pop()
	}
	return nil
}

func (o *Observer) skipping() bool {
	for _, s := range o.confirmed {
		if !s.skip {
			return false
		}
	}
	return true
}

func (o *Observer) pop() {
	o.queue = o.queue[1:]
	o.stale = true
}

// answer processes a server message that is a reply to m.
func (o *Observer) answer(m *message, f frame) {
	switch {
	case f.typ == 'Z':
		o.ready(m, f)
	case f.typ == 'D' || f.typ == 'T' && m.typ != 'D' || f.typ == 'H' || f.typ == 'W' || f.typ == 'd' || f.typ == 'c' || f.typ == 't' || f.typ == 'V':
	case f.typ == 'G':
		m.copies++
		o.stale = true
	case m.typ == 'Q' && (f.typ == 'C' || f.typ == 'I'):
		m.tags = append(m.tags, tagOf(f))
		o.copied(m)
	case m.typ == 'E' && f.typ == 'I':
		// Nothing was run: the text is empty, or the portal is one whose Bind has failed.
		m.may, m.here, m.declared, m.answered = emptyStatement, emptyStatement, false, true
		o.succeeded(m)
	case m.typ == 'E' && (f.typ == 'C' || f.typ == 's'):
		m.tags = append(m.tags, tagOf(f))
		o.copied(m)
		o.executed(m)
	case m.typ == 'P' && f.typ == '1':
		o.succeeded(m)
		confirm(o.statements, m)
	case m.typ == 'B' && f.typ == '2':
		o.succeeded(m)
		confirm(o.portals, m)
	case m.typ == 'C' && f.typ == '3', m.typ == 'D' && (f.typ == 'T' || f.typ == 'n'):
		o.succeeded(m)
	default:
		o.lost("%q in answer to %q", f.typ, m.typ)
	}
}

func tagOf(f frame) string {
	tag, _, _ := text(f.body)
	return string(tag)
}

// succeeded removes m from the queue.
func (o *Observer) succeeded(m *message) {
	o.confirmed, _ = o.apply(o.confirmed, m, false)
	o.pop()
	if len(o.confirmed) == 0 {
		o.lost("success of a message %q, which should not succeed", m.typ)
	}
}

// executed processes the success of an Execute. The tag shows which statement it was,
// if the name could stand for several.
func (o *Observer) executed(m *message) {
	if len(m.may) == 1 && m.may[0].kind == opaque {
		switch tag := m.tags[0]; tag {
		case "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PREPARE TRANSACTION", "CALL", "DO":
		default:
			m.may = []statement{{kind: query}}
		}
	}
	m.identify(m.tags[0])
	for i := range m.may {
		if m.may[i].check.asks {
			m.may[i].said = saidCurrent
			if m.tags[0] != "SELECT 0" {
				m.may[i].said = saidStale
			}
			m.here = m.may
		}
	}
	p := place{resource: o.facts.Resource, version: o.facts.Version, extended: true}
	for _, s := range o.confirmed {
		may := m.mayIn(s)
		for i := range may {
			if v := o.judge(s, &may[i], p); v.later && !m.noted {
				o.complain("Execute of %s", v.why)
				return
			}
		}
	}
	o.succeeded(m)
	for i := range o.confirmed {
		o.confirmed[i].copies, o.confirmed[i].byExecute = 0, false
	}
}

// identify keeps those statements of an Execute that may be answered by this tag.
func (m *message) identify(tag string) {
	other := func(q statement) bool { return !q.tagged(tag) }
	m.answered = true
	m.may, m.here = slices.DeleteFunc(slices.Clone(m.may), other), slices.DeleteFunc(slices.Clone(m.here), other)
	m.declared = m.declared && cursor[0].tagged(tag)
}

// tagged reports whether a statement that succeeds may be answered by this tag.
func (q *statement) tagged(tag string) bool {
	var own []string
	switch {
	case q.empty:
		return false
	case q.kind == opaque, q.afterwards != nil:
		return true
	case q.kind == begin:
		own = []string{"BEGIN", "START TRANSACTION"}
	case q.kind == commit, q.kind == rollback:
		own = []string{"COMMIT", "ROLLBACK"}
	case q.kind == rollbackTo:
		own = []string{"ROLLBACK"}
	case q.kind == release:
		own = []string{"RELEASE"}
	case q.savepoint:
		own = []string{"SAVEPOINT"}
	case q.kind == twoPhase:
		return true
	default:
		switch tag {
		case "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK", "RELEASE", "SAVEPOINT":
			return false
		}
		return true
	}
	return slices.Contains(own, tag)
}

// copied removes the data of a finished COPY from the queue.
func (o *Observer) copied(m *message) {
	if m.copies == 0 {
		return
	}
	m.copies = 0
	for i := 1; i < len(o.queue); i++ {
		if typ := o.queue[i].typ; typ == 'c' || typ == 'f' {
			o.queue = append(o.queue[:1], o.queue[i+1:]...)
			break
		} else if typ != 'd' && typ != 'H' && typ != 'S' {
			break
		}
	}
	o.stale = true
}

// failure processes an ErrorResponse.
func (o *Observer) failure(f frame) {
	if bytes.Contains(f.body, []byte("VFATAL\x00")) || bytes.Contains(f.body, []byte("VPANIC\x00")) {
		o.over = true
		return
	}
	flushes := o.onlyFlushes()
	m := o.first()
	malformed := bytes.Contains(f.body, []byte("\x00C08P01\x00"))
	for m != nil && m.maybe && !(m.bad && malformed) { // it was COPY data, because a good Sync does not fail
		o.pop()
		m = o.first()
	}
	if m == nil && flushes { // a statement_timeout that had expired before the Flush
		var next set
		for _, s := range o.confirmed {
			next.add(s.fail(true))
		}
		o.confirmed, o.stale = next, true
		return
	}
	if m == nil {
		o.lost("an error while nothing is owed")
		return
	}
	if m.copies > 0 {
		o.copyFailed(f)
	}
	switch m.typ {
	case 'Q', 'F', 'S':
		m.failed = true
	default:
		o.judgeFailed(m)
		_, o.confirmed = o.apply(o.confirmed, m, false)
		o.undefined(m)
		o.pop()
		for len(o.queue) > 0 && o.queue[0].typ != 'S' {
			o.undefined(o.queue[0])
			o.pop()
		}
	}
	o.stale = true
}

// onlyFlushes reports whether an error now can answer nothing but a Flush.
func (o *Observer) onlyFlushes() bool {
	for _, m := range o.queue {
		if m.typ != 'H' || m.bad {
			return false
		}
	}
	return len(o.queue) > 0
}

// undefined records that m has failed or was skipped. A Bind that fails creates no portal
// that runs anything.
func (o *Observer) undefined(m *message) {
	switch m.typ {
	case 'P':
		undefine(o.statements, m)
	case 'B':
		undefine(o.portals, m)
	}
}

// judgeFailed complains about an Execute that may have run without coverage before it
// failed.
func (o *Observer) judgeFailed(m *message) {
	if m.typ != 'E' || m.noted {
		return
	}
	for _, s := range o.confirmed {
		may := m.mayIn(s)
		for i := range may {
			q := &may[i]
			if v := o.judge(s, q, place{resource: o.facts.Resource, version: o.facts.Version, extended: true}); v.later && q.kind != lone {
				o.complain("Execute of %s", v.why)
				return
			}
		}
	}
}

// dataLine matches the line of an error's context that tells how many lines a COPY had
// read, at least one. The word for "line" depends on lc_messages.
var dataLine = regexp.MustCompile(`COPY [^\x00\n]*, \S+ [1-9][0-9]*[ ,:\x00\n]`)

// copyFailed processes an error while the server read COPY data. What it had read by
// then was part of the data, including Syncs: everything up to the client's CopyFail,
// or the Syncs before the data that the error is about. Other Syncs may have been part
// of it too.
func (o *Observer) copyFailed(f frame) {
	m := o.queue[0]
	if bytes.Contains(f.body, []byte("C57014\x00")) && bytes.Contains(f.body, []byte("RCopyGetData\x00")) {
		o.copied(m)
		return
	}
	m.copies = 0
	line, early := dataLine.Match(f.body), true
	kept := o.queue[:1:1]
	for i, x := range o.queue[1:] {
		early = early && x.typ != 'd'
		switch {
		case x.typ == 'S' && line && early:
			o.doubtful = true // a function can choose the words of an error
			continue
		case x.typ == 'S':
			x.maybe, o.doubtful = true, true
		case x.typ != 'd' && x.typ != 'H':
			o.queue = append(kept, o.queue[1+i:]...)
			return
		}
		kept = append(kept, x)
	}
	o.queue = kept
}

// ready processes a ReadyForQuery.
func (o *Observer) ready(m *message, f frame) {
	if m.typ != 'S' && m.typ != 'Q' && m.typ != 'F' || len(f.body) != 1 {
		o.lost("ReadyForQuery in answer to %q", m.typ)
		return
	}
	ok, bad := o.apply(o.confirmed, m, false)
	switch {
	case m.typ == 'S', !exact(m.may):
		ok = union(ok, bad)
	case m.failed:
		ok = bad
	}
	next := set{}
	for _, s := range ok {
		s.copies, s.byExecute, s.bound = 0, false, false
		if m.typ == 'S' && m.failed && !m.bad {
			s = s.ended()
		}
		switch f.body[0] {
		case 'I':
			if s.phase == idle {
				next.add(s)
			}
		case 'T':
			if s.phase == block || s.phase == implicit {
				next.add(s)
			}
		case 'E':
			if s.phase == failed {
				next.add(s)
			}
		}
	}
	o.confirmed = next
	o.pop()
	if m.maybe {
		o.doubtNext()
	}
	o.unsaid = false
	for _, m := range o.queue {
		o.unsaid = o.unsaid || !m.keepsSettings()
	}
	rests := o.first() == nil // COPY data outside a COPY is never answered
	if rests {
		o.open = false
	}
	if f.body[0] == 'I' && rests {
		clear(o.portals)
	}
	if len(next) == 0 {
		o.lost("ReadyForQuery %q, which should not come here", f.body)
	}
}

// doubtNext marks the next Sync that is answered for sure: if the server took the Syncs in
// front of it for COPY data, it has answered this one.
func (o *Observer) doubtNext() {
	for _, m := range o.queue {
		switch {
		case m.typ == 'S' && m.maybe, m.typ == 'c', m.typ == 'f', m.typ == 'd', m.typ == 'H' && !m.bad:
		case m.typ == 'S':
			m.maybe = true
			return
		default:
			return
		}
	}
}

// lost complains that the model has lost track of the server.
func (o *Observer) lost(format string, args ...any) {
	if o.doubtful { // it is unknown which Sync was answered; the proxy ends the session too
		o.over = true
		return
	}
	o.complain("the model has lost its way: "+format, args...)
}
