package evidence

import (
	"time"

	"github.com/fencepost/fencepost/fencing/evidence"
)

// kind says what is wrong with what a transaction wrote.
type kind string

const (
	// late: it was not visible to the grant of the next epoch.
	late kind = "late"
	// neverGranted: the ledger has no grant of the epoch to anyone.
	neverGranted kind = "never_granted"
)

// reason says why rows could not be verified.
type reason string

const (
	copiedLedger reason = "copied_ledger" // the next grant was recorded elsewhere
	pruned       reason = "pruned"        // the ledger begins later
	beforeGuard  reason = "before_guard"  // the rows are older than the trigger
	rewritten    reason = "rewritten"     // the rows have been written again as they were
	unguarded    reason = "unguarded"     // nothing stamped the rows of the table then
	wraparound   reason = "wraparound"    // the rows' transactions may not be what they seem
)

// wrap is how many transactions later a 32-bit id is used again, less those that may begin
// while a table is read.
const wrap = evidence.Xid(1<<32 - 1<<24)

// term is an epoch that was granted, as far as rows of that epoch can be checked.
type term struct {
	next    *evidence.Grant // nil: there is none yet
	reason  reason          // why rows cannot be compared with next, "" if they can
	skipped bool            // it ended before the time of interest
}

// judge judges the rows of one resource's tables.
type judge struct {
	grants []evidence.Grant // in the order of their epochs
	terms  map[int64]term   // without those that no one held
}

// newJudge returns a judge by the ledger of a resource. now is an id above that of every
// transaction that had committed. Epochs that ended before since are not checked.
func newJudge(grants []evidence.Grant, now evidence.Xid, since time.Time) judge {
	j := judge{grants: grants, terms: make(map[int64]term)}
	var oldest evidence.Xid // no row of this epoch has an older transaction
	for i, g := range grants {
		if !g.Copied {
			oldest = g.Snapshot.Xmin
		}
		if g.Worker == "" {
			continue
		}
		var t term
		if i+1 < len(grants) {
			t.next = &grants[i+1]
			t.skipped = t.next.At.Before(since)
			switch {
			case t.next.Copied:
				t.reason = copiedLedger
			case now > oldest+wrap:
				t.reason = wraparound
			}
		}
		j.terms[g.Epoch] = t
	}
	return j
}

// settled returns what need not be distinguished by transactions.
func (j judge) settled() evidence.Settled {
	s := make(evidence.Settled)
	for epoch, t := range j.terms {
		s[epoch] = evidence.All
		if t.next != nil && t.reason == "" && !t.skipped {
			s[epoch] = t.next.Snapshot.EndedBelow()
		}
	}
	return s
}

// verdict is the judgement of a group of rows. One of the fields is set, and next with late.
type verdict struct {
	verified  bool
	current   bool // of the newest epoch: there is no later grant to compare with
	skipped   bool
	unstamped bool
	unclear   bool // unless a subtransaction wrote them, they are verified
	reason    reason
	kind      kind
	next      *evidence.Grant // after which they were written
}

// rows judges rows of a table. An epoch of granted is one that was granted since the judge was
// made.
func (j judge) rows(t evidence.Facts, r evidence.Rows, granted map[int64]bool) verdict {
	if r.Stamp == nil {
		return verdict{unstamped: true}
	}
	of, known := j.terms[*r.Stamp]
	switch {
	case !known && granted[*r.Stamp]:
		return verdict{current: true}
	case !known:
		return j.unknown(t, *r.Stamp, *r.Xid)
	case of.next == nil:
		return verdict{current: true}
	case of.skipped:
		return verdict{skipped: true}
	case of.reason != "":
		return verdict{reason: of.reason}
	case r.Xid == nil:
		return verdict{verified: true}
	}
	return found(t, *r.Xid, of.next)
}

// unknown judges rows with a stamp that the ledger does not have, or that no one held.
func (j judge) unknown(t evidence.Facts, stamp int64, x evidence.Xid) verdict {
	if len(j.grants) > 0 && stamp > 0 && stamp < j.grants[0].Epoch {
		first := j.grants[0]
		if !first.Copied && first.Snapshot.Sees(x) == evidence.Open {
			return found(t, x, &first)
		}
		return verdict{reason: pruned}
	}
	if why := excuse(t, x); why != "" {
		return verdict{reason: why}
	}
	return verdict{kind: neverGranted}
}

// found judges rows of a transaction by the grant after their epoch.
func found(t evidence.Facts, x evidence.Xid, next *evidence.Grant) verdict {
	switch next.Snapshot.Sees(x) {
	case evidence.Ended:
		return verdict{verified: true}
	case evidence.Unclear:
		return verdict{unclear: true}
	}
	if why := excuse(t, x); why != "" {
		return verdict{reason: why}
	}
	return verdict{kind: late, next: next}
}

// excuse says why a transaction that seems to be wrong may be none that wrote under an epoch:
// it may have copied what was there.
func excuse(t evidence.Facts, x evidence.Xid) reason {
	switch {
	case x <= t.GuardMade:
		return beforeGuard
	case t.Rewritten && x <= t.Altered:
		return rewritten
	case t.Bared != 0 && x >= t.Bared:
		return unguarded
	}
	return ""
}
