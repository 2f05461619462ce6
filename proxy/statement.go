package proxy

import (
	"bytes"

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
	empty bool // and holds nothing: the server does not run it
	info  fencing.Statement
	// text is the client's SQL, cut at maxAnalyzed: for the question whether it
	// is a read, which only those who do not lead ask, and for the audit.
	text string
	// class is the lazily computed answer.
	class readClass
	// reading is how the server read the text when it was parsed, as far as is
	// known. What it means does not change with the settings after that.
	reading fencing.Settings
	// proof is the analysed text if the catalogue proved it harmless when it
	// came, nil if it did not or was not asked.
	proof *fencing.Statement
	// batch is the batch in which the Parse was sent, confirmed that the server
	// said ParseComplete. Unconfirmed, it is good in its own batch only: there,
	// a failed Parse makes the server skip what uses it.
	batch     uint64
	confirmed bool
	// lost: the server skipped or refused the Parse.
	lost bool
	// twoPhase: not known, and its text seems to hold a PREPARE TRANSACTION,
	// whose transaction would outlive the note in the registry.
	twoPhase bool
}

// binding is what a Bind has put into a portal.
type binding struct {
	stmt  *statement
	batch uint64 // in which the Bind was sent
}

// opaque reports whether names that differ for the proxy may be the same for
// the server, which cuts them at 63 bytes and converts them from the client's
// encoding.
func opaque(name []byte) bool {
	const serverName = 63
	for _, c := range name {
		if c >= 0x80 {
			return true
		}
	}
	return len(name) >= serverName
}

// declaresTypes reports whether a Parse, of which that is the end, gives types
// of parameters.
func declaresTypes(end []byte) bool {
	return len(end) != 2 || end[0] != 0 || end[1] != 0
}

// preparesTransaction finds PREPARE TRANSACTION in a text that cannot be read;
// a comment behind PREPARE is taken for it. It is given the longest texts, so
// that it must be quick: the session is locked meanwhile.
var preparesTransaction twoPhaseFinder

type twoPhaseFinder struct{}

// Match reports whether sql may hold it. The vertical tab is space to PostgreSQL
// from 16 on.
func (twoPhaseFinder) Match(sql []byte) bool {
	const word = "prepare"
	for i, c := range sql {
		if c|0x20 != 'p' || !foldPrefix(view(sql[i:]), word) {
			continue
		}
		behind := sql[i+len(word):]
		next := bytes.TrimLeft(behind, " \t\n\v\f\r")
		switch {
		case bytes.HasPrefix(next, []byte("/*")), bytes.HasPrefix(next, []byte("--")):
			return true
		case len(next) < len(behind) && foldPrefix(view(next), "transaction"):
			return true
		}
	}
	return false
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

// undoes reports whether s undoes the read-only mode of a transaction that has
// begun, which a COMMIT could then write in (a cursor WITH HOLD runs there).
func (m *machine) undoes(s *statement) bool {
	const refusedSince = 16
	return s.info.UnsetsReadOnly && m.version < refusedSince
}

// newStatement describes the single statement of a Parse.
func (m *machine) newStatement(sql []byte) *statement {
	s := &statement{batch: m.batch, reading: m.reading(sql)}
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
			s.known, s.empty, s.info = true, true, fencing.Statement{Kind: fencing.Session, Read: true}
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
	s.twoPhase = !s.known && preparesTransaction.Match(sql)
	return s
}

// read reports whether s is nothing but a read, as far as the grammar tells.
func (m *machine) read(s *statement) bool {
	if s.known && m.undoes(s) {
		return false
	}
	if s.class == unclassified {
		s.class = isWrite
		if s.known && s.info.Read {
			s.class = isRead
		} else if t := m.reread(s); s.known && t.Known && len(t.Statements) == 1 && t.Statements[0].Read {
			s.class = isRead
		}
	}
	return s.class == isRead
}

// analyze parses sql under the session's settings. Text that means the same
// under every setting needs none of them; other text is taken for the worst
// while a setting may be changing.
func (m *machine) analyze(sql []byte) *fencing.Text {
	return m.cache.AnalyzeBytes(sql, m.reading(sql))
}

// reading is the settings under which the server reads sql if it comes now.
func (m *machine) reading(sql []byte) fencing.Settings {
	switch {
	case !sensitive(sql):
		return fencing.DefaultSettings
	case m.unsettled(sql):
		return fencing.Settings{}
	default:
		return m.settings
	}
}

// reread analyzes the text of s as the server read it.
func (m *machine) reread(s *statement) *fencing.Text {
	if s == &m.one {
		return m.analyze([]byte(s.text))
	}
	return m.cache.AnalyzeBytes([]byte(s.text), s.reading)
}

// unsettled reports whether sql means what the server's settings say, and the
// server may have changed them without having said so yet: it does with
// ReadyForQuery.
func (m *machine) unsettled(sql []byte) bool {
	return (m.open || !m.quiet()) && sensitive(sql)
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
