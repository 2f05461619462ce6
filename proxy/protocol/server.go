package protocol

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// takeReply takes the message of the server's that begins at in[n], or more of one. It takes nothing if that
// has to be there as a whole, and is not.
func (s *Session) takeReply(in []byte, n int, p *gate.Segments) (taken int, err error) {
	if s.reply.left > 0 {
		k := min(s.reply.left, len(in)-n)
		if s.reply.left -= k; !s.reply.drop {
			p.Forward(n, n+k)
		}
		return k, nil
	}
	if s.relay.on {
		return s.relayReply(in, n, p)
	}
	f, ok, err := wire.PeekFrame(in[n:])
	if err != nil || !ok {
		return 0, err
	}
	avail := min(f.Size, len(in)-n)
	if x := &s.exchange; x.inner != nil {
		taken, done, err := s.takeOwnReply(x.inner, in, n, f, p)
		if done {
			x.failed, x.skip, x.inner = x.failed || x.inner.failed, x.skip || x.inner.failed, nil
		}
		return taken, err
	}
	if f.Type == 'D' && s.exchange.own.does&learnsNames != 0 {
		if avail < f.Size {
			return 0, nil
		}
		s.learnName(in[n+wire.HeaderLen : n+f.Size])
	}
	var drop bool
	switch f.Type {
	case 'E', 'S', 'C', 'Z', '1', '3', 'I', 's', 'G':
		if avail < f.Size {
			return 0, nil
		}
		drop, err = s.followMessage(f.Type, in[n:n+f.Size], p)
	case 'A', 'N':
		drop = f.Type == 'N' && s.exchange.kind == ownExchange
	default:
		if s.exchange.kind == noExchange {
			return 0, fmt.Errorf("%w: %q while nothing is owed", ErrUnexpectedReply, f.Type)
		}
		drop = s.exchange.kind == ownExchange || s.dropsReply(f.Type)
	}
	if err != nil {
		return 0, err
	}
	if !drop {
		p.Forward(n, n+avail)
	}
	switch f.Type {
	case '1', '2', '3', 'n', 'T', 'C', 'I', 's':
		s.exchange.unanswered--
	}
	s.reply = passthrough{f.Size - avail, drop}
	return avail, nil
}

// followMessage follows a whole message. drop says that it is not sent on.
func (s *Session) followMessage(typ byte, msg []byte, p *gate.Segments) (drop bool, err error) {
	x, body := &s.exchange, msg[wire.HeaderLen:]
	switch {
	case typ == 'S':
		return s.parameter(body), nil
	case typ == 'E':
		return s.failure(msg, p)
	case x.kind == noExchange:
		return false, fmt.Errorf("%w: %q while nothing is owed", ErrUnexpectedReply, typ)
	case typ == 'Z' && (len(body) != 1 || !strings.Contains("ITE", string(body)) || x.kind == ownExchange && !x.failed && body[0] != s.txn && !(s.endsBySync && body[0] == 'I')):
		return false, fmt.Errorf("%w: ReadyForQuery %q", ErrUnexpectedReply, body)
	case typ == 'Z' && x.kind == ownExchange:
		s.ownDone(body[0])
		return true, nil
	case x.kind == ownExchange:
		return true, nil
	}
	switch typ {
	case 'Z':
		return s.ready(body[0], p), nil
	case 'C':
		tag, _, _ := wire.CString(body)
		s.complete(unsafeString(tag))
	case 'I', 's':
		s.complete("")
	case '1', '3':
		return s.followParseOrClose(typ, p) || s.dropsReply(typ), nil
	case 'G':
		// A Sync that was sent after the Execute is ignored.
		x.copyIn, x.synced = true, false
	}
	return false, nil
}

