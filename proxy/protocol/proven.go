package protocol

import (
	"encoding/binary"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// provableText returns the analysis of sql, which is the text of s, if it is proven
// harmless now, else nil. A text that plainly writes is spared the grammar. A prepared statement must be proven when it is parsed and when it is used:
// what its names meant then is in the server's plan.
func (m *Machine) provableText(s *statement, sql []byte) *sqltext.Statement {
	if m.config.Catalog == nil || s.info.Modifies || m.unsettled(sql) {
		return nil
	}
	t := m.analyze(sql)
	if ok, _ := sqltext.ProvenText(m.config.Catalog(), t); !ok {
		return nil
	}
	return &t.Statements[0]
}

// proofPays reports whether the proof of a Query's text is worth its parsing:
// to those who do not lead, or do not know it, it decides; a leader it saves a
// check, which costs less than parsing a text that does not come again.
func (m *Machine) proofPays(text []byte) bool {
	if m.held() == 0 || m.epochs.inHand.announced == 0 {
		return !m.config.Version.KeepsReadOnly()
	}
	return m.config.ProvenReads && len(text) <= inlineText && m.config.Cache.Recurs(text)
}

// hintUnproven says what else stands against a read of one who does not lead:
// that it is not proven. hint is what the server gave.
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
			return append([]byte("Before PostgreSQL 16, who does not lead reads only what is proven harmless: "+fencing.ASCII(why)+". "), hint...)
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
