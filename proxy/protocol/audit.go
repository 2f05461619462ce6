package protocol

import (
	"slices"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Attempt is what a client has tried, for the audit of a session that ends because its candidacy is over.
type Attempt struct {
	// Text is the first text that may write, or the first of all if none may. It is cut for the
	// audit, and empty if it is not known.
	Text  string
	Write bool // something may write
	Sent  bool // the client has sent something that is refused; a Terminate is not
}

// Attempt is what the client has tried with b, which FromClient has not taken, and with the exchange
// that is not answered.
func (s *Session) Attempt(b []byte) Attempt {
	a := Attempt{Sent: s.body.left > 0 || len(b) == 0 && s.Is(ReplyPending)}
	b = b[min(s.body.left, len(b)):]
	var made madeBy
	for len(b) > 0 && b[0] != 'X' && !(a.Write && a.Text != "") {
		a.Sent = true
		f, ok, err := wire.PeekClientFrame(b)
		if !serverReads(b[0]) || err != nil {
			break
		}
		if !ok {
			f = wire.Frame{Type: b[0], Size: len(b) + 1}
		}
		there := min(f.Size, len(b))
		s.attemptMessage(&a, &made, f.Type, b[min(wire.HeaderLen, there):there])
		b = b[there:]
	}
	s.attemptExchange(&a)
	return a
}

// InFlight is what the server was running, or was about to run, when its connection ended.
func (s *Session) InFlight() Attempt {
	a := Attempt{Sent: true}
	s.attemptExchange(&a)
	return a
}

// Rejection is what is known of what is refused with r. It copies the text, because it may outlive the session.
func (s *Session) Rejection(r *fencing.Refusal, what Attempt) fencing.Rejection {
	out := fencing.Rejection{
		Kind: fencing.KindOf(s.config.Resource, r.SQLState, fencing.Finding{}), SQLState: r.SQLState, Message: r.Message,
		Statement: strings.Clone(what.Text), Write: what.Write,
	}
	if s.config.Mode != ModeFenced {
		return out
	}
	one := s.refusedMembership()
	st := one.Status()
	out.Resource, out.Worker, out.Incarnation = one.Resource, s.config.Worker, one.Incarnation()
	out.Announced, out.Held = one.epochs.current, st.Epoch
	out.Finding = fencing.Finding{Epoch: st.Epoch, Current: st.Holder.Epoch, Holder: st.Holder.Worker}
	out.Kind = fencing.KindOf(one.Resource, r.SQLState, out.Finding)
	return out
}

// madeBy is what messages that were not taken make: prepared statements and portals, whose texts were noted.
type madeBy struct{ statements, portals []string }

// attemptMessage takes a message into account, of which body has arrived.
func (s *Session) attemptMessage(a *Attempt, made *madeBy, typ byte, body []byte) {
	first, rest := textOf(body)
	switch typ {
	case 'Q':
		s.attemptText(a, first)
	case 'P':
		sql, _ := textOf(rest)
		s.attemptText(a, sql)
		made.statements = append(made.statements, string(first))
	case 'B':
		name, _ := textOf(rest)
		if !slices.Contains(made.statements, string(name)) {
			s.attemptPrepared(a, s.statement(name))
		}
		made.portals = append(made.portals, string(first))
	case 'E':
		if !slices.Contains(made.portals, string(first)) {
			s.attemptPrepared(a, s.exchange.portals[string(first)])
		}
	case 'F':
		a.note(sqltext.FunctionCall, true)
	}
}

// textOf is what has arrived of a string at the start of b, and what follows it.
func textOf(b []byte) (text, rest []byte) {
	if text, rest, ok := wire.CString(b); ok {
		return text, rest
	}
	return b, nil
}

func (s *Session) attemptText(a *Attempt, sql []byte) {
	write := true
	if len(sql) > 0 && len(sql) <= inlineText {
		t := s.config.Cache.AnalyzeBytes(sql, s.settings.reading)
		write = !t.Known
		for i := range t.Statements {
			write = write || !t.Statements[i].Read
		}
	}
	a.note(auditText(sql), write)
}

func (s *Session) attemptPrepared(a *Attempt, e *prepared) {
	if e == nil {
		a.note("", true)
		return
	}
	if e.statement == nil { // of a relay
		s.attemptText(a, []byte(e.text))
		return
	}
	a.note(e.text, !e.statement.Read)
}

// attemptExchange takes what the client has sent into account that is not answered.
func (s *Session) attemptExchange(a *Attempt) {
	x := &s.exchange
	if s.relay.on {
		if s.Is(ReplyPending) {
			s.attemptText(a, []byte(s.relayedText()))
		}
		return
	}
	switch x.kind {
	case queryExchange:
		write := len(x.statements) == 0
		for i := range x.statements {
			write = write || !x.statements[i].Read
		}
		a.note(x.text, write)
	case batchExchange:
		for _, e := range x.runs[x.answered:] {
			s.attemptPrepared(a, e)
		}
	}
}

// note takes a text into account.
func (a *Attempt) note(text string, write bool) {
	if write && !a.Write || write == a.Write && a.Text == "" {
		a.Text, a.Write = text, write
	}
}
