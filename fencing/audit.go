package fencing

import (
	"encoding/json"
	"strings"
	"time"
)

// Rejection is what is known of one statement that was refused, by a check or by the
// proxy. A connection that names no resource has no worker and no epochs.
type Rejection struct {
	Time        time.Time // when the proxy learned of it
	Proxy       string    // the proxy's id
	Session     string    // the proxy's own id of the connection
	Database    string
	User        string
	Client      string // the client's address
	Resource    string
	Worker      string
	Incarnation string // of the candidacy

	// Announced is the epoch that was announced to the connection before the transaction
	// began, and Held the one that the candidacy was granted, as far as the proxy knows.
	// 0 means none.
	Announced, Held Epoch
	// Finding has the worker's epoch, the current one and its holder, as the check found
	// them in the database; or, if the proxy itself refused, as the proxy knows them.
	Finding

	Kind     RejectionKind
	SQLState string
	Message  string // what the client got, without the SQLSTATE at its end
	// Statement is the start of the client's text, with its literals: an Auditor that
	// records it must remove them. It is cut at 4 KiB, and empty if it is not known.
	Statement string
	Write     bool // the statement was not provably a read
	// Verb is the kind of a statement in shadow: the verb of SQL in upper case, VerbFunction or VerbConnection; empty
	// if it is not known.
	Verb string
	// Shadow: the statement ran. The rest says how it would have been refused.
	Shadow bool
}

// The kinds of what has no verb of SQL.
const (
	VerbFunction   = "function call" // by the fast path
	VerbConnection = "connection"    // the connection would be refused
)

// Summary returns the message of the audit line.
func (r *Rejection) Summary() string {
	refused := r.Kind.Summary(r.Write)
	if !r.Shadow {
		return refused
	}
	if r.Kind == KindStale {
		return strings.Replace(refused, " rejected", " would be rejected", 1)
	}
	return strings.Replace(refused, " refused", " would be refused", 1)
}

// Auditor receives each refused statement. Calls come one at a time, in the order in
// which each session's statements were refused, after the client got its reply. A slow
// Auditor delays the sessions whose statements are refused, and no others. It must not
// keep state that is only good while the session lasts.
type Auditor interface {
	Audit(Rejection)
}

// RejectionKind says what a refused statement met. It is a word of the audit log and the
// value of a metric's label.
type RejectionKind uint8

const (
	// KindStale: the statement belongs to an epoch that is over. Only this kind counts as a stale write.
	KindStale RejectionKind = iota
	// KindOrdered: an operator's order has ended the epoch of the statement, and no one was granted one since.
	KindOrdered
	// KindStartOver: the worker leads, and its connection or its transaction did not know that yet.
	KindStartOver
	// KindNotLeader: the worker does not lead, or its lease is not confirmed.
	KindNotLeader
	// KindUnfenceable: no check can protect the statement.
	KindUnfenceable
	// KindUnchecked: the fence could not be checked.
	KindUnchecked
	// KindUnfenced: the connection names no resource, so it may only read.
	KindUnfenced
	// KindDiscarded: the statement is a stale write that was not executed, and was answered
	// as one that changes nothing. KindOf does not return it.
	KindDiscarded
)

// KindOf returns the kind of a refusal with this SQLSTATE, on a connection for this
// resource, with what was found of the fence. The resource is empty if the connection names none.
func KindOf(resource, sqlstate string, f Finding) RejectionKind {
	switch {
	case resource == "":
		return KindUnfenced
	case sqlstate == StateSuperseded && f.Holder == "" && f.Current == f.Epoch+1:
		return KindOrdered
	case sqlstate == StateSuperseded:
		return KindStale
	case sqlstate == StateStartOver:
		return KindStartOver
	case sqlstate == StateNotLeader:
		return KindNotLeader
	case sqlstate == StateUnfenceable:
		return KindUnfenceable
	default:
		return KindUnchecked
	}
}

// String returns the kind as the value of a label.
func (k RejectionKind) String() string {
	switch k {
	case KindStale:
		return "stale"
	case KindOrdered:
		return "ordered"
	case KindStartOver:
		return "start_over"
	case KindNotLeader:
		return "not_leader"
	case KindUnfenceable:
		return "unfenceable"
	case KindUnfenced:
		return "unfenced"
	case KindDiscarded:
		return "discarded"
	default:
		return "unchecked"
	}
}

// Summary returns the message of the audit line of a statement that was refused for this
// reason. write says that the statement was not provably a read.
func (k RejectionKind) Summary(write bool) string {
	what := "read"
	if write {
		what = "write"
	}
	switch k {
	case KindStale:
		return "stale " + what + " rejected"
	case KindOrdered:
		return what + " refused: an operator's order has ended the lead of its worker"
	case KindStartOver:
		return what + " refused: its connection did not know that the worker leads"
	case KindNotLeader:
		return what + " refused: not the leader"
	case KindUnfenceable:
		return what + " refused: cannot be fenced"
	case KindUnfenced:
		return what + " refused: unfenced"
	case KindDiscarded:
		return "stale " + what + " discarded"
	default:
		return what + " refused: the fence cannot be checked"
	}
}

// Finding is what a refused registration has found in the database. No one but the database
// knows it at that moment.
type Finding struct {
	Epoch    Epoch  // the worker's own, as far as the connection, the proxy or the ledger knows
	Current  Epoch  // the highest granted one
	Holder   string // the worker that holds Current, "" if that is not known
	Resource string // whose fence that was, "" if the database has not said
}

// DecodeFinding reads the DETAIL of an error. ok is false if fencepost.refuse did not
// raise that error.
func DecodeFinding(detail string) (f Finding, ok bool) {
	var d struct {
		Resource      string  `json:"resource"`
		Epoch         Epoch   `json:"epoch"`
		CurrentEpoch  *Epoch  `json:"current_epoch"`
		CurrentWorker *string `json:"current_worker"`
	}
	if json.Unmarshal([]byte(detail), &d) != nil || d.CurrentEpoch == nil {
		return Finding{}, false
	}
	f = Finding{Resource: d.Resource, Epoch: d.Epoch, Current: *d.CurrentEpoch}
	if d.CurrentWorker != nil {
		f.Holder = *d.CurrentWorker
	}
	return f, true
}
