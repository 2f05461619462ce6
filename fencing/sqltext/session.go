package sqltext

import (
	"slices"
	"strconv"
	"strings"

	pgquery "github.com/pganalyze/pg_query_go/v6"
)

// fencePrefix is the prefix of Fencepost's own parameters.
const fencePrefix = "fencepost."

// classifySession classifies the statements about the session and the transaction, and
// reports whether n is one.
func classifySession(n *pgquery.Node, st *Statement) bool {
	switch {
	case n.GetTransactionStmt() != nil:
		classifyTransaction(n.GetTransactionStmt(), st)
	case n.GetVariableSetStmt() != nil:
		classifySet(n.GetVariableSetStmt(), st)
	case n.GetVariableShowStmt() != nil:
		st.Kind, st.Name = Session, lower(n.GetVariableShowStmt().Name)
		if name, ok := fenceName(st.Name); ok {
			st.Kind, st.Name = ShowFence, name
		}
	case n.GetListenStmt() != nil, n.GetUnlistenStmt() != nil:
		st.Kind = Session
	case n.GetDiscardStmt() != nil:
		st.Kind = Discard
		st.Name = discardTarget(n.GetDiscardStmt().Target)
	case n.GetDeallocateStmt() != nil:
		st.Kind, st.Name = Deallocate, n.GetDeallocateStmt().Name
	default:
		return false
	}
	if st.Kind != Refused {
		st.Read, st.reason = true, "a command of the session"
	}
	return true
}

// discardTarget returns what DISCARD drops: all, plans, sequences or temp.
func discardTarget(m pgquery.DiscardMode) string {
	return strings.TrimPrefix(strings.ToLower(m.String()), "discard_")
}

func classifyTransaction(t *pgquery.TransactionStmt, st *Statement) {
	st.Chain = t.Chain
	switch t.Kind {
	case pgquery.TransactionStmtKind_TRANS_STMT_BEGIN, pgquery.TransactionStmtKind_TRANS_STMT_START:
		st.Kind, st.ChoosesReadWrite = Begin, chooseReadWrite(t.Options)
	case pgquery.TransactionStmtKind_TRANS_STMT_COMMIT:
		st.Kind, st.EndsTransaction = Commit, true
	case pgquery.TransactionStmtKind_TRANS_STMT_ROLLBACK:
		st.Kind, st.EndsTransaction = Rollback, true
	case pgquery.TransactionStmtKind_TRANS_STMT_SAVEPOINT, pgquery.TransactionStmtKind_TRANS_STMT_RELEASE:
		st.Savepoint = true
	case pgquery.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO:
		st.Kind, st.Savepoint = RollbackTo, true
	default: // the three of two-phase commit, and any that are added later
		st.Kind, st.EndsTransaction = Refused, true
		st.reason = "a prepared transaction would outlive its epoch"
	}
}

// classifySet distinguishes SET and RESET from those of fencepost.*, and determines
// what they do to the transaction.
func classifySet(v *pgquery.VariableSetStmt, st *Statement) {
	st.Kind = Session
	st.Resets = v.Kind == pgquery.VariableSetKind_VAR_RESET_ALL
	name := lower(v.Name)
	if own, ok := fenceName(name); ok && (own != "epoch" || v.Kind == pgquery.VariableSetKind_VAR_SET_VALUE) {
		st.Kind, st.Name, st.Value, st.Local = SetFence, own, setValue(v.Args), v.IsLocal
		st.Current = v.Kind == pgquery.VariableSetKind_VAR_SET_CURRENT
		return
	}
	switch name {
	case readOnly:
		// SET to a value is refused after a query; SET to the default is not.
		st.UnsetsReadOnly = v.Kind == pgquery.VariableSetKind_VAR_RESET ||
			v.Kind == pgquery.VariableSetKind_VAR_SET_DEFAULT
		st.ChoosesReadWrite = true // the value may be one that this function does not know
	case "default_" + readOnly, "session characteristics":
		st.DefaultReadOnly = defaultChange(v)
	case "transaction":
		st.ChoosesReadWrite = chooseReadWrite(v.Args)
	}
}

// readOnly is the name of the parameter, and of the mode of BEGIN and SET TRANSACTION that sets it.
const readOnly = "transaction_read_only"

// chooseReadOnly reports whether these transaction modes include READ ONLY.
func chooseReadOnly(modes []*pgquery.Node) bool {
	return slices.ContainsFunc(modes, func(m *pgquery.Node) bool {
		return m.GetDefElem().GetDefname() == readOnly && !switchesOff(m.GetDefElem().Arg)
	})
}

// chooseReadWrite reports whether these transaction modes include READ WRITE.
func chooseReadWrite(modes []*pgquery.Node) bool {
	return slices.ContainsFunc(modes, func(m *pgquery.Node) bool {
		return m.GetDefElem().GetDefname() == readOnly && switchesOff(m.GetDefElem().Arg)
	})
}

// defaultChange returns what a SET of default_transaction_read_only or of the session
// characteristics does to that parameter.
func defaultChange(v *pgquery.VariableSetStmt) DefaultChange {
	switch {
	case v.IsLocal:
		return KeepsDefault
	case v.Kind == pgquery.VariableSetKind_VAR_RESET, v.Kind == pgquery.VariableSetKind_VAR_SET_DEFAULT:
		return RestoresDefault
	case v.Kind == pgquery.VariableSetKind_VAR_SET_MULTI && chooseReadOnly(v.Args):
		return SetsReadOnly
	case v.Kind == pgquery.VariableSetKind_VAR_SET_MULTI && !chooseReadWrite(v.Args):
		return KeepsDefault
	case v.Kind == pgquery.VariableSetKind_VAR_SET_MULTI, len(v.Args) == 1 && switchesOff(v.Args[0]):
		return SetsReadWrite
	default:
		return SetsReadOnly
	}
}

// switchesOff reports whether a constant is certainly one that means false.
func switchesOff(n *pgquery.Node) bool {
	switch c := n.GetAConst(); {
	case c.GetIval() != nil:
		return c.GetIval().Ival == 0
	case c.GetBoolval() != nil:
		return !c.GetBoolval().Boolval
	default:
		return slices.Contains([]string{"off", "false", "no"}, strings.ToLower(c.GetSval().GetSval()))
	}
}

// fenceName returns the name after "fencepost.", in lower case as Postgres compares
// parameter names.
func fenceName(name string) (string, bool) {
	return strings.CutPrefix(lower(name), fencePrefix)
}

// lower converts to lower case as Postgres does for keywords and parameter names: ASCII
// only.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// setValue formats the values of SET as the parameter would hold them.
func setValue(args []*pgquery.Node) string {
	values := make([]string, 0, len(args))
	for _, a := range args {
		c := a.GetAConst()
		if c == nil {
			c = a.GetTypeCast().GetArg().GetAConst()
		}
		switch {
		case c.GetSval() != nil:
			values = append(values, c.GetSval().Sval)
		case c.GetIval() != nil:
			values = append(values, strconv.Itoa(int(c.GetIval().Ival)))
		case c.GetFval() != nil:
			values = append(values, c.GetFval().Fval)
		case c.GetBoolval() != nil:
			values = append(values, strconv.FormatBool(c.GetBoolval().Boolval))
		}
	}
	return strings.Join(values, ", ")
}
