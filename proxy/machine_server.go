package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// errSurprise says that the server sent what cannot answer what was asked. The
// session ends: it is never guessed over.
var errSurprise = errors.New("unexpected reply of the server")

// server takes bytes of the server, as many as it can, and says in p what to
// send to the client. What the shell has to do around it is in m.events.
func (m *machine) server(in []byte, p *plan) (n int, err error) {
	m.down = m.down[:0]
	for n < len(in) {
		if m.skipDown > 0 {
			k := min(m.skipDown, len(in)-n)
			if !m.dropDown {
				p.forward(n, n+k)
			}
			m.skipDown -= k
			n += k
			continue
		}
		f, ok, err := peekFrame(in[n:])
		if err != nil {
			return n, err
		}
		if !ok {
			break
		}
		avail := min(f.size, len(in)-n)
		if avail < f.size && !streamed(f.typ) {
			break
		}
		drop, err := m.answer(f, in[n:n+avail], p)
		if err != nil {
			return n, err
		}
		if !drop {
			p.forward(n, n+avail)
		}
		m.dropDown, m.skipDown = drop, f.size-avail
		n += avail
	}
	return n, nil
}

// streamed reports whether messages of the server of this type are passed on
// without being read.
func streamed(typ byte) bool {
	switch typ {
	case 'D', 'd', 'T', 't', 'V', 'N', 'A':
		return true
	default:
		return false
	}
}

// answer accounts for one message of the server. drop says that it does not go
// to the client as it is; what goes in its place is in p.
func (m *machine) answer(f frame, msg []byte, p *plan) (drop bool, err error) {
	switch f.typ {
	case 'N', 'A':
		return false, nil
	case 'S':
		m.parameter(msg[headerLen:])
		return false, nil
	case 'E':
		return m.failure(msg, p)
	}
	for {
		e := m.front()
		if e == nil {
			return false, fmt.Errorf("%w: %q while nothing is owed", errSurprise, f.typ)
		}
		if drop, ok := m.match(e, f.typ, msg, p); ok {
			return drop, nil
		}
		if !e.maybe {
			return false, fmt.Errorf("%w: %q while kind %d is owed", errSurprise, f.typ, e.kind)
		}
		m.owed.pop()
	}
}

// front is the entry whose reply comes next. Ends of COPY owe none.
func (m *machine) front() *reply {
	for {
		e := m.owed.front()
		if e == nil || e.kind != copyEnd {
			return e
		}
		m.owed.pop()
	}
}

// match lets the entry in front take a message of type typ. ok is false if that
// cannot answer it.
func (m *machine) match(e *reply, typ byte, msg []byte, p *plan) (drop, ok bool) {
	drop = e.ours
	switch e.kind {
	case parse:
		if typ == '1' {
			if e.stmt != nil {
				e.stmt.confirmed = true
			}
			m.owed.pop()
			return drop, true
		}
	case bind:
		return drop, m.popOn(typ == '2')
	case closing:
		return drop, m.popOn(typ == '3')
	case describe:
		if typ == 't' {
			return drop, true
		}
		return drop || typ == 'n' && e.hideNoData, m.popOn(typ == 'T' || typ == 'n')
	case run:
		return true, m.matchRun(e, typ)
	case execute:
		return drop, m.matchExecute(e, typ, msg)
	case query:
		return m.matchQuery(e, typ, msg, p)
	case function:
		if typ == 'V' {
			return false, true
		}
		fallthrough
	case syncing:
		if typ == 'Z' {
			m.ready(e, msg, p)
			return drop, true
		}
	}
	return false, false
}

func (m *machine) popOn(ok bool) bool {
	if ok {
		m.owed.pop()
	}
	return ok
}

// matchRun follows Bind, Execute and Close of ours.
func (m *machine) matchRun(e *reply, typ byte) bool {
	switch typ {
	case '2', 'D':
		return true
	case 'C':
		switch e.guard {
		case fullCheck:
			m.srvCover = fullCovered
		case readOnly:
			m.srvCover = readCovered
		}
		return true
	case '3':
		m.owed.pop()
		return true
	default:
		return false
	}
}

