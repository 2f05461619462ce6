package sqltext

import (
	"strings"

	pgquery "github.com/pganalyze/pg_query_go/v6"
)

// classify returns what one statement's tree shows. The caller sets Start and End.
func classify(n *pgquery.Node) Statement {
	w := look(n)
	st := Statement{Kind: Ordinary}
	if !classifySession(n, &st) {
		classifyQuery(n, w, &st)
	}
	st.Command = commandOf(n)
	st.effects |= w.effects
	if !st.Read && readsSince16(n, w) {
		st.effects |= ReadsSince16
	}
	if st.Read {
		st.dependencies = dependenciesOf(n, &st)
	}
	return st
}

// readsSince16 reports whether a statement that is no Read has the effect ReadsSince16.
func readsSince16(n *pgquery.Node, w findings) bool {
	const accessShare = 1 // the mode of a LOCK TABLE
	switch {
	case n.GetLockStmt() != nil:
		return n.GetLockStmt().Mode == accessShare
	case n.GetConstraintsSetStmt() != nil: // the triggers that it may run are kept read-only, too
		return true
	case n.GetSelectStmt() != nil:
		return w.onlyUnsets()
	default: // EXPLAIN ANALYZE executes a SELECT as it would be executed without
		return n.GetExplainStmt().GetQuery().GetSelectStmt() != nil && (w.writes == "" || w.onlyUnsets())
	}
}

// classifyQuery classifies what is Ordinary or ByMessage, and whether it is a read.
func classifyQuery(n *pgquery.Node, w findings, st *Statement) {
	switch {
	case n.GetPrepareStmt() != nil:
		st.Kind, st.Name, st.effects = ByMessage, n.GetPrepareStmt().Name, Prepares
		st.readIf(w)
	case n.GetDeclareCursorStmt() != nil:
		st.Kind, st.Name = ByMessage, n.GetDeclareCursorStmt().Portalname
		st.readIf(w)
	case n.GetExecuteStmt() != nil:
		st.Kind, st.Name, st.effects = ByMessage, n.GetExecuteStmt().Name, Executes
		st.reason = "what it executes is not in the text"
	case n.GetSelectStmt() != nil:
		st.readIf(w)
	case n.GetFetchStmt() != nil, n.GetClosePortalStmt() != nil:
		st.Read, st.reason = true, "a cursor reads"
	case n.GetExplainStmt() != nil:
		classifyExplain(n.GetExplainStmt(), w, st)
	case n.GetCopyStmt() != nil:
		classifyCopy(n.GetCopyStmt(), w, st)
	case n.GetCallStmt() != nil, n.GetDoStmt() != nil:
		st.effects, st.reason = MayEndTransaction, "it may commit inside"
	default:
		st.reason = "not a query"
		if w.writes != "" {
			st.reason = w.writes
		}
	}
}

func commandOf(n *pgquery.Node) Command {
	switch n.GetNode().(type) {
	case *pgquery.Node_InsertStmt:
		return Insert
	case *pgquery.Node_UpdateStmt:
		return Update
	case *pgquery.Node_DeleteStmt:
		return Delete
	case *pgquery.Node_MergeStmt:
		return Merge
	default:
		return NoCommand
	}
}

// verbOf returns Statement.Verb. It is one of few, because only keywords begin a statement. It shares no memory with
// the text, which may be let go.
func verbOf(n *pgquery.Node, text string) string {
	if n.GetSelectStmt() != nil {
		return "SELECT"
	}
	if c := commandOf(n); c != NoCommand { // the first word may be WITH
		return c.String()
	}
	t := (&scanner{sql: text}).next()
	return strings.Clone(strings.ToUpper(text[t.start:t.end]))
}

// readIf makes st a read unless something in it prevents that.
func (st *Statement) readIf(w findings) {
	if w.writes != "" {
		st.reason = w.writes
		return
	}
	st.Read, st.reason = true, "a query without INTO, row locks and data-modifying parts"
}

// classifyExplain classifies EXPLAIN. Without ANALYZE nothing is executed, so only
// functions matter, which EXPLAIN EXECUTE evaluates in its parameters.
func classifyExplain(e *pgquery.ExplainStmt, w findings, st *Statement) {
	for _, o := range e.Options {
		if d := o.GetDefElem(); d != nil && d.Defname == "analyze" && !isFalse(d.Arg) {
			st.reason = "EXPLAIN ANALYZE executes"
			return
		}
	}
	if w.function != "" {
		st.reason = w.function
		return
	}
	st.Read, st.reason = true, "EXPLAIN without ANALYZE executes nothing"
}

// isFalse reports whether an option is explicitly switched off.
func isFalse(arg *pgquery.Node) bool {
	switch s := strings.ToLower(arg.GetString_().GetSval()); {
	case arg.GetBoolean() != nil:
		return !arg.GetBoolean().Boolval
	case arg.GetInteger() != nil:
		return arg.GetInteger().Ival == 0
	default:
		return s == "false" || s == "off"
	}
}

func classifyCopy(c *pgquery.CopyStmt, w findings, st *Statement) {
	switch {
	case c.IsFrom:
		st.reason = "COPY FROM writes"
	case c.IsProgram:
		st.reason = "COPY TO PROGRAM runs a program"
	case c.Filename != "":
		st.reason = "COPY TO a file writes it"
	default:
		st.readIf(w)
	}
}
