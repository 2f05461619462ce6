package sqltext

// Fate is what becomes of a statement in a session that may only read.
type Fate uint8

const (
	// Passes: it reads, or belongs to the session or to the transaction. The server keeps its transaction read-only.
	Passes Fate = iota
	// PassesIfProven: it reads. On 15, where a function can undo read-only mode, it passes if the catalog proves
	// it harmless.
	PassesIfProven
	// RefusedByServer: it is sent, and read-only mode refuses it.
	RefusedByServer
	// RefusedByText: it is not sent. Read-only mode would not stop it, or that is not certain.
	RefusedByText
	// RefusedAlways: it is not sent, not even for a leader.
	RefusedAlways
	// DependsOnName: it executes what was prepared by that name.
	DependsOnName
	// HandledByProxy: it is about a parameter of Fencepost's.
	HandledByProxy
)

// FateOf returns what becomes of a statement on a server that keeps a transaction read-only (16 and later), or on one
// that does not. A nil statement is one of which nothing is known.
func FateOf(st *Statement, keepsReadOnly bool) Fate {
	switch {
	case st == nil:
		return RefusedByText
	case st.Kind == Refused:
		return RefusedAlways
	case st.Kind == SetFence, st.Kind == ShowFence:
		return HandledByProxy
	case st.runsNothing():
		if st.Does(UnsetsReadOnly) && !keepsReadOnly {
			return RefusedByText
		}
		return Passes
	case st.Read && !keepsReadOnly && st.Does(Prepares):
		return RefusedByText
	case st.Read && !keepsReadOnly:
		return PassesIfProven
	case st.Read, st.Does(ReadsSince16) && keepsReadOnly:
		return Passes
	case !keepsReadOnly, st.Does(EvadesReadOnly):
		return RefusedByText
	case st.Command != NoCommand:
		return RefusedByServer
	case st.Does(Executes):
		return DependsOnName
	default:
		return RefusedByText
	}
}

// runsNothing reports whether a statement runs no query and calls no function, so that it can write
// nothing in any mode.
func (st *Statement) runsNothing() bool {
	switch st.Kind {
	case Session, Begin, Commit, Rollback, RollbackTo, Discard, Deallocate, ShowFence:
		return true
	default:
		return st.Does(UsesSavepoint)
	}
}
