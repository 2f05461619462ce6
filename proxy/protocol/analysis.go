package protocol

import (
	"encoding/binary"
	"unsafe"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/wire"
)

// The session is locked while the machine parses a text, and its event loop serves
// no other: 4 µs per byte, if a text means nothing but work for the parser. Longer
// texts are analyzed by the shell, without the lock and off the loop: the machine
// asks for that by NeedAnalysis.
const (
	// inlineText is the longest text that the machine parses by itself.
	inlineText = 2 << 10
	// atOnce is how many bytes of texts it parses in one call of FromClient before it
	// asks for the analysis of the others.
	atOnce = inlineText / 4
)

// maxAnalyzed is the length of text beyond which nothing is parsed: it is then
// a write.
const maxAnalyzed = 1 << 20

// analysis is that of the one text which the message in hand needs.
type analysis struct {
	sql      string
	settings sqltext.Settings
	text     *sqltext.Text // nil while it is wanted
}

// notAnalyzed stands for a text that nobody was asked to analyze: it counts as
// the worst.
var notAnalyzed = &sqltext.Text{}

// analyze returns the analysis of sql as the server reads it now.
func (m *Machine) analyze(sql []byte) *sqltext.Text { return m.analyzeAs(sql, m.reading(sql)) }

func (m *Machine) analyzeAs(sql []byte, s sqltext.Settings) *sqltext.Text {
	t := m.analyzed(sql, s)
	switch {
	case t != nil:
		return t
	case len(sql) <= inlineText:
		m.up.parsed += len(sql)
		return m.config.Cache.AnalyzeBytes(sql, s)
	default:
		return notAnalyzed
	}
}

// analyzed returns the analysis of sql if it is known, else nil.
func (m *Machine) analyzed(sql []byte, s sqltext.Settings) *sqltext.Text {
	if a := &m.inHand.analysis; a.text != nil && a.settings == s && a.sql == string(sql) {
		return a.text
	}
	return m.config.Cache.Lookup(sql, s)
}

// missing reports that the analysis of sql is not there, and keeps what wanted
// returns.
func (m *Machine) missing(sql []byte, s sqltext.Settings) bool {
	if len(sql) > maxAnalyzed || len(sql) <= atOnce-m.up.parsed || m.analyzed(sql, s) != nil {
		return false
	}
	m.inHand.analysis = analysis{sql: string(sql), settings: s}
	return true
}

// wantsAnalysis reports whether a message needs the analysis of a long text
// first.
func (m *Machine) wantsAnalysis(typ byte, body []byte) bool {
	switch {
	case m.config.Mode == ModePassing && m.config.Shadow == nil:
		return false
	case typ == 'Q' || typ == 'P':
		return len(body) > atOnce-m.up.parsed && m.longTextWants(typ, body)
	default:
		return !m.leads() && m.preparedWants(typ, body) // for a leader, what was prepared need not be a read
	}
}

// longTextWants is wantsAnalysis for a Query or a Parse.
func (m *Machine) longTextWants(typ byte, body []byte) bool {
	text, rest, ok := wire.CString(body)
	if typ == 'Q' {
		return ok && m.queryWants(text)
	}
	sql, types, ok2 := wire.CString(rest)
	return ok && ok2 && m.parseWants(sql, types)
}

// preparedWants is wantsAnalysis for what names a statement that was prepared.
func (m *Machine) preparedWants(typ byte, body []byte) bool {
	switch typ {
	case 'B':
		_, name, ok := bindNames(body)
		return ok && m.statementWants(m.named(name))
	case 'D':
		if len(body) < 2 || body[0] != 'S' {
			return false
		}
		name, _, _ := wire.CString(body[1:])
		return m.statementWants(m.named(name))
	case 'E':
		portal, _, _ := wire.CString(body)
		return m.statementWants(m.names.portals.get(portal).stmt)
	default:
		return false
	}
}

// queryWants is wantsAnalysis for a Query. What Quick knows is parsed only to
// tell whether it is a read, which decides for those who may not write.
func (m *Machine) queryWants(text []byte) bool {
	if info, quick := sqltext.Quick(text); quick && !m.batch.onlyChecked() && (m.leads() || info.Command != sqltext.NoCommand) {
		return false
	}
	return m.missing(text, m.reading(text))
}

func (m *Machine) parseWants(sql, types []byte) bool {
	info, quick := sqltext.Quick(sql)
	proves := (m.config.ProvenReads || !m.config.Version.KeepsReadOnly()) && !namesUserType(types)
	if quick && (info.Command != sqltext.NoCommand || m.leads() && !proves) {
		return false
	}
	return m.missing(sql, m.reading(sql))
}

// statementWants is wantsAnalysis for what runs a statement that was prepared.
func (m *Machine) statementWants(s *statement) bool {
	if s == nil || !s.known || s.info.Read || s.class != unclassified {
		return false
	}
	sql := bytesOf(s.text)
	return m.missing(sql, s.reading)
}

