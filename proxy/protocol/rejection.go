package protocol

import (
	"cmp"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/wire"
)

// refused notes for the audit that the message of e was refused with r.
func (m *Machine) refused(e *reply, r *fencing.Refusal, found fencing.Finding) {
	a := m.attempt()
	a.reply(e)
	rejection := m.rejection(r, found, a.Text, a.Write)
	m.down.happens(Event{Kind: EventRefused, Rejection: &rejection})
}

// superseded is refused for an r that ends the session, because the candidacy of st is over. So all that was sent
// behind the message of e is refused, too.
func (m *Machine) superseded(e *reply, st *standing, r *fencing.Refusal, found fencing.Finding) {
	m.down.phase.mute()
	a := m.attempt()
	a.reply(e)
	a.pending()
	rejection := m.rejection(r, found, a.Text, a.Write)
	m.down.happens(Event{Kind: EventSuperseded, Resource: resourceOf(st), Rejection: &rejection})
}

// Rejection is what the machine knows of what the session itself refuses with r.
func (m *Machine) Rejection(r *fencing.Refusal, tried Attempt) fencing.Rejection {
	return m.rejection(r, m.finding(), tried.Text, tried.Write)
}

// rejection copies the text, because a Rejection may outlive the session.
func (m *Machine) rejection(r *fencing.Refusal, found fencing.Finding, text string, write bool) fencing.Rejection {
	st := m.concerned(found.Resource)
	c, announced := m.candidacy(st), m.epochs.confirmed.announced
	if st != nil {
		announced = m.epochs.confirmed.of(st)
	}
	return fencing.Rejection{
		Resource: c.Resource, Worker: m.config.Worker, Incarnation: c.Incarnation,
		Announced: announced, Held: c.Status().Epoch, Finding: found,
		Kind: fencing.KindOf(c.Resource, r.SQLState), SQLState: r.SQLState, Message: r.Message,
		Statement: strings.Clone(text), Write: write,
	}
}

// finding is what the proxy knows without asking the database.
func (m *Machine) finding() fencing.Finding {
	by := m.answering()
	st := m.candidacy(by).Status()
	return fencing.Finding{Epoch: st.Epoch, Current: st.Holder.Epoch, Holder: st.Holder.Worker, Resource: resourceOf(by)}
}

// findingOf is what the database found when it raised an error with this DETAIL, or what
// the proxy knows if the database did not raise it.
func (m *Machine) findingOf(detail string) fencing.Finding {
	if found, ok := fencing.DecodeFinding(detail); ok {
		return found
	}
	return m.finding()
}

// Attempt is what a client has tried, for the audit of a session that ends because its candidacy is over.
type Attempt struct {
	// Text is the first text that may write, or the first of all if none may. It is cut for the audit, and empty if
	// it is not known.
	Text  string
	Write bool // something may write
	Sent  bool // the client has sent something that is refused; a Terminate is not
}

// attempt looks for what a client has tried. It parses inlineText bytes at most: what it would have to parse
// beyond that counts as a write.
type attempt struct {
	Attempt
	m      *Machine
	parsed int // upstream.parsed at the beginning
	// stmt and portal are the names in the last Parse and the last Bind of the bytes that are looked at, which are
	// not what the machine knows by these names; nil if there was none.
	stmt, portal []byte
}

func (m *Machine) attempt() attempt { return attempt{m: m, parsed: m.up.parsed} }

// Attempt is what the client has tried with b, which FromClient has not taken, and with what was sent to the server and
// is not answered.
func (m *Machine) Attempt(b []byte) Attempt {
	a := m.attempt()
	if m.retry.stage != retryIdle {
		a.frames(m.retry.replaying[m.retry.at:])
	}
	inside := min(m.up.body.left, len(b)) // of a message whose start is pending
	a.Sent = a.Sent || inside > 0 || len(b) == 0 && !m.pendingReplies.empty()
	a.frames(b[inside:])
	a.pending()
	return a.Attempt
}

// InFlight is what the server was running, or was about to run, when its connection ended.
func (m *Machine) InFlight() Attempt {
	a := m.attempt()
	a.Sent = true
	a.pending()
	return a.Attempt
}

