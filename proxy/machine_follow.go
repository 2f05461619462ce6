package proxy

import "github.com/fencepost/fencepost/fencing"

// executed follows what a statement that was sent does to the session.
func (m *machine) executed(s *statement) {
	switch {
	case !s.known, s.info.EndsTx, s.info.EndsSavepoint, s.info.Kind == fencing.Alone, s.info.Kind == fencing.Discard:
		m.cover, m.failed, m.inTx = uncovered, false, false
	case s.info.UnsetsReadOnly && m.cover == readCovered:
		m.cover = uncovered
	}
	if s.known && (s.info.Kind == fencing.Commit || s.info.Kind == fencing.Rollback) && !s.info.Chain {
		m.ran, m.ours = false, false // what was executed ended with it
	}
	m.bare = m.bare && s.info.Kind != fencing.Begin
	m.forget(s)
}

// forget follows DISCARD and DEALLOCATE: the server's prepared statements may
// be gone, ours among them, and their names given to others.
func (m *machine) forget(s *statement) {
	switch {
	case !s.known && !m.hidden:
		return // prepared by SQL, so it frees no names
	case s.known && s.info.Kind == fencing.Deallocate && s.info.Name != "":
		m.freed(s.info.Name)
	case s.known && s.info.Kind == fencing.Alone && s.info.EndsTx:
		m.mayForget(s.text)
	case !s.known, frees(&s.info), s.info.Kind == fencing.ByMessage && m.hidden:
		m.forgetAll()
	}
}

// mayForget follows a DO or a CALL, which may hide a DEALLOCATE ALL: our
// statements are prepared again, which costs less than the rest of it. The
// client's are forgotten only if it says so.
func (m *machine) mayForget(text string) {
	if mentionsDeallocate(text) {
		m.forgetAll()
	} else {
		m.checks.rename()
	}
}

func mentionsDeallocate(sql string) bool {
	const word = "deallocate"
	for i := 0; i+len(word) <= len(sql); i++ {
		if foldPrefix(sql[i:], word) {
			return true
		}
	}
	return false
}

func (m *machine) forgetAll() {
	clear(m.stmts)
	m.checks.rename()
}

// freed forgets a prepared statement that is gone from the server.
func (m *machine) freed(name string) {
	delete(m.stmts, name)
	if name == m.checks.checkName || name == m.checks.frontName || name == m.checks.readName {
		m.checks.rename()
		m.checks.replaced = m.checks.replaced[:0] // the names are the client's now
	}
}

// frees reports whether s frees names of prepared statements.
func frees(s *fencing.Statement) bool {
	return s.Kind == fencing.Deallocate || s.Kind == fencing.Discard && (s.Name == "" || s.Name == "all")
}