// bytesOf returns s as bytes that share its memory, and must not be written to.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// provableText returns the analysis of the shape of sql, which is the text of s, if that is proven
// harmless now, else nil. A text that plainly writes is not parsed. A prepared statement must be proven
// when it is parsed and when it is used: what its names meant when it was parsed is in the server's plan.
// The text of a Query is parsed if that pays: for those who do not lead, or do not know it, the proof
// decides; a leader it saves a check, which costs less than parsing a shape that does not come again.
func (m *Machine) provableText(s *statement, sql []byte, ofQuery bool) *sqltext.Statement {
	if m.config.Catalog == nil || s.info.Command != sqltext.NoCommand || m.unsettled(sql) {
		return nil
	}
	savesCheck := ofQuery && m.held() != 0 && m.told() != 0
	if savesCheck && (!m.config.ProvenReads || len(sql) > inlineText) || ofQuery && !savesCheck && m.config.Version.KeepsReadOnly() {
		return nil
	}
	var room [sqltext.MaxShape]byte
	shape := sqltext.Shape(room[:0], sql)
	if savesCheck && !m.config.Cache.Recurs(shape) {
		return nil
	}
	t := m.analyzed(shape, m.reading(shape))
	if t == nil && len(shape) > atOnce-m.up.parsed {
		if savesCheck {
			return nil
		}
		t = m.analyzed(sql, m.reading(sql)) // which was asked for, and proves the same
	}
	if t == nil {
		t = m.analyze(shape)
	}
	if ok, _ := sqltext.ProvenText(m.config.Catalog(), t); !ok {
		return nil
	}
	return &t.Statements[0]
}

// hintUnproven returns the hint for the refused read of a worker that is not the leader. Before
// PostgreSQL 16 it begins with why the read is not proven. hint is what the server gave.
func (m *Machine) hintUnproven(e *reply, hint []byte) []byte {
	text := e.sql.audit
	if e.stmt != nil {
		text = []byte(e.stmt.text)
	}
	if m.config.Version.KeepsReadOnly() || m.config.Catalog == nil || len(text) == 0 || len(text) >= maxAuditText {
		return hint
	}
	c, t := m.config.Catalog(), m.analyzeAs(text, m.settings.current)
	for i := range t.Statements {
		if !t.Statements[i].Read {
			return hint
		}
		if proven, why := sqltext.Proven(c, &t.Statements[i]); !proven && t.Statements[i].Kind == sqltext.Ordinary {
			return []byte(fencing.UnprovenHint(why, string(hint)))
		}
	}
	return hint
}

// namesUserType reports whether the parameter types of a Parse, after its
// text, name one that is not built in: a domain's checks run when a value is
// bound.
func namesUserType(types []byte) bool {
	const firstUser = 16384
	if len(types) < 2 {
		return false
	}
	for types = types[2:]; len(types) >= 4; types = types[4:] {
		if binary.BigEndian.Uint32(types) >= firstUser {
			return true
		}
	}
	return false
}

// settings are those of the server that say what a text means. They begin with what the
// server reported at the startup, and change with each report of one of them, which comes
// at the latest with the ReadyForQuery after the change.
type settings struct {
	current sqltext.Settings
	changes uint64 // reports of any of them, also of the value that it had
	// readOnly: transactions are read-only by default. It says nothing of a text.
	readOnly bool
	utf8     bool // client_encoding is UTF8
}

// newSettings begins with the bodies of the server's ParameterStatus messages.
func newSettings(parameters [][]byte) settings {
	s := settings{current: sqltext.Settings{StandardConformingStrings: true, SafeEncoding: true}}
	for _, body := range parameters {
		s.learn(body)
	}
	return s
}

// learn follows a ParameterStatus message with this body.
func (s *settings) learn(body []byte) {
	name, value, ok := wire.DecodeParameterStatus(body)
	if !ok {
		return
	}
	switch name {
	case "standard_conforming_strings":
		s.changes++
		s.current.StandardConformingStrings = value == "on"
	case "client_encoding":
		s.changes++
		s.current.SafeEncoding, s.utf8 = sqltext.SafeEncoding(value), value == "UTF8"
	case "default_transaction_read_only":
		s.readOnly = value == "on"
	}
}

// reading is the settings under which the server reads sql if it comes now.
// Text that means the same under every setting needs none of them; other text
// is taken for the worst while a setting may be changing.
func (m *Machine) reading(sql []byte) sqltext.Settings {
	switch {
	case !sensitive(sql):
		return sqltext.DefaultSettings
	case m.unsettled(sql):
		return sqltext.Settings{}
	default:
		return m.settings.current
	}
}

// unsettled reports whether sql means what the server's settings say, and the
// server may have changed them without having said so yet: it does with
// ReadyForQuery.
func (m *Machine) unsettled(sql []byte) bool {
	return (m.batch.open() || !m.pendingReplies.empty()) && sensitive(sql)
}

// sensitive reports whether the meaning of sql depends on any setting.
func sensitive(sql []byte) bool { return sqltext.DependenceOf(sql) != sqltext.OnNothing }
