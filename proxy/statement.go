package proxy

import (
	"github.com/fencepost/fencepost/fencing"
)

// maxAuditText bounds how much of a client's SQL is kept for an audit line.
const maxAuditText = 4 << 10

// statement is what the proxy knows of one prepared statement, or of the one
// statement of a Query.
type statement struct {
	// known is false for a statement whose text the proxy did not see, could
	// not read, or cannot be sure is the one the server has under this name.
	// It may do anything, so it goes by the registry.
	known bool
	info  fencing.Statement
	// text is the client's SQL, cut at maxAnalyzed: for the question whether it
	// is a read, which only those who do not lead ask, and for the audit.
	text string
	// class is the lazily computed answer.
	class readClass
	// batch is the batch in which the Parse was sent, confirmed that the server
	// said ParseComplete. Unconfirmed, it is good in its own batch only: there,
	// a failed Parse makes the server skip what uses it.
	batch     uint64
	confirmed bool
	// lost: the server skipped or refused the Parse.
	lost bool
}

type readClass uint8

const (
	unclassified readClass = iota
	isRead
	isWrite
)

// unknownStatement stands for every name the proxy knows nothing of.
var unknownStatement = &statement{confirmed: true}

// maxAnalyzed is the length of text beyond which nothing is parsed: it is then
// a write.
const maxAnalyzed = 1 << 20

// unguarded reports whether a statement of this kind needs nothing in front of
// it: it can neither read nor write anything, or it only ends a transaction.
func unguarded(s *fencing.Statement) bool {
	if s.EndsSavepoint { // a check in front would make it fail in a failed transaction
		return true
	}
	switch s.Kind {
	case fencing.Session, fencing.Begin, fencing.Commit, fencing.Rollback,
		fencing.Discard, fencing.Deallocate, fencing.ShowFence, fencing.SetFence:
		return true
	default:
		return false
	}
}

// newStatement describes the single statement of a Parse.
func (m *machine) newStatement(sql []byte) *statement {
	s := &statement{batch: m.batch}
	info, quick := fencing.Quick(sql)
	if len(sql) <= maxAnalyzed {
		s.text = string(sql)
	}
	switch {
	case quick:
		s.known, s.info = true, info
	case len(sql) > maxAnalyzed:
	default:
		t := m.analyze(sql)
		switch {
		case t.Known && len(t.Statements) == 0:
			s.known, s.info = true, fencing.Statement{Kind: fencing.Session, Read: true}
		case len(t.Statements) > 0:
			// More than one is an error of the server's: nothing runs.
			s.known, s.info = true, t.Statements[0]
			if t.Statements[0].Read {
				s.class = isRead
			} else {
				s.class = isWrite
			}
		}
	}
	return s
}

// read reports whether s is nothing but a read, as far as the grammar tells.
func (m *machine) read(s *statement) bool {
	if s.class == unclassified {
		s.class = isWrite
		if s.known && s.info.Read {
			s.class = isRead
		} else if t := m.analyze([]byte(s.text)); s.known && t.Known && len(t.Statements) == 1 && t.Statements[0].Read {
			s.class = isRead
		}
	}
	return s.class == isRead
}

// analyze parses sql under the session's settings. Text that means the same
// under every setting needs none of them; other text is taken for the worst
// while a setting may be changing.
func (m *machine) analyze(sql []byte) *fencing.Text {
	set := fencing.DefaultSettings
	if sensitive(sql) {
		set = m.settings
		if !m.quiet() {
			set.SafeEncoding = false
		}
	}
	return m.cache.AnalyzeBytes(sql, set)
}

// sensitive reports whether the meaning of sql depends on
// standard_conforming_strings or client_encoding: only text with a backslash or
// with bytes outside ASCII does.
func sensitive(sql []byte) bool {
	for _, c := range sql {
		if c == '\\' || c >= 0x80 {
			return true
		}
	}
	return false
}
