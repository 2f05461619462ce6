package protocol

import (
	"strings"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxNames is how many prepared statements are known of one session. Nothing is known of further
// ones, which only costs time: their Executes are waited for. Before 16 they are refused.
const maxNames = 10000

// maxAuditText is the length of a text in an audit line.
const maxAuditText = 4 << 10

// names are the prepared statements that the client has made by Parse messages, and before the session
// began. A name that is missing may be that of any statement.
type names map[string]*prepared

// prepared is what is known of a prepared statement.
type prepared struct {
	statement *sqltext.Statement
	text      string // the start of it, for the audit; empty if it is a read
	proven    bool   // its text is such as the catalog can prove: no parameter is of a user's type
}

// plainRead is what is known of all reads of which nothing else matters.
var plainRead = &prepared{statement: &sqltext.Statement{Read: true}, proven: true}

// op is a Parse or a Close that was sent, and changes names when it is answered, or a Close that was sent in the
// place of an Execute.
type op struct {
	reply    byte // '1' or '3'
	close    bool // of a prepared statement
	name     string
	prepared *prepared // of a Parse, or of what is discarded
}

// followParseOrClose follows the reply to the next Parse or Close. drop says that something else was sent in its place.
func (s *Session) followParseOrClose(reply byte, p *gate.Segments) (drop bool) {
	x := &s.exchange
	for len(x.ops) > 0 {
		o := x.ops[0]
		x.ops = x.ops[1:]
		if o.reply != reply {
			continue
		}
		if reply == '3' && o.prepared != nil {
			s.answerDiscarded(o.prepared.statement, o.prepared.text, p)
			return true
		}
		s.apply(o)
		return false
	}
	return false
}

func (s *Session) apply(o op) {
	switch {
	case o.reply == '1' && (len(s.names) < maxNames || s.names[o.name] != nil):
		if s.names == nil {
			s.names = names{}
		}
		s.names[o.name] = o.prepared
	case o.reply == '1', o.close:
		delete(s.names, o.name)
	}
}

// mayBeAny reports whether a name that is missing may be that of a statement which must not run. Parse can
// prepare one, but the Parses of the session were checked, and what a leader has prepared before is in
// names, but for the unnamed statement. What SQL PREPARE prepares may run, or is refused by the server.
func (s *Session) mayBeAny(name []byte) bool {
	full := len(s.names) >= maxNames
	before16 := !s.config.Version.KeepsReadOnly()
	return s.needsNames || s.unknownUnnamed && (full || before16 || len(name) == 0) || full && before16
}

// namesSQL lists what the client has prepared as a leader, except for the unnamed statement. It reads the function
// under pg_prepared_statements, because any role can keep others from reading a system view.
const namesSQL = "SELECT name, statement, from_sql FROM pg_catalog.pg_prepared_statement()"

// trackFenceStatement remembers a prepared statement that shows or sets parameters of Fencepost's.
func (s *Session) trackFenceStatement(name string, e *prepared) {
	delete(s.fenceStatements, name)
	if e == nil || len(s.fenceStatements) >= maxNames {
		return
	}
	if st := e.statement; st.Kind != sqltext.ShowFence && st.Kind != sqltext.SetFence && !st.Does(sqltext.ResetsAll) {
		return
	}
	if s.fenceStatements == nil {
		s.fenceStatements = make(map[string]*prepared)
	}
	s.fenceStatements[name] = e
}

// takeStatements takes the prepared statements that another session has carried.
func (s *Session) takeStatements(all []CarriedStatement) {
	for _, one := range all {
		if t := s.config.Cache.AnalyzeBytes(one.Text, s.settings.reading); t.Known && len(t.Statements) == 1 {
			s.trackFenceStatement(string(one.Name), s.preparedOf(&t.Statements[0], one.Text, false))
		}
	}
}

// learnName takes a row of namesSQL.
func (s *Session) learnName(row []byte) {
	v, ok := wire.DecodeColumns(row)
	if !ok || len(v) != 3 || v[0] == ownName {
		return
	}
	st := &sqltext.Statement{} // it is refused, if its text cannot be read
	switch t := s.config.Cache.Analyze(v[1], s.settings.reading); {
	case !t.Known:
	case v[2] == "t":
		st = preparedIn(t, v[0])
	case len(t.Statements) == 1:
		st = &t.Statements[0]
	}
	e := s.preparedOf(st, []byte(v[1]), false)
	s.apply(op{reply: '1', name: v[0], prepared: e})
	s.trackFenceStatement(v[0], e)
}

// preparedIn returns the PREPARE of a name in a text, of which Postgres keeps the whole.
func preparedIn(t *sqltext.Text, name string) *sqltext.Statement {
	found := &sqltext.Statement{}
	for i := range t.Statements {
		st := &t.Statements[i]
		switch {
		case !st.Does(sqltext.Prepares) || wire.CutName(st.Name) != name:
		case found.Does(sqltext.Prepares):
			return &sqltext.Statement{}
		default:
			found = st
		}
	}
	return found
}

// statement returns what is known of a prepared statement, as of the messages that were sent; nil
// if nothing is.
func (s *Session) statement(name []byte) *prepared {
	name = wire.CutName(name)
	ops := s.exchange.ops
	for i := len(ops) - 1; i >= 0; i-- {
		if ops[i].name == string(name) && (ops[i].close || ops[i].reply == '1') {
			return ops[i].prepared
		}
	}
	return s.names[string(name)]
}

// preparedOf returns what is known of a statement with this text.
func (s *Session) preparedOf(st *sqltext.Statement, sql []byte, userTypes bool) *prepared {
	if st == nil {
		return nil
	}
	if st.Read && st.Kind != sqltext.ShowFence && st.Kind != sqltext.SetFence && s.config.Version.KeepsReadOnly() && !matters(st) {
		return plainRead
	}
	return &prepared{statement: st, text: strings.Clone(unsafeString(sql[:min(len(sql), maxAuditText)])), proven: !userTypes}
}

// matters reports whether something follows from a statement that has run, beyond its replies.
func matters(st *sqltext.Statement) bool {
	return st.Kind == sqltext.Begin || runsNothing(st) || st.Kind == sqltext.Session || st.Does(sqltext.SetsConfig) || overBy(st) != notOver
}

// runsNothing reports whether a statement writes nothing in any transaction, and makes none READ WRITE.
func runsNothing(st *sqltext.Statement) bool {
	switch st.Kind {
	case sqltext.Commit, sqltext.Rollback, sqltext.RollbackTo, sqltext.Deallocate:
		return true
	default:
		return st.Does(sqltext.UsesSavepoint)
	}
}

// overBy is what a batch or a text can do after a statement.
func overBy(st *sqltext.Statement) over {
	switch {
	case endsWithDiscard(st), st.Does(sqltext.EndsTransaction | sqltext.MayEndTransaction):
		return ended
	case st.Does(sqltext.ChoosesReadWrite):
		return mayWrite
	default:
		return notOver
	}
}

// overBy is overBy for a statement that runs now. In a block that has chosen, no procedure and no DO can commit.
func (s *Session) overBy(st *sqltext.Statement) over {
	if s.choices.block == blockWrites && st.Does(sqltext.MayEndTransaction) {
		return notOver
	}
	return overBy(st)
}

// overByTag is overBy for a statement of which nothing but its tag is known.
func overByTag(tag string) over {
	switch tag {
	case "COMMIT", "ROLLBACK", "DISCARD ALL", "DO", "CALL":
		return ended
	case "BEGIN", "START TRANSACTION", "SET", "RESET":
		return mayWrite
	default:
		return notOver
	}
}

func endsWithDiscard(st *sqltext.Statement) bool {
	return st.Kind == sqltext.Discard && st.Name == "all"
}
