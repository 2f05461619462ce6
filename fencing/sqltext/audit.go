package sqltext

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	pgquery "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// auditTextMax is the maximum length of a statement in an audit record, in bytes.
	auditTextMax = 4 << 10
	// auditTablesMax is the maximum number of tables in an audit record.
	auditTablesMax = 64
)

// Audit is what may be recorded about a refused text. It never contains literals.
type Audit struct {
	// Statement is the text without comments, with collapsed whitespace, and with each
	// literal replaced by $n (numbered after the text's own parameters). It is valid
	// UTF-8 of at most 4 KiB. It is empty if Unparsable.
	Statement string
	// Fingerprint is the same for statements that differ only in literals. It is empty
	// if Unparsable, and for FunctionCall.
	Fingerprint string
	// Tables are the relations named in the text, in the order of their first mention,
	// qualified as in the text.
	Tables []string
	// Unparsable means that it is uncertain where literals begin and end, so nothing of
	// the text is recorded.
	Unparsable bool
}

// FunctionCall represents a fast path call in the audit log, which has no text. It is not one of SQL.
const FunctionCall = "FunctionCall"

// AuditOf describes sql, or FunctionCall, for the audit log. It parses sql, so it should only be
// called when a statement is refused.
func AuditOf(sql string) Audit {
	if sql == FunctionCall {
		return Audit{Statement: sql}
	}
	statement, ok := withoutLiterals(sql)
	if !ok || unreadable(sql, DefaultSettings) != "" {
		return Audit{Unparsable: true}
	}
	tree, _, err := parse(sql)
	if err != nil {
		return Audit{Unparsable: true}
	}
	a := Audit{Statement: cut(statement, auditTextMax), Tables: tablesOf(tree)}
	text := sql
	if !utf8.ValidString(sql) {
		text, _ = widen(sql)
	}
	if f, err := pgquery.Fingerprint(text); err == nil {
		a.Fingerprint = f
	}
	return a
}

// withoutLiterals returns sql with each literal replaced, or false if it is uncertain
// where they are: in unterminated text, or with a backslash in a plain string, whose
// meaning depends on the session's settings.
func withoutLiterals(sql string) (string, bool) {
	var b strings.Builder
	next := highestParameter(sql) + 1
	for s, last := (scanner{sql: sql}), -1; ; {
		t := s.next()
		switch t.kind {
		case tokenEnd:
			return strings.ToValidUTF8(b.String(), "?"), true
		case tokenBad:
			return "", false
		}
		if last >= 0 && t.start > last {
			b.WriteByte(' ')
		}
		last = t.end
		text := sql[t.start:t.end]
		switch {
		case t.kind == tokenQuoted && ambiguous(text):
			return "", false
		case t.kind == tokenQuoted && !isQuotedName(text), t.kind == tokenJunk, t.kind == tokenOther && startsNumber(text):
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(next))
			next++
		default:
			b.WriteString(text)
		}
	}
}

// highestParameter returns the highest n of the $n in sql, 0 if there is none.
func highestParameter(sql string) int {
	highest := 0
	for s := (scanner{sql: sql}); ; {
		t := s.next()
		switch t.kind {
		case tokenEnd, tokenBad:
			return highest
		case tokenOther:
			if n, err := strconv.ParseUint(strings.TrimPrefix(sql[t.start:t.end], "$"), 10, 16); err == nil && sql[t.start] == '$' {
				highest = max(highest, int(n))
			}
		}
	}
}

// ambiguous reports whether a quoted text is a plain string that contains a backslash.
func ambiguous(text string) bool {
	c := text[0] | 0x20
	return (text[0] == '\'' || c == 'n') && strings.IndexByte(text, '\\') >= 0
}

func isQuotedName(text string) bool {
	return text[0] == '"' || len(text) > 2 && text[0]|0x20 == 'u' && text[2] == '"'
}

func startsNumber(text string) bool {
	return isDigit(text[0]) || len(text) > 1 && text[0] == '.' && isDigit(text[1])
}

// cut shortens s to at most limit bytes, at a character boundary, and marks the cut.
func cut(s string, limit int) string {
	const mark = " ..."
	if len(s) <= limit {
		return s
	}
	end := limit - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// tablesOf returns the relations named in tree, without those that WITH defines.
func tablesOf(tree *pgquery.ParseResult) []string {
	var c tableCollector
	for _, raw := range tree.Stmts {
		c.statement = raw.StmtLocation
		c.message(raw.ProtoReflect())
	}
	slices.SortStableFunc(c.found, func(a, b mention) int { return cmp.Compare(a.at, b.at) })
	var tables []string
	seen := make(map[string]bool, len(c.found))
	for _, m := range c.found {
		if !seen[m.name] && !c.ctes[m.name] && len(tables) < auditTablesMax {
			seen[m.name] = true
			tables = append(tables, m.name)
		}
	}
	return tables
}

type mention struct {
	at   int32 // offset in the text
	name string
}

type tableCollector struct {
	found     []mention
	ctes      map[string]bool
	statement int32 // offset of the current one
}

func (c *tableCollector) message(m protoreflect.Message) {
	switch n := m.Interface().(type) {
	case *pgquery.RangeVar:
		c.add(n.Location, n.Catalogname, n.Schemaname, n.Relname)
	case *pgquery.CommonTableExpr:
		if c.ctes == nil {
			c.ctes = make(map[string]bool)
		}
		c.ctes[n.Ctename] = true
	case *pgquery.DropStmt:
		c.dropped(n)
	}
	eachMessage(m, c.message)
}

// dropped adds the relations that DROP names. Each is a list of name parts.
func (c *tableCollector) dropped(d *pgquery.DropStmt) {
	switch d.RemoveType {
	case pgquery.ObjectType_OBJECT_TABLE, pgquery.ObjectType_OBJECT_VIEW, pgquery.ObjectType_OBJECT_MATVIEW,
		pgquery.ObjectType_OBJECT_SEQUENCE, pgquery.ObjectType_OBJECT_INDEX, pgquery.ObjectType_OBJECT_FOREIGN_TABLE:
	default:
		return
	}
	for _, o := range d.Objects {
		var parts []string
		for _, p := range o.GetList().GetItems() {
			parts = append(parts, p.GetString_().GetSval())
		}
		c.add(c.statement, parts...)
	}
}

func (c *tableCollector) add(at int32, parts ...string) {
	name := strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ".")
	if name != "" {
		c.found = append(c.found, mention{at, name})
	}
}