// parameter follows a ParameterStatus. Outside an exchange of Fencepost's own, the client or a function has changed the
// parameter, or the server's configuration was loaded again. hide says that it is not reported to the client: what it
// does to default_transaction_read_only in a session that may only read is undone before its next exchange.
func (s *Session) parameter(body []byte) (hide bool) {
	c := &s.settings
	was := c.readOnly
	ofMode := c.followParameter(body)
	if c.renamed != "" {
		if s.config.Mode != ModeFenced {
			s.emit(Event{Kind: EventRenamed, Name: c.renamed})
		}
		c.renamed = ""
	}
	own := s.exchange.kind == ownExchange
	if !own && was != c.readOnly {
		c.shown = shown{}              // it may have been RESET ALL in a function
		if !c.readOnly || s.relay.on { // where Fencepost has set it to on, the end of a block may restore that
			c.clientDefault.now = c.readOnly
		}
	}
	if hide = ofMode && (c.reportedReadOnly == c.readOnly || !own && !s.relay.on); ofMode && !hide {
		c.reportedReadOnly = c.readOnly
	}
	return hide
}

// complete follows the end of a statement, with its tag, or what else answers an Execute.
func (s *Session) complete(tag string) {
	x := &s.exchange
	s.settings.followTag(tag)
	if x.kind != batchExchange || x.answered >= len(x.runs) {
		return
	}
	e := x.runs[x.answered]
	x.answered++
	switch {
	case e == nil:
		x.unknown--
		s.ran(overByTag(tag))
	case x.setsSessionChoice && e.statement.Kind == sqltext.Commit: // whatever becomes of what follows it
		s.setSessionChoice(x.chosen)
		x.setsSessionChoice = false
	case x.setsSessionChoice && e.statement.Kind == sqltext.Rollback:
		x.setsSessionChoice = false
	case tag == "SHOW" || tag == "SET" || tag == "RESET" || tag == "DISCARD ALL":
		s.followAnnouncing(e.statement)
		s.followSuccess(e.statement)
	}
}

// ready follows the ReadyForQuery that ends an exchange of the client's. drop says that another part of its
// text follows.
func (s *Session) ready(status byte, p *gate.Segments) (drop bool) {
	x := &s.exchange
	c := &s.settings
	if x.discarded != nil && !x.failed {
		s.answerDiscarded(x.discarded, x.text, p)
	}
	if x.kind == queryExchange && !x.failed {
		for i := range x.statements {
			s.followAnnouncing(&x.statements[i])
			s.followSuccess(&x.statements[i])
		}
	}
	if x.setsSessionChoice && !x.failed {
		s.setSessionChoice(x.chosen)
	}
	switch {
	case status == 'I':
		c.unsure, c.clientDefault.before, s.endsBySync = false, c.clientDefault.now, false
		if c.shown.inBlock {
			c.shown = shown{}
		}
	case x.unsure && (!x.failed || x.kind != queryExchange): // it may be another block than the one that has chosen
		c.unsure, s.choices.block = true, noBlock
	}
	if status == 'I' || !x.failed {
		s.blockError = nil
	}
	if s.txn = status; status == 'I' {
		s.transactionEnded()
	}
	if s.parts.next > 0 && x.kind == queryExchange {
		s.parts.failed = x.failed
		drop = !x.failed
	}
	s.exchange = exchange{}
	if drop {
		return true
	}
	s.countTransaction(status)
	s.reportChanges(p)
	return false
}

// countTransaction counts the transaction that a ReadyForQuery for the client ends.
func (s *Session) countTransaction(status byte) {
	if status == 'I' {
		s.ended++
	}
}

// reportChanges reports to the client what has changed, in front of ReadyForQuery.
func (s *Session) reportChanges(p *gate.Segments) {
	at := len(s.made)
	s.made = s.report(s.made)
	p.Insert(s.made[at:])
	pending := s.startup.epochs.hasPending
	for _, st := range s.choices.known {
		pending = pending || st.epochs.hasPending
	}
	if pending {
		s.emit(Event{Kind: EventAnnounce})
	}
}

// followSuccess follows a statement of the client's that has succeeded.
func (s *Session) followSuccess(st *sqltext.Statement) {
	s.settings.followStatement(st)
	switch x := &s.exchange; {
	case endsWithDiscard(st): // whatever becomes of what follows it
		s.setSessionChoice(nil)
	case st.Does(sqltext.ResetsAll):
		x.setsSessionChoice, x.chosen = true, nil
	case st.Kind == sqltext.SetFence && st.Name == "resource" && !st.Does(sqltext.SetsLocally) && x.chosen != nil:
		x.setsSessionChoice = true
	}
}

