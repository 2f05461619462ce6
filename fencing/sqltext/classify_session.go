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
	case endsPrepared(n.GetTransactionStmt()):
		return false
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
		if st.Name = discardTarget(n.GetDiscardStmt().Target); st.Name == "all" {
			st.effects = ResetsAll | RestoresDefault
		}
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

// endsPrepared reports whether t is COMMIT PREPARED or ROLLBACK PREPARED: a write of another transaction than the session's,
// which is over when it returns.
func endsPrepared(t *pgquery.TransactionStmt) bool {
	k := t.GetKind()
	return k == pgquery.TransactionStmtKind_TRANS_STMT_COMMIT_PREPARED || k == pgquery.TransactionStmtKind_TRANS_STMT_ROLLBACK_PREPARED
}

func classifyTransaction(t *pgquery.TransactionStmt, st *Statement) {
	switch t.Kind {
	case pgquery.TransactionStmtKind_TRANS_STMT_BEGIN, pgquery.TransactionStmtKind_TRANS_STMT_START:
		st.Kind, st.effects = Begin, effectOfModes(t.Options, 0, ChoosesReadWrite)
	case pgquery.TransactionStmtKind_TRANS_STMT_COMMIT:
		st.Kind, st.effects = Commit, EndsTransaction
	case pgquery.TransactionStmtKind_TRANS_STMT_ROLLBACK:
		st.Kind, st.effects = Rollback, EndsTransaction
	case pgquery.TransactionStmtKind_TRANS_STMT_SAVEPOINT, pgquery.TransactionStmtKind_TRANS_STMT_RELEASE:
		st.effects = UsesSavepoint
	case pgquery.TransactionStmtKind_TRANS_STMT_ROLLBACK_TO:
		st.Kind, st.effects = RollbackTo, UsesSavepoint
	default: // PREPARE TRANSACTION, and any that are added later
		st.Kind, st.effects = Refused, EndsTransaction
		st.reason = "a prepared transaction would outlive its epoch"
	}
	if t.Chain {
		st.effects |= Chains
	}
}

// classifySet distinguishes SET and RESET from those of fencepost.*.
func classifySet(v *pgquery.VariableSetStmt, st *Statement) {
	st.Kind, st.effects = Session, effectOfSet(v)
	if own, ok := fenceName(v.Name); ok && (own != "epoch" || v.Kind == pgquery.VariableSetKind_VAR_SET_VALUE) {
		st.Kind, st.Name, st.Value = SetFence, own, setValue(v.Args)
	}
}

// readOnly is the name of the parameter, and of the mode of BEGIN and SET TRANSACTION that sets it.
const readOnly = "transaction_read_only"

// effectOfSet returns what a SET or RESET does.
func effectOfSet(v *pgquery.VariableSetStmt) (e Effect) {
	switch v.Kind {
	case pgquery.VariableSetKind_VAR_RESET_ALL:
		e = ResetsAll | RestoresDefault
	case pgquery.VariableSetKind_VAR_SET_CURRENT:
		e = SetsCurrent
	}
	if v.IsLocal {
		e |= SetsLocally
	}
	switch name := lower(v.Name); {
	case name == readOnly && toDefault(v): // this is not refused after a query, as SET to a value is
		e |= ChoosesReadWrite | UnsetsReadOnly
	case name == readOnly: // the value may be one that this function does not know
		e |= ChoosesReadWrite
	case name == "transaction":
		e |= effectOfModes(v.Args, 0, ChoosesReadWrite)
	case v.IsLocal: // the default of the session stays
	case name == "session characteristics":
		e |= effectOfModes(v.Args, SetsDefaultReadOnly, SetsDefaultReadWrite)
	case name != "default_"+readOnly:
	case toDefault(v):
		e |= RestoresDefault
	case len(v.Args) == 1 && switchesOff(v.Args[0]):
		e |= SetsDefaultReadWrite
	default:
		e |= SetsDefaultReadOnly
	}
	return e
}

// toDefault reports whether v is a RESET of one parameter, or a SET of it to DEFAULT.
func toDefault(v *pgquery.VariableSetStmt) bool {
	return v.Kind == pgquery.VariableSetKind_VAR_RESET || v.Kind == pgquery.VariableSetKind_VAR_SET_DEFAULT
}

// effectOfModes returns toReadOnly if these transaction modes include READ ONLY, toReadWrite if they include READ
// WRITE, and both if they include both.
func effectOfModes(modes []*pgquery.Node, toReadOnly, toReadWrite Effect) (e Effect) {
	for _, m := range modes {
		switch {
		case m.GetDefElem().GetDefname() != readOnly:
		case switchesOff(m.GetDefElem().Arg):
			e |= toReadWrite
		default:
			e |= toReadOnly
		}
	}
	return e
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
