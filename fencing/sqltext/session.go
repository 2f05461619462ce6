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
		st.Kind = Session
		if name, ok := fenceName(n.GetVariableShowStmt().Name); ok {
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
		st.Kind, st.Isolation, st.SetsIsolation = Begin, len(t.Options) > 0, includes(t.Options, isolationLevel, deferrable)
		st.ChoosesReadOnly = chooseReadOnly(t.Options)
	case pgquery.TransactionStmtKind_TRANS_STMT_COMMIT:
		st.Kind, st.EndsTransaction = Commit, true
	case pgquery.TransactionStmtKind_TRANS_STMT_ROLLBACK:
		st.Kind, st.EndsTransaction = Rollback, true
	case pgquery.TransactionStmtKind_TRANS_STMT_SAVEPOINT:
		st.Savepoint = true
	case pgquery.TransactionStmtKind_TRANS_STMT_RELEASE:
		st.Savepoint, st.EndsSavepoint = true, true
	case pgquery.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO:
		st.Kind, st.Savepoint, st.EndsSavepoint = RollbackTo, true, true
	default: // the three of two-phase commit, and any that are added later
		st.Kind, st.EndsTransaction = Refused, true
		st.PreparesTransaction = t.Kind == pgquery.TransactionStmtKind_TRANS_STMT_PREPARE
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
		st.Isolation = !st.UnsetsReadOnly
		st.ChoosesReadOnly = len(v.Args) != 1 || !switchesOff(v.Args[0])
	case "transaction", "transaction snapshot", isolationLevel, deferrable:
		st.Isolation = v.Kind != pgquery.VariableSetKind_VAR_RESET
		st.ImportsSnapshot = name == "transaction snapshot"
		st.SetsIsolation = st.Isolation &&
			(name == "transaction snapshot" || name == isolationLevel || name == deferrable || includes(v.Args, isolationLevel, deferrable))
		st.ChoosesReadOnly = st.Isolation && chooseReadOnly(v.Args)
	}
}

// The names of the parameters, and of the modes of BEGIN and SET TRANSACTION that set them.
const (
	isolationLevel = "transaction_isolation"
	deferrable     = "transaction_deferrable"
	readOnly       = "transaction_read_only"
)

// includes reports whether these transaction modes include one of those names.
func includes(modes []*pgquery.Node, names ...string) bool {
	return slices.ContainsFunc(modes, func(m *pgquery.Node) bool { return slices.Contains(names, m.GetDefElem().GetDefname()) })
}

// chooseReadOnly reports whether these transaction modes include READ ONLY.
func chooseReadOnly(modes []*pgquery.Node) bool {
	return slices.ContainsFunc(modes, func(m *pgquery.Node) bool {
		return m.GetDefElem().GetDefname() == readOnly && !switchesOff(m.GetDefElem().Arg)
	})
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
