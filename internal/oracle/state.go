package oracle

import "strings"

// phase is where a session stands between transactions and in them.
type phase uint8

const (
	idle     phase = iota
	implicit       // in a transaction that ends with the Query or the batch
	block
	failed // a block that takes nothing but its end
)

// cover is what a transaction was given.
type cover uint8

const (
	uncovered cover = iota
	readCover
	fullCover
)

// state is one state in which the server may be. It is comparable: a set holds
// each once.
type state struct {
	phase phase
	cover cover
	depth int    // of savepoints, where read-only mode was set
	saves string // the names of the savepoints, each ended by a NUL
	// work: something ran in read-only mode, and may go on at the end (a cursor
	// WITH HOLD).
	work      bool
	noted     bool // something ran under a note alone
	pipelined bool // an Execute has run in this transaction since the last Sync
	skip      bool // the server skips up to a Sync
	bound     bool // the portal of a short check was bound with nothing in front of it
	copies    int  // it reads the data of so many COPYs
	byExecute bool // which an Execute began
	dead      bool // it reads nothing more
}

type set []state

func (x *set) add(s state) {
	for _, y := range *x {
		if y == s {
			return
		}
	}
	*x = append(*x, s)
}

// allIdle reports that there is a transaction in no state.
func (x set) allIdle() bool {
	for _, s := range x {
		if s.phase != idle {
			return false
		}
	}
	return true
}

// skips reports that what comes next is skipped or not read in every state.
func (x set) skips() bool {
	for _, s := range x {
		if !s.skip && !s.dead {
			return false
		}
	}
	return true
}

// ended is the state after the end of a transaction.
func (s state) ended() state {
	return state{skip: s.skip, dead: s.dead}
}

// running is the state in which a statement runs: a transaction has begun.
func (s state) running() state {
	if s.phase == idle {
		s = s.ended()
		s.phase = implicit
	}
	return s
}

// fail is the state after an error; extended says that it was an answer to a
// message of the extended protocol.
func (s state) fail(extended bool) state {
	switch s.phase {
	case idle, implicit:
		s = s.ended()
	default:
		s.phase = failed
	}
	s.copies, s.byExecute, s.bound = 0, false, false
	s.skip = s.skip || extended
	return s
}

// savepoint returns the place of the innermost savepoint of that name, -1 if
// there is none, and how many there are.
func (s state) savepoint(name string) (at, n int) {
	all := strings.Split(s.saves, "\x00")
	all = all[:len(all)-1]
	for at = len(all) - 1; at >= 0 && all[at] != name; at-- {
	}
	return at, len(all)
}

// backTo ends the subtransactions from the one at place at on, and keeps so many
// savepoints. Read-only mode that was set in one of them is undone.
func (s state) backTo(at, keep int) state {
	all := strings.SplitAfter(s.saves, "\x00")
	s.saves = strings.Join(all[:keep], "")
	if s.cover == readCover && s.depth > at {
		s.cover, s.depth = uncovered, 0
	}
	return s
}

// result is what becomes of the server by one statement: the states after its
// success, and after its error.
type result struct {
	ok, bad set
}

// place says where a statement stands.
type place struct {
	version  int
	extended bool // executed by a message
	among    bool // one of several in a text
}

// run is what a statement makes of a state in which it is executed.
func (s state) run(q *statement, p place) (r result) {
	bare := s // as it was in front of the statement
	s = s.running()
	s.bound = false
	if s.phase == failed {
		return s.runFailed(q, p)
	}
	r.bad.add(s.fail(p.extended))
	switch q.kind {
	case fails:
		if q.ends {
			t := s.ended()
			t.skip = t.skip || p.extended
			r.bad.add(t)
		}
		return r
	case opaque:
		for _, ph := range []phase{idle, implicit, block, failed} {
			t := s.ended()
			t.phase, t.noted, t.pipelined = ph, s.noted, s.pipelined && ph == implicit
			r.bad.add(t.fail(p.extended))
			if ph != failed {
				r.ok.add(t)
			}
		}
		return r
	case begin:
		s.phase = block
	case commit, rollback:
		s = s.end(q, p, &r)
	case outside:
		if q.savepoint {
			if s.phase != block {
				return r // refused
			}
			s.saves += q.name + "\x00"
		}
	case release, rollbackTo:
		at, _ := s.savepoint(q.name)
		if at < 0 || s.phase != block {
			return r
		}
		keep := at
		if q.kind == rollbackTo {
			keep++
		}
		s = s.backTo(at, keep)
	case check:
		if !q.check.passes() {
			return r
		}
		if !q.check.front || bare.phase == idle || bare.bound {
			s.cover = fullCover
		}
	case readOnly:
		if s.cover == uncovered {
			s.cover, s.depth = readCover, strings.Count(s.saves, "\x00")
		}
	}
	s = s.worked(q, p)
	r.ok.add(s)
	return r
}

// worked follows what a statement leaves besides the transaction's phase.
func (s state) worked(q *statement, p place) state {
	switch q.kind {
	case query, writes, commits, lone, opaque:
		s.work = s.work || s.cover == readCover
	}
	if q.unsets && s.cover == readCover && p.version < 16 {
		s.cover, s.depth = uncovered, 0
	}
	if q.copies {
		s.copies, s.byExecute = s.copies+1, p.extended
	}
	return s
}

// end is the state after a COMMIT or ROLLBACK. Outside a block it ends an implicit
// transaction all the same.
func (s state) end(q *statement, p place, r *result) state {
	if q.chain && s.phase != block {
		return s // refused, and the error is in r
	}
	t := s.ended()
	r.bad.add(t.fail(p.extended)) // a deferred constraint
	if q.chain {
		t.phase = block
	}
	return t
}

// runFailed is run in a failed block, where only its end does anything.
func (s state) runFailed(q *statement, p place) (r result) {
	r.bad.add(s.fail(p.extended))
	switch q.kind {
	case commit, rollback, twoPhase, fails: // PREPARE TRANSACTION rolls back
		if q.kind == fails && !q.ends {
			return r
		}
		t := s.ended()
		if q.chain {
			t.phase = block
		}
		r.ok.add(t)
	case rollbackTo:
		if at, _ := s.savepoint(q.name); at >= 0 {
			s.phase = block
			r.ok.add(s.backTo(at, at+1))
		}
	case nothing:
		r.ok.add(s) // an empty text
	case opaque:
		for _, ph := range []phase{idle, block} {
			t := s.ended()
			t.phase = ph
			r.ok.add(t)
		}
	}
	return r
}