// frames looks at messages of the client's, of which the last may be there in part only. The server would read none
// behind a Terminate, or behind what it cannot read.
func (a *attempt) frames(b []byte) {
	for len(b) > 0 && b[0] != 'X' {
		a.Sent = true
		f, ok, err := wire.PeekClientFrame(b)
		if !serverReads(b[0]) || err != nil || a.found() {
			return
		}
		if !ok {
			f = wire.Frame{Type: b[0], Size: len(b) + 1}
		}
		there := min(f.Size, len(b))
		a.message(f.Type, b[min(wire.HeaderLen, there):there])
		b = b[there:]
	}
}

// message looks at a message of this type, of which body is there.
func (a *attempt) message(typ byte, body []byte) {
	name, rest, whole := wire.CString(body)
	switch typ {
	case 'Q':
		a.text(body, name, whole)
	case 'P':
		sql, _, ends := wire.CString(rest)
		a.text(rest, sql, ends)
		a.stmt = name
	case 'B':
		stmt, _, ends := wire.CString(rest)
		a.named(stmt, ends)
		a.portal = name
	case 'D':
		if len(body) > 0 && body[0] == 'S' {
			stmt, _, ends := wire.CString(body[1:])
			a.named(stmt, ends)
		}
	case 'E':
		if !whole || !same(a.portal, name) {
			a.statement(cmp.Or(a.m.names.portals.get(name).stmt, unknownStatement))
		}
	case 'F':
		a.note(sqltext.FunctionCall, true)
	}
}

// text looks at sql, or, if its end is not there, at what is there of it.
func (a *attempt) text(there, sql []byte, whole bool) {
	if whole {
		a.note(view(sql), a.mayWrite(sql))
	} else {
		a.note(view(there), true)
	}
}

// named looks at what uses a prepared statement, whose name may not be there. The text of the last Parse was looked at.
func (a *attempt) named(name []byte, whole bool) {
	switch {
	case !whole:
		a.note("", true)
	case !same(a.stmt, name):
		a.statement(a.m.named(name))
	}
}

// same reports whether last is that name, and not nil.
func same(last, name []byte) bool { return last != nil && view(last) == view(name) }

func (a *attempt) statement(s *statement) {
	a.note(s.text, !s.known || s.class == unclassified && a.spent(len(s.text)) || !a.m.read(s))
}

// pending looks at what was sent to the server and is not answered. What Fencepost has sent in front of a message of
// the client's has the text of that.
func (a *attempt) pending() {
	for i := 0; i < a.m.pendingReplies.len() && !a.found(); i++ {
		e := a.m.pendingReplies.at(i)
		if e.stmt != nil && (!e.own() || e.stmt.text != "") || e.readies() {
			a.reply(e)
		}
	}
}

// reply looks at a message that was sent. One of which nothing is known may write.
func (a *attempt) reply(e *reply) {
	if e.stmt != nil {
		a.statement(e.stmt)
		return
	}
	text := e.sql.audit
	a.note(string(text), e.class != isRead && (len(text) == 0 || a.mayWrite(text)))
}

// note takes a text into account.
func (a *attempt) note(text string, write bool) {
	if write && !a.Write || write == a.Write && a.Text == "" {
		a.Text, a.Write = text[:min(len(text), maxAuditText)], write
	}
}

// found reports whether nothing that follows matters.
func (a *attempt) found() bool { return a.Write && a.Text != "" }

// mayWrite reports whether sql is more than reads, as far as that is known.
func (a *attempt) mayWrite(sql []byte) bool {
	switch {
	case len(sql) > maxAnalyzed:
		return true
	case a.spent(len(sql)):
		t := a.m.analyzed(sql, a.m.reading(sql))
		return t == nil || !onlyReads(t)
	default:
		return !onlyReads(a.m.analyze(sql))
	}
}

// spent reports whether too much would be parsed with n bytes more.
func (a *attempt) spent(n int) bool { return a.m.up.parsed-a.parsed+n > inlineText }

func (m *Machine) ofStatement(s *statement) (text string, write bool) {
	return s.text[:min(len(s.text), maxAuditText)], !s.known || !m.read(s)
}
