package protocol

import (
	"bytes"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// relayMessage relays the message that begins at in[n], as much as has arrived of it. If it takes nothing and
// needs nothing, the relay has ended.
func (s *Session) relayMessage(in []byte, n int, p *gate.Plan) (taken int, need NeedKind) {
	r := &s.relay
	f, ok, err := wire.PeekClientFrame(in[n:])
	if !serverReads(in[n]) || err != nil {
		return s.relayLast(in, n, err, p), NeedNothing
	}
	if !ok {
		s.inHand.messageLen = wire.HeaderLen
		return 0, NeedMore
	}
	if (r.own != nil || r.queue.len() >= maxRelayed) && f.Type != 'X' {
		return 0, NeedRoom
	}
	avail := min(f.Size, len(in)-n)
	body := in[n+wire.HeaderLen : n+avail]
	if s.config.Mode == ModeFenced {
		taken, need, handled := s.inspectFenced(f, body, p)
		if handled {
			return taken, need
		}
	}
	if avail < f.Size && f.Type != 'X' && (!gate.Runs(f.Type) || s.config.Shadow != nil && !shadowable(f.Type, body)) {
		s.inHand.messageLen = f.Size
		return 0, NeedMore
	}
	if s.config.Shadow != nil {
		s.config.Shadow.ClientSent(f.Type, body, s.settings.reading)
	}
	s.followRelayed(f.Type, body)
	switch {
	case f.Type == 'X':
		p.Relay(n, n+avail)
		return avail, NeedTerminal
	case gate.Runs(f.Type):
		s.gate.Pass(p, n, n+avail, f.Size-avail, s.relay.reason)
	default:
		p.Relay(n, n+avail)
	}
	s.body = passthrough{left: f.Size - avail}
	return avail, NeedNothing
}

// begins reports whether a message of this type may begin a transaction.
func begins(typ byte) bool {
	switch typ {
	case 'Q', 'P', 'B', 'D', 'E', 'F', 'C':
		return true
	default:
		return false
	}
}

// shadowable reports whether the part of a message that has arrived is enough for Config.Shadow.
func shadowable(typ byte, body []byte) bool {
	switch typ {
	case 'Q', 'P', 'E':
		return false
	case 'B':
		return namesAreThere(body)
	default:
		return true
	}
}

// relayLast relays a message after which the server closes the connection: of an unknown type, or of a length that is
// invalid for its type (err). What follows is dropped: input that the server leaves unread would reset the connection,
// which discards what it has said and not yet delivered.
func (s *Session) relayLast(in []byte, n int, err error, p *gate.Plan) (taken int) {
	if serverReads(in[n]) {
		r, _ := gate.Malformed(err)
		s.gate.Pass(p, n, n+wire.HeaderLen, 0, r)
	} else {
		p.Relay(n, n+1)
	}
	s.muted = true
	return len(in) - n
}

// inspectFenced looks at a message of a worker before it is relayed. taken and need are as for relayMessage. handled
// says that nothing more is to be done with it in this call.
func (s *Session) inspectFenced(f wire.Frame, body []byte, p *gate.Plan) (taken int, need NeedKind, handled bool) {
	r := &s.relay
	if (begins(f.Type) || f.Type == 'd') && (s.isAtRest() || r.lost) {
		switch {
		case s.mayRelay():
			r.reason = s.relayReason()
		case r.lost:
			s.err = errLost
			return 0, NeedNothing, true
		case len(s.registered) > 0:
			return 0, NeedUnregister, true
		default:
			s.stopRelay()
			return 0, NeedNothing, true
		}
	}
	if r.isSkipping() {
		return 0, NeedNothing, false
	}
	switch f.Type {
	case 'Q', 'P':
		if len(body) < f.Size-wire.HeaderLen {
			s.inHand.messageLen = f.Size
			return 0, NeedMore, true
		}
		if s.mustCampaignFirst(f.Type, body) {
			return 0, NeedCampaign, true
		}
		if s.concerns(body) {
			return s.relayText(f, body, p)
		}
	case 'B':
		if len(s.fenceStatements) == 0 {
			return 0, NeedNothing, false
		}
		if len(body) < f.Size-wire.HeaderLen && !namesAreThere(body) {
			s.inHand.messageLen = f.Size
			return 0, NeedMore, true
		}
		_, rest, _ := wire.CString(body)
		name, _, _ := wire.CString(rest)
		if e := s.fenceStatements[string(wire.CutName(name))]; e != nil {
			if len(body) < f.Size-wire.HeaderLen {
				s.inHand.messageLen = f.Size
				return 0, NeedMore, true
			}
			return s.relayStatements([]sqltext.Statement{*e.statement}, f, p)
		}
	}
	return 0, NeedNothing, false
}

// followRelayed follows a message that is relayed. body is what has arrived of it.
func (s *Session) followRelayed(typ byte, body []byte) {
	r := &s.relay
	s.endsBySync = s.endsBySync || typ == 'Q' && r.inBatch
	r.clientSent(typ, body)
	switch typ {
	case 'P':
		if name, sql, ok := wire.CString(body); ok {
			sql, _, _ = wire.CString(sql)
			r.keepText(sql)
			r.named = append(r.named, wire.CutName(name)...)
			if len(s.fenceStatements) > 0 && !sqltext.ConcernsFencepost(sql) {
				delete(s.fenceStatements, string(wire.CutName(name)))
			}
			if len(name) > 0 && s.config.Mode == ModeFenced {
				s.nameRelayed(wire.CutName(name), sql)
			}
		}
	case 'B':
		if _, rest, ok := wire.CString(body); ok {
			if name, _, ok := wire.CString(rest); ok && len(name) > 0 && !bytes.Equal(wire.CutName(name), r.named) {
				r.text, r.stmt, r.named = r.text[:0], append(r.stmt[:0], wire.CutName(name)...), r.named[:0]
			}
		}
	}
}

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

// maxRelayedNames bounds how many names of prepared statements a relayed session keeps for the audit.
const maxRelayedNames = 1024

// nameRelayed keeps the text of a prepared statement for the audit.
func (s *Session) nameRelayed(name, sql []byte) {
	if len(s.names) >= maxRelayedNames {
		return
	}
	if s.names == nil {
		s.names = names{}
	}
	s.names[string(name)] = &prepared{text: string(sql[:min(len(sql), maxRelayedText)])}
}

// relayedText is the start of the text that the server runs, as far as it is known.
func (s *Session) relayedText() string {
	r := &s.relay
	if len(r.stmt) > 0 {
		if e := s.names[string(r.stmt)]; e != nil {
			return e.text
		}
		return ""
	}
	return string(r.text)
}