func (m *machine) matchExecute(e *reply, typ byte, msg []byte) bool {
	switch typ {
	case 'D', 'H', 'W', 'd', 'c':
		return true
	case 'G':
		m.copyStarted()
		return true
	case 'C':
		m.completed(e, msg)
		m.owed.pop()
		return true
	case 'I', 's':
		m.owed.pop()
		return true
	default:
		return false
	}
}

// matchQuery follows the results of a Query, in which statements of ours may
// stand between the client's.
func (m *machine) matchQuery(e *reply, typ byte, msg []byte, p *plan) (drop, ok bool) {
	ins, drop := e.insertionAt(e.done)
	switch typ {
	case 'T', 'D', 'H', 'd', 'c', 'I', 'W':
		return drop, true
	case 'G':
		m.copyStarted()
		return drop, true
	case 'C':
		e.done++
		if !drop {
			m.completed(e, msg)
			return false, true
		}
		switch ins.guard {
		case fullCheck:
			m.srvCover = fullCovered
		case readOnly:
			m.srvCover = readCovered
		}
		return true, true
	case 'Z':
		m.ready(e, msg, p)
		return false, true
	default:
		return false, false
	}
}

// insertionAt returns the statement of ours that is the i-th of a Query's text.
func (e *reply) insertionAt(i int) (x insertion, ok bool) {
	if e.prefix > 0 {
		return insertion{n: e.prefix, guard: e.guard, refuse: e.refuse}, i == 0
	}
	for _, x := range e.inserts {
		if x.index == i {
			return x, true
		}
	}
	return insertion{}, false
}

// completed follows a CommandComplete of the client's.
func (m *machine) completed(e *reply, msg []byte) {
	tag, _, _ := cstring(msg[headerLen:])
	switch {
	case bytes.Equal(tag, []byte("COMMIT")), bytes.Equal(tag, []byte("ROLLBACK")):
		m.srvCover = uncovered
	case m.srvCover == readCovered && (bytes.Equal(tag, []byte("RESET")) || bytes.Equal(tag, []byte("SET"))):
		m.srvCover = uncovered // 14 and 15 let a RESET undo read-only mode
	}
	if e.tells {
		m.pending.told, m.pending.set = e.told, true
	}
	if m.copying {
		m.copyDone()
	}
}

// copyStarted: the server has begun to read COPY data. Whatever was sent
// behind, up to the end of the COPY, it reads in that state, in which Sync is
// ignored.
func (m *machine) copyStarted() {
	m.copying = true
	for i := 1; i < m.owed.len(); i++ {
		switch e := m.owed.at(i); e.kind {
		case copyEnd:
			return
		case syncing:
			e.maybe = true
		}
	}
	m.copyIn = true
}

// copyDone: a COPY was read to its end, so the Syncs inside it were ignored.
func (m *machine) copyDone() {
	m.copying = false
	for i := 1; i < m.owed.len(); {
		switch e := m.owed.at(i); {
		case e.kind == copyEnd:
			m.owed.remove(i)
			return
		case e.kind == syncing && e.maybe:
			m.owed.remove(i)
		default:
			i++
		}
	}
}

// ready accounts for ReadyForQuery, which ends what e was owed.
func (m *machine) ready(e *reply, msg []byte, p *plan) {
	wasOurs := e.ours
	maybe := e.maybe
	m.copyIn, m.copying = false, false
	m.owed.pop()
	m.front()  // ends of a COPY that failed are owed nothing
	if maybe { // the Sync behind the COPY may have been this one
		for i := range m.owed.len() {
			if next := m.owed.at(i); next.kind == syncing {
				next.maybe = true
				break
			}
		}
	}
	m.skipping = false
	m.tx = msg[headerLen]
	if m.tx == 'I' {
		m.srvCover = uncovered
	}
	m.txCover = m.srvCover
	if m.noted && m.tx == 'I' && m.quiet() {
		m.noted, m.leaving = false, true
		m.events = append(m.events, event{kind: leave})
	}
	if wasOurs {
		return
	}
	m.report(p)
	if m.pending.set && m.quiet() {
		m.events = append(m.events, event{kind: tell})
	}
}

