// Package shadow remembers, for one session of a resource with enforce: shadow, what the checks
// would have said if there were any. It does no I/O. Nothing that it finds changes a byte of the
// session.
package shadow

import "github.com/fencepost/fencepost/fencing"

// Watch follows the transactions of one session. It is guarded by the session's lock.
type Watch struct {
	// Campaign has the candidacy try to lead if the lease is vacant, and Refresh has the
	// database's catalog read again. They must not block, and may do nothing while an earlier
	// call of theirs is still at work.
	Campaign, Refresh func()

	transaction Transaction
	state       state
	writes      bool // the transaction had more than proven reads
	found       []fencing.Rejection
}

// Transaction tells the transactions of a session apart, as far as is known: Number counts those
// that the proxy is sure of. If it is not sure, because replies are pending, Batch counts
// the batches, each of which counts as a transaction.
type Transaction struct{ Number, Batch uint64 }

// state is what has become of the transaction in hand.
type state uint8

const (
	unchecked state = iota // nothing that would have been checked
	passed                 // the check would have passed
	told                   // it would have failed, and that was told
)

// Begin says which transaction the next message belongs to.
func (w *Watch) Begin(t Transaction) {
	if w.transaction != t {
		w.transaction = t
		w.End()
	}
}

// End says that the transaction in hand is over.
func (w *Watch) End() { w.state, w.writes = unchecked, false }

// Checked reports whether the transaction needs no further check.
func (w *Watch) Checked() bool { return w.state != unchecked }

// Pass says that the check would have passed.
func (w *Watch) Pass() { w.state = passed }

// Wrote says that a message of the transaction was not provably a read.
func (w *Watch) Wrote() { w.writes = true }

// Outlived reports whether the transaction began under an epoch and goes on under a higher one of
// another worker: the grant would have waited for its end. wrote says whether it wrote before.
func (w *Watch) Outlived(st *fencing.Status) (outlived, wrote bool) {
	return w.state == passed && st.Role == fencing.Superseded, w.writes
}

// Tells reports whether the transaction has not been told of yet.
func (w *Watch) Tells() bool { return w.state != told }

// Tell records what would have been refused. The rest of the transaction is not looked at.
func (w *Watch) Tell(r fencing.Rejection) {
	w.state = told
	w.Note(r)
}

// Note records something about one message. The transaction goes on.
func (w *Watch) Note(r fencing.Rejection) {
	r.Shadow = true
	w.found = append(w.found, r)
}

// Found returns what was recorded since the last call.
func (w *Watch) Found() []fencing.Rejection {
	found := w.found
	w.found = nil
	return found
}

// Verdict returns what a check would say in a transaction that began when announced was the
// epoch that the client knew: nil if it would pass.
func Verdict(s fencing.Standing, incarnation string, announced fencing.Epoch) *fencing.Refusal {
	st := *s.Status
	switch {
	case st.CanWrite() && announced == st.Epoch:
		return nil
	case st.CanWrite() && announced != 0: // the client has named another epoch
		st.Epoch = announced
	case st.Role != fencing.Superseded:
		return fencing.ReadOnlyRefusal(s.Resource, s.Worker, incarnation, s.Status).Explained(s)
	}
	return fencing.SupersededRefusal(s.Resource, s.Worker, incarnation, &st)
}
