package proxy

import "fmt"

// copyStarted: the server has begun to read COPY data. Whatever was sent
// behind, up to the end of the COPY, it reads in that state: Sync is ignored,
// and a Query makes the COPY fail and is never answered. Other messages there
// end the session: what becomes of them depends on more than can be known here.
func (m *machine) copyStarted() {
	m.copying = true
	for i := 1; i < m.owed.len(); i++ {
		switch e := m.owed.at(i); e.kind {
		case copyEnd:
			return
		case syncing:
			e.maybe = true
		case query:
			m.owed.remove(i)
			return
		default:
			m.broken = fmt.Errorf("%w: the client goes on inside a COPY", errSurprise)
			return
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

// copyMessage follows the client while the server reads COPY data, as far as is
// known. There, Sync and Flush are ignored, and anything but COPY messages makes
// the COPY fail. The COPY may have failed already, though, and then the server
// takes a message for what it is. So a Sync ends what is known of the
// transaction, and all else goes without its body: inside the COPY the type
// alone makes the same error, outside it the server refuses it as malformed.
func (m *machine) copyMessage(typ byte, n, avail int, p *plan) {
	switch typ {
	case 'd', 'H', 'X':
	case 'S':
		m.owed.push(syncing, false).maybe = true
		m.boundary()
	case 'c', 'f':
		m.owed.push(copyEnd, false)
		m.copyIn = false
	default:
		m.copyIn, m.dropUp = false, true
		at := len(m.scratch)
		m.scratch = append(m.scratch, typ, 0, 0, 0, 4)
		p.insert(m.scratch[at:])
		return
	}
	p.forward(n, n+avail)
}
