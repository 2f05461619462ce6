package oracle

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	pg_query "github.com/pganalyze/pg_query_go/v6"
)

// kind says what a statement may do, and thus which coverage it needs.
type kind uint8

const (
	// opaque is an unreadable text: any number of statements of any kind.
	opaque kind = iota
	// writes is what read-only mode may let through; it needs a check.
	writes
	// query is what read-only mode restricts; it needs that or a check.
	query
	// commits may end its transaction inside and continue: CALL and DO.
	commits
	// lone opens its own transactions where it is allowed at all: VACUUM.
	lone
	// outside has no effect outside a block: LOCK, SAVEPOINT, SET CONSTRAINTS.
	outside
	// nothing runs nothing: SET, SHOW, LISTEN, DEALLOCATE, an empty text.
	nothing
	begin
	commit
	rollback
	release
	rollbackTo
	twoPhase
	// fails is an injected text that always fails, and runs nothing before that.
	fails
	// check verifies the epoch; readOnly sets read-only mode.
	check
	readOnly
	// claim sets what the triggers of guarded tables look for. It covers nothing, and runs
	// none of a user's code.
	claim
)

var kindNames = [...]string{
	"a text that cannot be read", "a statement that may write", "a query", "CALL or DO", "a statement with transactions of its own",
	"LOCK, SAVEPOINT or SET CONSTRAINTS", "a harmless statement", "BEGIN", "COMMIT", "ROLLBACK", "RELEASE", "ROLLBACK TO",
	"two-phase commit", "a refusal", "the check", "read-only mode", "a claim",
}

// statement is what the model knows about one statement.
type statement struct {
	kind kind
	name string // of a savepoint
	runs string // the prepared statement that EXECUTE runs or PREPARE creates
	args []string
	// afterwards is what an EXECUTE may do to the transaction later: Postgres ends or
	// begins one between the statements of a text or a batch only where the statement
	// itself says so.
	afterwards *statement
	chain      bool
	savepoint  bool
	plain      bool // a SELECT that creates and locks nothing, or COPY TO STDOUT
	unsets     bool // may undo read-only mode on 14 and 15
	copies     bool // COPY FROM STDIN
	ends       bool // fails and ends its block, as PREPARE TRANSACTION does
	early      bool // already fails when it is parsed
	empty      bool // not a statement at all
	one        bool // opaque, but at most one statement
	prepares   bool // PREPARE
	modifies   bool // INSERT, UPDATE, DELETE or MERGE
	chooses    *choice
	check      checkText
	said       answer // of a check that asks
	source     string // the start of an unreadable text, for a complaint
}

// answer is what a check that asks has answered.
type answer uint8

const (
	saidNothing answer = iota
	saidCurrent        // the session may write
	saidStale          // it is superseded, and the transaction is read-only
)

// maxSource is how many bytes of a text a complaint shows.
const maxSource = 200

// sourced sets the source of the unreadable statements among all.
func sourced(all []statement, text []byte) []statement {
	out := append([]statement(nil), all...)
	for i := range out {
		if out[i].kind == opaque {
			out[i].source = string(text[:min(len(text), maxSource)])
		}
	}
	return out
}

// unread stands for an unreadable text.
var unread = []statement{{kind: opaque}}

const (
	// maxText and maxTokens limit what is passed to the grammar, whose tree is walked
	// by recursion in C.
	maxText   = 1 << 20
	maxTokens = 5000
)