// report puts changed fencepost.* parameters in front of ReadyForQuery.
func (m *machine) report(p *plan) {
	if m.mode != fencedMode {
		return
	}
	st := m.standing()
	if st == m.reported {
		return
	}
	at := len(m.down)
	if m.reported == nil || shownRole(m.reported) != shownRole(st) {
		m.down = appendParameterStatus(m.down, "fencepost.role", shownRole(st))
	}
	if m.reported == nil || shownEpoch(m.reported) != shownEpoch(st) {
		m.down = appendParameterStatus(m.down, "fencepost.epoch", strconv.FormatInt(int64(shownEpoch(st)), 10))
	}
	m.reported = st
	p.insert(m.down[at:])
}

func (m *machine) parameter(body []byte) {
	name, value, ok := decodeParameterStatus(body)
	if !ok {
		return
	}
	switch name {
	case "standard_conforming_strings":
		m.settings.StandardConformingStrings = value == "on"
	case "client_encoding":
		m.settings.SafeEncoding = fencing.SafeEncoding(value)
	}
}

// failure accounts for an ErrorResponse.
func (m *machine) failure(msg []byte, p *plan) (drop bool, err error) {
	pe, ok := decodeError(msg[headerLen:])
	if !ok {
		return false, fmt.Errorf("%w: an error that cannot be read", errSurprise)
	}
	if pe.fatal() {
		m.events = append(m.events, event{kind: ended, err: pe, message: bytes.Clone(msg)})
		return true, nil
	}
	e := m.front()
	for e != nil && e.maybe && !m.skipping {
		m.owed.pop()
		e = m.front()
	}
	if e == nil {
		return false, fmt.Errorf("%w: an error while nothing is owed", errSurprise)
	}
	out, drop := m.errorFor(e, pe, msg)
	p.insert(out)
	m.copyIn, m.copying = false, false
	m.fail(e)
	return drop, nil
}

// fail follows what the server skips after an error that answers e.
func (m *machine) fail(e *reply) {
	if e.kind == query || e.kind == function || e.kind == syncing {
		return // ReadyForQuery follows, and everything behind runs
	}
	m.skipping = true
	for {
		e := m.owed.front()
		if e == nil || e.kind == syncing {
			return
		}
		if e.kind == parse && e.stmt != nil && !e.ours {
			e.stmt.lost = true
		}
		if e.kind == parse && e.ours && e.guard != refusal {
			m.checks.rename()
		}
		m.owed.pop()
	}
}

// errorFor says what the client gets for an error that answers e: the message
// itself (drop is false) or out in its place.
func (m *machine) errorFor(e *reply, pe pgError, msg []byte) (out []byte, drop bool) {
	g, refuse := e.guard, e.refuse
	if e.kind == query {
		ins, ok := e.insertionAt(e.done)
		if g = noGuard; ok {
			g, refuse = ins.guard, ins.refuse
		}
	}
	switch {
	case g == noGuard && pe.Code == "25006" && m.srvCover == readCovered:
		return m.readOnlyError(e), true
	case g == noGuard && e.prefix == 0 && len(e.inserts) == 0:
		return nil, false
	case g == noGuard:
		return m.shifted(e, msg), true
	case g == refusal && pe.Code == raiseCode:
		m.refused(e, pgError{Code: refuse.SQLState, Message: refuse.Message, Detail: refuse.Detail})
		at := len(m.down)
		m.down = appendError(m.down, "ERROR", refuse)
		return m.down[at:], true
	case e.kind == query && e.done == 0 && !ofCheck(e, pe):
		return m.shifted(e, msg), true
	default:
		return m.checkError(e, pe, msg), true
	}
}

