package proxy

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

// copyMessage follows the client while the server reads COPY data: there, Sync
// and Flush are ignored, and anything but COPY messages makes the COPY fail.
func (m *machine) copyMessage(typ byte) {
	switch typ {
	case 'd', 'H':
	case 'S':
		m.owed.push(syncing, false).maybe = true
	case 'c', 'f':
		m.owed.push(copyEnd, false)
		m.copyIn = false
	default:
		m.copyIn = false
	}
}