// read parses a text. single means that the server accepts only one statement.
func read(text []byte, how reading, single bool) []statement {
	text = uncommented(text)
	if how == unknown && sensitive(text) && sensitive(ours.ReplaceAll(text, nil)) {
		return guess(text, single)
	}
	// Bytes outside ASCII are letters to the lexer; which letters does not matter.
	sql := lettered(text)
	if len(sql) > maxText || len(sql) > maxTokens && deep(sql) {
		return guess(text, single)
	}
	if how == escapes && strings.Contains(sql, `\`) {
		pieces, ok := statements(sql, how)
		if !ok {
			return guess(text, single)
		}
		return each(pieces)
	}
	tree, err := pg_query.Parse(sql)
	if err != nil {
		pieces, ok := statements(sql, standard)
		if !ok || single && len(pieces) < 2 {
			return guess(text, single)
		}
		return each(pieces)
	}
	all := make([]statement, 0, len(tree.Stmts))
	for _, raw := range tree.Stmts {
		end := len(sql)
		if raw.StmtLen > 0 {
			end = int(raw.StmtLocation + raw.StmtLen)
		}
		all = append(all, statementOf(raw.Stmt, strings.TrimSpace(string(text[raw.StmtLocation:end]))))
	}
	return all
}

// lettered returns a text in which a letter replaces each byte outside ASCII.
func lettered(text []byte) string {
	var sql strings.Builder
	sql.Grow(len(text))
	for _, c := range text {
		if c >= 0x80 {
			c = 'z'
		}
		sql.WriteByte(c)
	}
	return sql.String()
}

// each reads split statements one by one, so that an unparsable one does not affect the
// others.
func each(pieces []string) []statement {
	all := make([]statement, 0, len(pieces))
	for _, piece := range pieces {
		tree, err := pg_query.Parse(piece)
		switch {
		case err != nil || len(tree.Stmts) > 1:
			all = append(all, guess([]byte(piece), true)...)
		case len(tree.Stmts) == 1:
			all = append(all, statementOf(tree.Stmts[0].Stmt, piece))
		}
	}
	return all
}

// sensitive reports whether the meaning of a text depends on
// standard_conforming_strings or on the client's encoding.
func sensitive(text []byte) bool {
	return bytes.ContainsFunc(text, func(r rune) bool { return r == '\\' || r >= 0x80 })
}

func ascii(text []byte) bool {
	return !bytes.ContainsFunc(text, func(r rune) bool { return r >= 0x80 })
}

// guess is read for a text that the grammar rejects or cannot be given. However its
// strings are read, such a text is one statement or an error if it contains no
// semicolon except at its end, and always if the server accepts only one statement. Its
// first word then limits what it can be.
func guess(text []byte, single bool) []statement {
	text = bytes.Trim(uncommented(text), "; \t\r\n\f")
	if !single && bytes.IndexByte(text, ';') >= 0 {
		return unread
	}
	word := text
	for i, c := range text {
		if c|0x20 < 'a' || c|0x20 > 'z' {
			word = text[:i]
			if c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 0x80 {
				return []statement{{kind: opaque, one: true}}
			}
			break
		}
	}
	switch strings.ToLower(string(word)) {
	case "insert", "update", "delete", "merge":
		return []statement{{kind: query, modifies: true}}
	case "select", "values", "with", "table", "fetch", "move", "close", "declare":
		return []statement{{kind: query}}
	case "alter", "analyze", "cluster", "comment", "create", "drop", "explain", "grant", "import", "notify", "reassign",
		"refresh", "reindex", "revoke", "security", "truncate", "vacuum":
		return []statement{{kind: lone}}
	case "prepare":
		if m := preparing.FindSubmatch(text); m != nil && !strings.EqualFold(string(m[1]), "transaction") {
			return []statement{{kind: query, prepares: true, runs: strings.ToLower(string(m[1]))}}
		}
		if name, ok := quotedName(text[len(word):]); ok {
			return []statement{{kind: query, prepares: true, runs: string(kept(name))}}
		}
	case "execute":
		if name, ok := quotedName(text[len(word):]); ok && murky(name) {
			return []statement{{kind: query}} // as where the text can be read
		}
	}
	return []statement{{kind: opaque, one: true}}
}

// preparing matches the start of a PREPARE with a name that reads the same everywhere.
var preparing = regexp.MustCompile(`(?i)^prepare[ \t\r\n\f]+([a-z_][a-z0-9_]*)[ \t\r\n\f]*(?:\(|[ \t\r\n\f]as[ \t\r\n\f])`)

// quotedName returns the quoted name with which a text begins. No encoding has a quote inside
// a character.
func quotedName(text []byte) (name []byte, ok bool) {
	m := quoted.FindSubmatch(text)
	if m == nil {
		return nil, false
	}
	return bytes.ReplaceAll(m[1], []byte(`""`), []byte(`"`)), true
}

var quoted = regexp.MustCompile(`^[ \t\r\n\f]*"((?:[^"]|"")+)"`)

// uncommented returns a text from its first statement on, without preceding spaces and
// comments. In every encoding, no character contains a byte that ends a comment.
func uncommented(text []byte) []byte {
	for {
		text = bytes.TrimLeft(text, " \t\r\n\f")
		switch {
		case bytes.HasPrefix(text, []byte("--")):
			end := bytes.IndexAny(text, "\r\n")
			if end < 0 {
				return nil
			}
			text = text[end:]
		case bytes.HasPrefix(text, []byte("/*")):
			inside, after, ok := bytes.Cut(text[2:], []byte("*/"))
			if !ok || bytes.Contains(inside, []byte("/*")) {
				return text
			}
			text = after
		default:
			return text
		}
	}
}

// deep reports whether the tree of a text may be too deep to be walked: brackets nest,
// and an item between separators is at most as deep as its number of tokens.
func deep(sql string) bool {
	scanned, err := pg_query.Scan(sql)
	if err != nil {
		return true
	}
	items := []int{0}
	sum := 0
	for _, t := range scanned.Tokens {
		last := len(items) - 1
		switch sql[t.Start] {
		case '(', '[':
			items = append(items, 0)
		case ')', ']':
			if last > 0 {
				sum -= items[last]
				items = items[:last]
			}
		case ';':
			items, sum = append(items[:0], 0), 0
		case ',':
			sum -= items[last]
			items[last] = 0
		default:
			if t.Token == pg_query.Token_SQL_COMMENT || t.Token == pg_query.Token_C_COMMENT {
				continue
			}
			items[last]++
			sum++
		}
		if sum+len(items) > maxTokens {
			return true
		}
	}
	return false
}

// statementOf returns what a node of the grammar may do.
func statementOf(node *pg_query.Node, text string) statement {
	switch n := node.GetNode().(type) {
	case *pg_query.Node_TransactionStmt:
		return transactionOf(n.TransactionStmt)
	case *pg_query.Node_VariableSetStmt:
		if chosen, ok := choiceOf(spelled(n.VariableSetStmt, text)); ok {
			return statement{kind: nothing, chooses: chosen}
		}
		undone := n.VariableSetStmt.Kind == pg_query.VariableSetKind_VAR_RESET || n.VariableSetStmt.Kind == pg_query.VariableSetKind_VAR_SET_DEFAULT
		return statement{kind: nothing, unsets: undone && strings.EqualFold(n.VariableSetStmt.Name, "transaction_read_only")}
	case *pg_query.Node_VariableShowStmt, *pg_query.Node_ListenStmt, *pg_query.Node_UnlistenStmt:
		return statement{kind: nothing}
	case *pg_query.Node_DiscardStmt:
		if n.DiscardStmt.Target == pg_query.DiscardMode_DISCARD_ALL {
			return statement{kind: nothing, chooses: &choice{lasts: true}}
		}
		return statement{kind: nothing}
	case *pg_query.Node_DeallocateStmt:
		return statement{kind: nothing}
	case *pg_query.Node_LockStmt, *pg_query.Node_ConstraintsSetStmt:
		return statement{kind: outside}
	case *pg_query.Node_SelectStmt:
		return selectOf(n.SelectStmt, text)
	case *pg_query.Node_InsertStmt, *pg_query.Node_UpdateStmt, *pg_query.Node_DeleteStmt, *pg_query.Node_MergeStmt:
		return statement{kind: query, modifies: true}
	case *pg_query.Node_DeclareCursorStmt, *pg_query.Node_FetchStmt, *pg_query.Node_ClosePortalStmt,
		*pg_query.Node_CreateTableAsStmt:
		return statement{kind: query}
	case *pg_query.Node_ExplainStmt:
		return statement{kind: query, plain: !analyzes(n.ExplainStmt) && statementOf(n.ExplainStmt.Query, "").plain}
	case *pg_query.Node_PrepareStmt:
		return statement{kind: query, prepares: true, runs: n.PrepareStmt.Name}
	case *pg_query.Node_ExecuteStmt:
		return executeOf(n.ExecuteStmt)
	case *pg_query.Node_CopyStmt:
		c := n.CopyStmt
		if c.Filename != "" || c.IsProgram || c.IsFrom {
			return statement{kind: writes, copies: c.IsFrom && c.Filename == "" && !c.IsProgram}
		}
		return statement{kind: query, plain: true}
	case *pg_query.Node_CallStmt, *pg_query.Node_DoStmt:
		return statement{kind: commits}
	default:
		if opensOwn(node) {
			return statement{kind: lone}
		}
		return statement{kind: writes}
	}
}

// analyzes reports whether an EXPLAIN may run its query.
func analyzes(e *pg_query.ExplainStmt) bool {
	return slices.ContainsFunc(e.Options, func(o *pg_query.Node) bool { return o.GetDefElem().GetDefname() == "analyze" })
}

// opensOwn reports whether a statement ends the transaction it starts in and continues
// in others.
func opensOwn(node *pg_query.Node) bool {
	switch n := node.GetNode().(type) {
	case *pg_query.Node_VacuumStmt:
		return true
	case *pg_query.Node_ClusterStmt:
		return n.ClusterStmt.Relation == nil
	case *pg_query.Node_IndexStmt:
		return n.IndexStmt.Concurrent
	case *pg_query.Node_DropStmt:
		return n.DropStmt.Concurrent
	case *pg_query.Node_ReindexStmt:
		r := n.ReindexStmt
		return len(r.Params) > 0 || r.Kind != pg_query.ReindexObjectType_REINDEX_OBJECT_INDEX && r.Kind != pg_query.ReindexObjectType_REINDEX_OBJECT_TABLE
	default:
		return false
	}
}

// longestGID is the longest name that PREPARE TRANSACTION accepts.
const longestGID = 199

func transactionOf(t *pg_query.TransactionStmt) statement {
	s := statement{chain: t.Chain, name: t.SavepointName}
	switch t.Kind {
	case pg_query.TransactionStmtKind_TRANS_STMT_BEGIN, pg_query.TransactionStmtKind_TRANS_STMT_START:
		s.kind = begin
	case pg_query.TransactionStmtKind_TRANS_STMT_COMMIT:
		s.kind = commit
	case pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK:
		s.kind = rollback
	case pg_query.TransactionStmtKind_TRANS_STMT_SAVEPOINT:
		s.kind, s.savepoint = outside, true
	case pg_query.TransactionStmtKind_TRANS_STMT_RELEASE:
		s.kind = release
	case pg_query.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO:
		s.kind = rollbackTo
	default:
		s.kind = twoPhase
		if t.Kind == pg_query.TransactionStmtKind_TRANS_STMT_PREPARE && len(t.Gid) > longestGID {
			s.kind, s.ends = fails, true
		}
	}
	return s
}

func selectOf(s *pg_query.SelectStmt, text string) statement {
	switch {
	case text == readOnlyText:
		return statement{kind: readOnly}
	case claimPattern.MatchString(text):
		return statement{kind: claim}
	case text == refusalText:
		return statement{kind: fails, early: true}
	case s.IntoClause != nil || len(s.LockingClause) > 0:
		return statement{kind: query}
	}
	if c, ok := parseCheck(text); ok {
		if c.never && !c.asks {
			return statement{kind: fails}
		}
		return statement{kind: check, check: c}
	}
	plain := s.WithClause == nil // a WITH may contain an INSERT
	return statement{kind: query, plain: plain}
}

func executeOf(e *pg_query.ExecuteStmt) statement {
	s := statement{kind: query, runs: e.Name}
	for _, p := range e.Params {
		text := "?"
		if c := p.GetAConst(); c != nil {
			if c.GetIval() != nil {
				text = itoa(int64(c.GetIval().Ival))
			} else if c.GetFval() != nil {
				text = c.GetFval().Fval
			}
		}
		s.args = append(s.args, text)
	}
	return s
}

// choice is what a statement of the client's sets fencepost.resource to.
type choice struct {
	value string // "" for that of the startup
	local bool   // for its transaction
	lasts bool   // whatever fails behind it in its batch
}

// spelled returns a SET as its text has it, in which no letter stands for a byte outside ASCII. The
// server is taken to read the text as UTF-8.
func spelled(n *pg_query.VariableSetStmt, text string) *pg_query.VariableSetStmt {
	if ascii([]byte(text)) || !utf8.ValidString(text) {
		return n
	}
	tree, err := pg_query.Parse(text)
	if err != nil || len(tree.Stmts) != 1 || tree.Stmts[0].Stmt.GetVariableSetStmt() == nil {
		return n
	}
	return tree.Stmts[0].Stmt.GetVariableSetStmt()
}

// choiceOf returns the choice that a SET or RESET makes. ok is false if it makes none.
func choiceOf(n *pg_query.VariableSetStmt) (c *choice, ok bool) {
	if n.Kind == pg_query.VariableSetKind_VAR_RESET_ALL {
		return &choice{}, true
	}
	if !strings.EqualFold(n.Name, "fencepost.resource") || n.Kind == pg_query.VariableSetKind_VAR_SET_CURRENT {
		return nil, false
	}
	c = &choice{local: n.IsLocal}
	if len(n.Args) == 1 {
		constant := n.Args[0].GetAConst()
		switch {
		case constant.GetSval() != nil:
			c.value = constant.GetSval().Sval
		case constant.GetIval() != nil:
			c.value = itoa(int64(constant.GetIval().Ival))
		case constant.GetFval() != nil:
			c.value = constant.GetFval().Fval
		}
	}
	return c, true
}