func (s *Session) emit(e Event) { s.events = append(s.events, e) }

// failure follows an ErrorResponse.
func (s *Session) failure(msg []byte, p *gate.Segments) (drop bool, err error) {
	e, ok := wire.DecodeError(msg[wire.HeaderLen:])
	if !ok {
		return false, fmt.Errorf("%w: an error that cannot be read", ErrUnexpectedReply)
	}
	x := &s.exchange
	fatal := e.Fatal()
	switch {
	case fatal && (x.refusal == nil || !isRefusedWord(&e)) && !s.isReadOnlyError(&e):
		s.emit(Event{Kind: EventEnded, Err: e, Message: bytes.Clone(msg)})
		return true, nil
	case x.kind == noExchange:
		return false, fmt.Errorf("%w: an error while nothing is owed", ErrUnexpectedReply)
	case x.kind == ownExchange:
		if x.failed = true; s.txn == 'T' {
			s.blockError = bytes.Clone(msg)
		}
		return true, nil
	}
	if fatal { // exit_on_error is on
		defer s.emit(Event{Kind: EventEnded, Err: e})
	}
	x.failed, x.copyIn = true, false
	x.skip = x.skip || x.kind == batchExchange && !x.synced
	out := s.errorFor(msg, &e)
	p.Insert(out)
	return out != nil, nil
}

// isReadOnlyError reports whether an error says that read-only mode has refused something of the client's: a write,
// or READ WRITE after a query.
func (s *Session) isReadOnlyError(e *wire.ServerError) bool {
	x := &s.exchange
	return x.kind != ownExchange && s.choices.block != blockWrites && (e.Code == "25006" || x.unsure && e.Code == "25001" && e.Routine == "call_bool_check_hook")
}

// errorFor returns what the client gets in place of an error, nil if it gets the error itself.
func (s *Session) errorFor(msg []byte, e *wire.ServerError) []byte {
	x := &s.exchange
	switch {
	case x.refusal != nil && isRefusedWord(e):
		return s.refuse(x.refusal, e.Severity, x.refused)
	case x.refusal != nil && e.Code == "42601":
		return s.ownSyntaxError(msg, e, x.refused.Text)
	case s.isReadOnlyError(e):
		return s.refuse(cmp.Or(s.deniedRefusal(), s.notLeaderRefusal("")), e.Severity, Attempt{Text: s.running(), Write: true})
	case s.blockError != nil && e.Code == "25P02":
		out := s.blockError
		s.blockError = nil
		return out
	default:
		return nil
	}
}

// running is the text of what the server runs.
func (s *Session) running() string {
	x := &s.exchange
	if x.kind == batchExchange && x.answered < len(x.runs) && x.runs[x.answered] != nil {
		return x.runs[x.answered].text
	}
	return x.text
}

// refuse makes the error that the client gets for r.
func (s *Session) refuse(r *fencing.Refusal, severity string, what Attempt) []byte {
	if s.config.Mode == ModeFenced && r.SQLState == fencing.StateStartOver {
		one := s.refusedMembership()
		one.epochs.expect(one.Status().Epoch)
	}
	over := s.config.Mode == ModeFenced && r.SQLState == fencing.StateSuperseded
	if over && s.superseded() {
		s.emit(Event{Kind: EventDiscarded, Resource: s.startup.Resource})
		over = false
	}
	if rejection := s.Rejection(r, what); over {
		severity, s.closed = "FATAL", true
		s.emit(Event{Kind: EventSuperseded, Resource: s.refusedMembership().Resource, Rejection: &rejection})
	} else if !r.Usage {
		s.emit(Event{Kind: EventRefused, Rejection: &rejection})
	}
	at := len(s.made)
	s.made = wire.AppendServerError(s.made, wire.ServerError{Severity: severity, Code: r.SQLState, Message: r.Text(), Detail: r.Detail, Hint: r.Hint})
	return s.made[at:]
}
