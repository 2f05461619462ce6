package protocol

import (
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/wire"
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
	// empty: the statement is known and holds nothing, so the server does not run it.
	empty bool
	// info is what the analysis of the text says.
	info sqltext.Statement
	// guess is all that is known of the text if known is false.
	guess sqltext.Guess
	// text is the client's SQL, or what is kept of it; see keeps. It serves the audit, and
	// the question whether the statement is a read, which only matters for workers that are
	// not leaders.
	text string
	// whole: text is all of the client's SQL.
	whole bool
	// class says whether the statement is a read. It is computed when it is first needed.
	class readClass
	// reading is how the server read the text when it was parsed, as far as is
	// known. What it means does not change with the settings after that.
	reading sqltext.Settings
	// provable is the analyzed text if the catalog proved it harmless when it
	// came, nil if it did not or was not asked.
	provable *sqltext.Statement
	// snapshot: to parse or bind it is a transaction's first query, after which
	// its isolation cannot be changed.
	snapshot bool
	// parsed is what became of the Parse.
	parsed parseState
	// batch is the batch in which the Parse was sent.
	batch uint64
	// pushed is replyQueue.pushed when the Parse had been sent.
	pushed uint64
	// settingChanges is settings.changes when the Parse had been sent.
	settingChanges uint64
	// name is what the server keeps it as, and EXECUTE of SQL runs it by; "" if it is unnamed.
	name string
}

// parseState says what is known of a statement's Parse.
type parseState uint8

const (
	// parseSent: it was sent, and the server has not said how it went. The statement can
	// be used in its own batch only: there, a failed Parse makes the server skip what uses
	// it.
	parseSent parseState = iota
	// parseConfirmed: the server has said ParseComplete, or the statement has no Parse.
	parseConfirmed
	// parseLost: the server has refused or skipped it.
	parseLost
)

// opaque reports whether a name may be the same for the server as one that differs
// after wire.CutName: the server converts what is not ASCII from the client's encoding
// before it cuts.
func opaque(name []byte) bool {
	for _, c := range wire.CutName(name) {
		if c >= 0x80 {
			return true
		}
	}
	return false
}

// declaresTypes reports whether a Parse, of which that is the end, gives types
// of parameters.
func declaresTypes(end []byte) bool {
	return len(end) != 2 || end[0] != 0 || end[1] != 0
}

type readClass uint8

const (
	unclassified readClass = iota
	isRead
	isWrite
)

// unknownStatement stands for every name the proxy knows nothing of.
var unknownStatement = &statement{parsed: parseConfirmed}

// unknownImporter is one of which it knows that it may import a snapshot.
var unknownImporter = &statement{parsed: parseConfirmed, guess: sqltext.Guess{ImportsSnapshot: true}}

// unknownChooser is one of which it knows that it may choose resources. It may import a snapshot as well.
var unknownChooser = &statement{parsed: parseConfirmed, guess: sqltext.Guess{ImportsSnapshot: true, Chooses: true}}

// unknown reports whether s stands for statements of which only the name is known.
func (s *statement) unknown() bool {
	return s == unknownStatement || s == unknownImporter || s == unknownChooser
}

// undoes reports whether s undoes the read-only mode of a transaction that has
// begun, which a COMMIT could then write in (a cursor WITH HOLD runs there).
func (m *Machine) undoes(s *statement) bool {
	return s.info.UnsetsReadOnly && !m.config.Version.KeepsReadOnly()
}

// newStatement describes the single statement of a Parse.
func (m *Machine) newStatement(sql []byte) *statement {
	s := &statement{batch: m.batch.id, reading: m.reading(sql), settingChanges: m.settings.changes}
	s.known = s.info.Quick(sql)
	s.text = m.keeps(sql)
	s.whole = len(s.text) == len(sql)
	switch {
	case s.known:
		if len(s.text) < len(sql) {
			s.class = isWrite // as far as anybody will be able to tell
		}
	case len(sql) > maxAnalyzed:
	default:
		t := m.analyze(sql)
		switch {
		case t.Known && len(t.Statements) == 0:
			s.known, s.empty, s.info = true, true, sqltext.Statement{Kind: sqltext.Session, Read: true}
		case len(t.Statements) > 0:
			// More than one is an error of the server's: nothing runs.
			s.known, s.info = true, t.Statements[0]
			s.class = isWrite
			if t.Statements[0].Read {
				s.class = isRead
			}
		}
	}
	if !s.known {
		s.guess = sqltext.GuessOf(sql)
	}
	s.snapshot = !s.known || s.info.TakesSnapshot
	return s
}

// maxTexts bounds, in bytes, the texts of a session's statements that the proxy
// keeps. A statement beyond it is still followed, but not shown in an audit line,
// and counts as a write where its text alone would tell.
const maxTexts = 768 << 10

// alwaysKept is the length, in bytes, of a text for which there is always room: it takes
// no more than what is known of a statement besides.
const alwaysKept = 64

// keeps returns as much of a statement's text as there is room for.
func (m *Machine) keeps(sql []byte) string {
	if len(sql) > maxAnalyzed {
		sql = sql[:maxAuditText] // nothing will be parsed of it
	}
	if m.names.textBytes()+m.pendingReplies.texts+len(sql) > maxTexts && len(sql) > alwaysKept {
		return ""
	}
	return string(sql)
}

// mayChoose reports whether s may be a SET or RESET of fencepost.resource or of fencepost.token, which
// decide what is checked.
func (s *statement) mayChoose() bool {
	return s.info.Kind == sqltext.SetFence && (s.info.Name == "resource" || s.info.Name == "token") || s.guess.Chooses
}

// hides reports whether s may do what is not seen in its tree: DO, CALL, and what
// cannot be parsed.
func (s *statement) hides() bool { return !s.known || s.info.Hides }

// read reports whether s is nothing but a read, as far as the grammar tells.
func (m *Machine) read(s *statement) bool {
	if s.known && m.undoes(s) {
		return false
	}
	if s.class == unclassified {
		m.classify(s)
	}
	return s.class == isRead
}

// classify asks the grammar whether s is a read, if only Quick has seen it.
// Where its text has not been analyzed, nothing is said, and it counts as a
// write.
func (m *Machine) classify(s *statement) {
	switch {
	case !s.known, s.info.Command != sqltext.NoCommand:
		s.class = isWrite
	case s.info.Read:
		s.class = isRead
	default:
		t := m.analyzeAs(bytesOf(s.text), s.asRead(m))
		switch {
		case t == notAnalyzed:
		case t.Known && len(t.Statements) == 1 && t.Statements[0].Read:
			s.class = isRead
		case t.Known && len(t.Statements) == 1:
			s.class, s.info.Command = isWrite, t.Statements[0].Command
		default:
			s.class = isWrite
		}
	}
}

// asRead is the settings under which the server reads the text of s, or has read
// it when it was parsed.
func (s *statement) asRead(m *Machine) sqltext.Settings {
	if s == &m.injectors.query.one {
		return m.reading(bytesOf(s.text))
	}
	return s.reading
}

// keepsText reports whether the server keeps or shows the text of s, so that it must be
// the client's alone.
func (s *statement) keepsText() bool {
	return s.info.Kind == sqltext.ByMessage || s.info.MentionsQueryText
}

// requiresBlock reports whether Postgres refuses s outside a transaction block.
func (s *statement) requiresBlock() bool { return s.known && s.info.RequiresTransactionBlock }
