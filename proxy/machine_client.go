package proxy

import (
	"errors"
	"strings"
	"unsafe"
)

// errCopyFlood says that a client sent more Syncs inside COPY data, where they
// are ignored, than any client has reason to.
var errCopyFlood = errors.New("too many messages inside COPY data")

// frontendTypes are the types of messages that a server reads in a session.
const frontendTypes = "QPBDECSHXFdcf"

// client takes bytes of the client, as many as it can, and says in p what to
// send to the server. It stops at n when it needs something; the shell sends
// the plan, meets the need, and goes on at n.
func (m *machine) client(in []byte, p *plan) (n int, need need, err error) {
	defer caught(p, &err)
	m.scratch = m.scratch[:0]
	if m.mute {
		return len(in), needNothing, nil
	}
	if m.repeat.discard && len(in) > 0 {
		return 0, needRoom, nil
	}
	if m.repeat.due {
		if need := m.sendAgain(p); need != needNothing {
			return 0, need, nil
		}
	}
	for n < len(in) {
		if m.skipUp > 0 {
			k := min(m.skipUp, len(in)-n)
			if !m.dropUp {
				p.forward(n, n+k)
			}
			m.skipUp -= k
			n += k
			continue
		}
		m.dropUp = false
		if m.owed.len() >= maxOwed {
			if m.copyIn { // the server answers nothing before the data ends
				return n, needNothing, errCopyFlood
			}
			return n, needRoom, nil
		}
		f, ok, err := clientFrame(in[n:])
		if err != nil {
			// The server ends the connection over that header, in its own words.
			p.forward(n, n+headerLen)
			m.mute = true
			return len(in), needNothing, nil
		}
		if !ok && strings.IndexByte(frontendTypes, in[n]) < 0 {
			// The server ends the connection over the type alone.
			p.forward(n, len(in))
			m.mute = true
			return len(in), needNothing, nil
		}
		if !ok {
			m.wants = headerLen
			return n, needMore, nil
		}
		avail := min(f.size, len(in)-n)
		if avail < f.size && !m.startable(f.typ, in[n+headerLen:]) {
			m.wants = f.size
			return n, needMore, nil
		}
		need := m.message(f, n, avail, p)
		if need != needNothing {
			return n, need, nil
		}
		m.settled()
		m.repeat.keep(f, in[n:n+avail])
		m.skipUp = f.size - avail
		n += avail
		if f.typ == 'X' {
			return n, needTerminal, nil
		}
	}
	return n, needNothing, nil
}

// startable reports whether a message can be begun with the part of its body
// that is there.
func (m *machine) startable(typ byte, body []byte) bool {
	switch typ {
	case 'd', 'F':
		return true
	case 'B':
		_, _, ok := bindNames(body)
		return ok
	default:
		return false
	}
}

// bindNames reads the portal and the statement that a Bind names.
func bindNames(body []byte) (portal, stmt []byte, ok bool) {
	portal, rest, ok := cstring(body)
	if !ok {
		return nil, nil, false
	}
	stmt, _, ok = cstring(rest)
	return portal, stmt, ok
}

// message handles one client message of which in[n:n+avail] is there.
func (m *machine) message(f frame, n, avail int, p *plan) need {
	body := p.in[n+headerLen : n+avail]
	if m.copyIn && m.copyMessage(f.typ, n, avail, p) {
		return needNothing
	}
	if m.skipping && m.quiet() && f.typ != 'S' {
		// An error ended the batch and its Sync was not sent yet: the server
		// reads this message, and neither runs nor answers it.
		p.forward(n, n+avail)
		return needNothing
	}
	if m.leftovers && namesUnnamed(f.typ, body) {
		m.closeLeftovers(p)
	}
	switch f.typ {
	case 'Q':
		return m.queryMessage(body, n, avail, p)
	case 'P':
		return m.parseMessage(body, n, avail, p)
	case 'B':
		return m.bindMessage(body, n, avail, p)
	case 'D':
		return m.describeMessage(body, n, avail, p)
	case 'E':
		return m.executeMessage(body, n, avail, p)
	case 'F':
		return m.functionMessage(n, avail, p)
	case 'C':
		m.closeMessage(body)
	case 'd':
		m.data = true
	case 'S':
		m.owed.push(syncing, false).early = !m.data
		m.boundary()
		m.loose, m.unsynced = false, false
	case 'H':
		if len(body) > 0 {
			return m.unreadable(closing, n, avail, p)
		}
	case 'c', 'f':
		// For a COPY whose start the server has not answered yet; else ignored.
		if !m.quiet() {
			m.owed.push(copyEnd, false)
		}
	}
	p.forward(n, n+avail)
	return needNothing
}

// functionMessage is the fast path call. Nothing of ours may stand in front of
// it (postgres.md A1), so outside a checked block it goes by the registry.
func (m *machine) functionMessage(n, avail int, p *plan) need {
	m.carry()
	if need := m.syncBefore(p); need != needNothing {
		return need
	}
	if m.mode != passing && !m.failed && m.cover != fullCovered {
		need, replaced := m.guardFunction(p)
		if need != needNothing {
			return need
		}
		if replaced {
			m.dropUp = true
			return needNothing
		}
	}
	m.owed.push(function, false)
	m.boundary()
	p.forward(n, n+avail)
	return needNothing
}

// unreadable forwards a message that the server will refuse as malformed.
func (m *machine) unreadable(k kind, n, avail int, p *plan) need {
	m.owed.push(k, false)
	m.open = true
	p.forward(n, n+avail)
	return needNothing
}

// view returns b as a string that shares its memory: for a question that is
// answered before b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
