package protocol

import (
	"unsafe"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing/sqltext"
)

// inlineText is the longest text, in bytes, that the machine parses by itself,
// which takes less than a millisecond. The session is locked meanwhile, and its
// event loop serves others. A longer text is analyzed by the shell, without the
// lock and off the loop: the machine asks for it by NeedAnalysis.
const inlineText = 2 << 10

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
	switch {
	case len(sql) <= inlineText:
		return m.config.Cache.AnalyzeBytes(sql, s)
	case m.inHand.analysis.text != nil && m.inHand.analysis.settings == s && m.inHand.analysis.sql == string(sql):
		return m.inHand.analysis.text
	}
	if t := m.config.Cache.Lookup(sql, s); t != nil {
		return t
	}
	return notAnalyzed
}

// missing reports that the analysis of sql is not there, and keeps what wanted
// returns.
func (m *Machine) missing(sql []byte, s sqltext.Settings) bool {
	if len(sql) > maxAnalyzed || m.analyzeAs(sql, s) != notAnalyzed {
		return false
	}
	m.inHand.analysis = analysis{sql: string(sql), settings: s}
	return true
}

// wantsAnalysis reports whether a message needs the analysis of a long text
// first.
func (m *Machine) wantsAnalysis(typ byte, body []byte) bool {
	switch long := len(body) > inlineText; {
	case m.config.Mode == ModePassing:
		return false
	case typ == 'Q':
		text, _, ok := wire.CString(body)
		return long && ok && m.queryWants(text)
	case typ == 'P':
		_, rest, ok := wire.CString(body)
		sql, types, ok2 := wire.CString(rest)
		return long && ok && ok2 && m.parseWants(sql, types)
	case m.leads():
		return false // what was prepared need not be a read
	}
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
	if info, quick := sqltext.Quick(text); quick && !m.batch.onlyChecked() && (m.leads() || info.Modifies) {
		return false
	}
	return m.missing(text, m.reading(text))
}

func (m *Machine) parseWants(sql, types []byte) bool {
	info, quick := sqltext.Quick(sql)
	proves := (m.config.ProvenReads || !m.config.Version.KeepsReadOnly()) && !namesUserType(types)
	if quick && (info.Modifies || m.leads() && !proves) {
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