// ofCheck reports whether the first error of a Query that begins with a check
// is the check's own. The server parses the whole text before it runs any of
// it, and what it finds there is the client's.
func ofCheck(e *reply, pe pgError) bool {
	first := e.prefix
	if first == 0 {
		first = e.inserts[0].n
	}
	if pe.Position > 0 {
		return pe.Position <= first
	}
	switch pe.Code {
	case "42601", "22021", "22025", "54000", "54001", "0A000", "08P01":
		return pe.Code == "0A000" // a cached plan that changed
	default:
		return true
	}
}

// shifted puts the position of an error in a Query back to where it is in the
// client's text.
func (m *machine) shifted(e *reply, msg []byte) []byte {
	at := len(m.down)
	m.down = editError(m.down, msg, func(field byte, v []byte) ([]byte, bool) {
		if field != 'P' {
			return v, true
		}
		return e.position(v), true
	})
	return m.down[at:]
}

// position maps a position in the text that was sent to the client's text.
func (e *reply) position(v []byte) []byte {
	if e.prefix > 0 {
		return shiftPosition(v, e.prefix)
	}
	pos, err := strconv.Atoi(string(v))
	if err != nil {
		return v
	}
	p := pos - 1
	sum := 0
	for _, x := range e.inserts {
		if p >= x.at+sum {
			sum += x.n
		}
	}
	return shiftPosition(v, sum)
}

func (m *machine) readOnlyError(e *reply) []byte {
	r := m.unfencedBy
	if m.mode == fencedMode {
		st := m.standing()
		r = readOnlyRefusal(m.checks.resource, m.checks.worker, m.checks.incarnation, st)
		if st.May() {
			m.pending.told, m.pending.set = st.Epoch, true
		}
	}
	m.refused(e, pgError{Code: r.SQLState, Message: r.Message, Detail: r.Detail})
	at := len(m.down)
	m.down = appendError(m.down, "ERROR", r)
	return m.down[at:]
}

// checkError turns an error of a check into what the client sees.
func (m *machine) checkError(e *reply, pe pgError, msg []byte) []byte {
	at := len(m.down)
	severity := ""
	switch {
	case pe.Code == fencing.StateSuperseded:
		severity = "FATAL"
		m.events = append(m.events, event{kind: superseded})
	case pe.Code == fencing.StateStartOver:
		m.pending.told, m.pending.set = e.told, true
	case strings.HasPrefix(pe.Code, "ZF"):
	case theirs(pe.Code):
		// The client's own timeout, cancel, deadlock or failed transaction.
		m.down = editError(m.down, msg, func(field byte, v []byte) ([]byte, bool) { return v, field != 'W' && field != 'P' })
		return m.down[at:]
	default:
		m.checks.rename()
		r := uncheckedRefusal(pe)
		m.refused(e, pgError{Code: r.SQLState, Message: r.Message, Detail: r.Detail})
		m.down = appendError(m.down, "ERROR", r)
		return m.down[at:]
	}
	m.refused(e, pe)
	m.down = editError(m.down, msg, func(field byte, v []byte) ([]byte, bool) {
		switch {
		case severity != "" && (field == 'S' || field == 'V'):
			return []byte(severity), true
		default:
			return v, field != 'W' && field != 'P'
		}
	})
	return m.down[at:]
}

// theirs reports whether an error that hit the check is the client's own: it
// would have met the client's statement as well.
func theirs(code string) bool {
	switch code {
	case "57014", "55P03", "40P01", "40001", "25P02", "53200", "53300", "57P01", "57P02", "57P03":
		return true
	default:
		return false
	}
}

// refused notes a refusal for the audit.
func (m *machine) refused(e *reply, pe pgError) {
	text, write := string(e.text), true
	if e.stmt != nil {
		text = e.stmt.text[:min(len(e.stmt.text), maxAuditText)]
		write = !e.stmt.known || !m.read(e.stmt)
	} else if t := m.analyze([]byte(text)); t.Known {
		write = false
		for i := range t.Statements {
			write = write || !t.Statements[i].Read
		}
	}
	m.events = append(m.events, event{kind: refused, err: pe, text: text, write: write})
}
