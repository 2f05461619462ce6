package sqltext

import "github.com/fencepost/fencepost/fencing"

// Explanation describes what becomes of one statement of a text.
type Explanation struct {
	SQL    string // the statement as written in the text
	Kind   Kind
	Read   bool   // it reads, as far as its text shows
	Reason string // why it is a read, or why not
	Leader string // what becomes of it in the session of a worker that leads
	// Reader is what becomes of it in a session that may only read, on a server from 16 on, and On15 on 15.
	Reader, On15 string
}

// Explain describes what becomes of each statement of sql, in a database with the catalog c, or nil if it is not
// known. A text that cannot be analysed has a single Explanation.
func Explain(sql string, c *fencing.Catalog) []Explanation {
	t := Analyze(sql, DefaultSettings)
	if !t.Known {
		one := Explanation{SQL: sql, Reason: t.why, Leader: "runs", Reader: fates[RefusedByText], On15: fates[RefusedByText]}
		if PreparesTransaction([]byte(sql)) {
			one.Leader = "may be refused with ZF005: the words PREPARE and TRANSACTION are in it"
		}
		return []Explanation{one}
	}
	all := make([]Explanation, len(t.Statements))
	for i := range t.Statements {
		st := &t.Statements[i]
		all[i] = Explanation{
			SQL: sql[st.Start:st.End], Kind: st.Kind, Read: st.Read, Reason: st.reason,
			Leader: leaders(st), Reader: readers(st, FateOf(st, true)), On15: on15(c, st),
		}
	}
	return all
}

var fates = [...]string{
	Passes: "passes", PassesIfProven: "passes if the catalog proves it harmless", RefusedByServer: "refused by Postgres, whose read-only mode stops it",
	RefusedByText: "refused before it is sent", RefusedAlways: "refused with ZF005",
	DependsOnName: "as what was prepared by that name; Postgres's read-only mode stops its writes",
}

// leaders is what becomes of a statement of a leader.
func leaders(st *Statement) string {
	switch st.Kind {
	case Refused:
		return fates[RefusedAlways]
	case ShowFence:
		return "Postgres answers it, behind a SET of Fencepost's own"
	case SetFence:
		return setFence(st)
	default:
		return "runs"
	}
}

// readers is what becomes of a statement in a session that may only read.
func readers(st *Statement, f Fate) string {
	if f == HandledByProxy {
		return leaders(st)
	}
	return fates[f]
}

// on15 is readers before 16.
func on15(c *fencing.Catalog, st *Statement) string {
	f := FateOf(st, false)
	if f != PassesIfProven || c == nil {
		return readers(st, f)
	}
	proven, why := Proven(c, st)
	if proven {
		return "passes: it is proven harmless"
	}
	return "refused before it is sent: " + why
}

// setFence is what becomes of a SET of one of Fencepost's parameters.
func setFence(st *Statement) string {
	switch st.Name {
	case "epoch":
		return "says which epoch the client knows"
	case "resource":
		return "chooses the resources of the session, or with LOCAL of the transaction"
	case "token":
		return "begins a candidacy with another token"
	default:
		return "refused: only fencepost.resource, fencepost.epoch and fencepost.token can be set"
	}
}
