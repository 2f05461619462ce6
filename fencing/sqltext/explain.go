package sqltext

import "github.com/fencepost/fencepost/fencing"

// Explanation describes how one statement of a text is fenced.
type Explanation struct {
	SQL    string // the statement as written in the text
	Kind   Kind
	Read   bool   // may run on a connection of a worker that does not lead
	Reason string // why it is a read, or why not
	Check  string // where its transaction's check goes
	// Proven means that the catalog proves it harmless. If not, Unproven says why. Both
	// are zero without a catalog.
	Proven   bool
	Unproven string
	// Known means that the grammar accepted the text. If not, Reason says why.
	Known bool
}

// Explain describes how Fencepost classifies each statement of sql. A text that cannot
// be analysed has a single Explanation.
func Explain(sql string) []Explanation { return ExplainIn(sql, nil) }

// ExplainIn is Explain for a database with the catalog c, or nil if it is unknown.
func ExplainIn(sql string, c *fencing.Catalog) []Explanation {
	t := Analyze(sql, DefaultSettings)
	if quick, ok := Quick([]byte(sql)); ok && !t.Known { // one statement, whatever else it is
		return []Explanation{{SQL: sql, Kind: quick.Kind, Reason: t.why, Check: whereChecked(&quick, 1)}}
	}
	if !t.Known {
		return []Explanation{{SQL: sql, Kind: NonTransactional, Reason: t.why,
			Check: "on the control connection, and noted in the registry while it runs; refused with ZF005 if that cannot be"}}
	}
	all := make([]Explanation, len(t.Statements))
	var lock behindLock
	for i := range t.Statements {
		st := &t.Statements[i]
		all[i] = Explanation{SQL: sql[st.Start:st.End], Kind: st.Kind, Read: st.Read, Known: true,
			Reason: st.reason, Check: lock.place(st, whereChecked(st, len(t.Statements)))}
		lock.follow(st)
		if c != nil {
			all[i].Proven, all[i].Unproven = Proven(c, st)
		}
	}
	return all
}

// whereChecked returns where the check of a statement's transaction goes; of is the
// number of statements in its text.
func whereChecked(st *Statement, of int) string {
	switch st.Kind {
	case Session, Deallocate, RollbackTo:
		return noneOfItsOwn
	case Begin:
		return "behind it, in front of the transaction's first statement that could do anything"
	case Commit, Rollback:
		return "none in front; the next transaction is checked again"
	case NonTransactional:
		if of > 1 {
			return "in front of the text, once for the transaction; Postgres runs such a statement only by itself"
		}
		return "outside a block on the control connection, and noted in the registry while it runs"
	case Discard:
		return "none in front; what it dropped of the check is prepared again behind it"
	case Refused:
		return "nowhere: it is refused with ZF005"
	case ByMessage:
		return onceByMessages
	case ShowFence:
		return "none: Postgres answers it, after a SET in front of it"
	case SetFence:
		return setFencePlace(st)
	default:
		if st.EndsSavepoint {
			return noneOfItsOwn
		}
		if st.LocksTables {
			return "on the control connection, and noted in the registry, if nothing of the transaction was checked before; if nothing but settings came before, so is what follows"
		}
		return once
	}
}

const (
	noneOfItsOwn   = "none of its own: it may come before the transaction's check"
	once           = "in front, once for the transaction"
	onceByMessages = "in front, once for the transaction, by extended messages if it is the only statement of a Query"
	behindTheLock  = "none behind a LOCK TABLE with which the transaction begins: the backend stays noted in the registry; " +
		"in front, once for the transaction, if the resource guards tables, others are chosen, or a snapshot was imported"
)

// behindLock follows the transactions of a text, as far as LOCK TABLE begins them.
type behindLock struct{ locked, worked bool }

// place is where the check of st goes, which alone goes to the given place.
func (b *behindLock) place(st *Statement, alone string) string {
	if b.locked && !st.LocksTables && (alone == once || alone == onceByMessages) {
		return behindTheLock
	}
	return alone
}

// follow takes note of st.
func (b *behindLock) follow(st *Statement) {
	switch st.Kind {
	case Commit, Rollback:
		*b = behindLock{}
	case Begin, Session, SetFence, ShowFence:
	default:
		b.locked = b.locked || st.LocksTables && !b.worked
		b.worked = true
	}
}

// setFencePlace is where the check of a SET of one of Fencepost's parameters stands.
func setFencePlace(st *Statement) string {
	switch st.Name {
	case "epoch":
		return "none of its own: it announces the epoch that the next transactions write under"
	case "resource":
		return "none of its own: it chooses the resources for which the next transactions are checked, or with LOCAL this one"
	case "token":
		return "none of its own: it begins a candidacy with another token"
	default:
		return "nowhere: it is refused, because only fencepost.resource, fencepost.epoch and fencepost.token can be set in a session"
	}
}
