package oracle

import (
	"cmp"
	"strings"
)

// phase is a session's position between and within transactions.
type phase uint8

const (
	idle     phase = iota
	implicit       // in a transaction that ends with the Query or the batch
	block
	failed // a block that accepts only its end
)

// cover is the coverage of a transaction.
type cover uint8

const (
	uncovered cover = iota
	readCover
	fullCover
)

// state is one state in which the server may be. It is comparable, so that a set
// contains each state once.
type state struct {
	phase phase
	cover cover
	depth int // number of savepoints when read-only mode was set
	// saves are the names of the savepoints, each followed by a NUL. unknownSaves stands for
	// any number of any names.
	saves string
	// work means that something ran in read-only mode that may continue at the end of
	// the transaction (a cursor WITH HOLD).
	work      bool
	noted     bool // something ran under a registration alone
	pipelined bool // an Execute has run in this transaction since the last Sync
	skip      bool // the server skips up to a Sync
	bound     bool // the portal of a short check was bound as the first statement
	copies    int  // number of COPYs whose data the server reads
	byExecute bool // an Execute began the COPY
	stale     bool // a check that asks has set the read-only mode
	dead      bool // the server reads nothing more
	// chosen is what the session has chosen by SET fencepost.resource, and was what it had chosen when
	// the transaction began. local is what the transaction has, if chooses.
	chosen, was, local string
	chooses            bool
	// afterwards is what an SQL EXECUTE that has run may do to the transaction at the
	// next Sync, or at the end of its text.
	afterwards *statement
}

// unknownSaves is what a text that cannot be read may have left: no savepoint has an empty
// name.
const unknownSaves = "\x00"

type set []state

func (x *set) add(s state) {
	for _, y := range *x {
		if y == s {
			return
		}
	}
	*x = append(*x, s)
}

// allIdle reports whether no state is within a transaction.
func (x set) allIdle() bool {
	for _, s := range x {
		if s.phase != idle {
			return false
		}
	}
	return true
}

// skips reports whether the next message is skipped or not read in every state.
func (x set) skips() bool {
	for _, s := range x {
		if !s.skip && !s.dead {
			return false
		}
	}
	return true
}

// ended returns the state after the end of a transaction.
func (s state) ended() state {
	return state{skip: s.skip, dead: s.dead, chosen: s.chosen, was: s.chosen}
}

// running returns the state in which a statement runs, after its transaction has begun.
func (s state) running() state {
	if s.phase == idle {
		s = s.ended()
		s.phase = implicit
	}
	return s
}

// fail returns the state after an error; extended means that the error answered a
// message of the extended protocol.
func (s state) fail(extended bool) state {
	switch s.phase {
	case idle, implicit:
		s.chosen = s.was
		s = s.ended()
	default:
		s.phase = failed
	}
	s.copies, s.byExecute, s.bound = 0, false, false
	s.skip = s.skip || extended
	return s
}

// savepoint returns the position of the innermost savepoint that has that name or may have
// it, -1 if there is none. unknown says that it is one of unknownSaves.
func (s state) savepoint(name string) (at int, unknown bool) {
	all := strings.Split(s.saves, "\x00")
	all = all[:len(all)-1]
	for at = len(all) - 1; at >= 0 && all[at] != name && all[at] != ""; at-- {
	}
	return at, at >= 0 && all[at] == ""
}

// backTo ends the subtransactions from position at on, and keeps that many savepoints.
// Read-only mode that was set in one of them is undone.
func (s state) backTo(at, keep int) state {
	all := strings.SplitAfter(s.saves, "\x00")
	s.saves = strings.Join(all[:keep], "")
	if s.cover == readCover && s.depth > at {
		s = s.undone()
	}
	return s
}

// undone returns the state without read-only mode.
func (s state) undone() state {
	s.cover, s.depth, s.stale = uncovered, 0, false
	return s
}

// readOnly returns the state in read-only mode.
func (s state) readOnly() state {
	if s.cover == uncovered {
		s.cover, s.depth = readCover, strings.Count(s.saves, "\x00")
	}
	return s
}

// result is the effect of one statement on the server: the states after its success,
// and those after an error.
type result struct {
	ok, bad set
}

// place describes where a statement is executed.
type place struct {
	resource string // of the startup
	version  int
	extended bool // by an Execute message
	among    bool // one of several in a text
}

// run returns the effect of a statement that is executed in s.
func (s state) run(q *statement, p place) (r result) {
	bare := s // the state before the statement
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
		s.runOpaque(p, &r)
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
		at, unknown := s.savepoint(q.name)
		if at < 0 || s.phase != block {
			return r
		}
		keep := at
		if q.kind == rollbackTo || unknown {
			keep++
		}
		s = s.backTo(at, keep)
	case check:
		if q.check.asks && q.said != saidCurrent {
			t := s.readOnly()
			t.stale = true
			r.ok.add(t)
		}
		if !q.check.passes() || q.said == saidStale {
			return r
		}
		if !q.check.front || bare.phase == idle || bare.bound {
			s.cover = fullCover
		}
	case readOnly:
		s = s.readOnly()
	}
	s = s.worked(q, p).chose(q, p)
	r.ok.add(s)
	return r
}

// choice returns what the server has for fencepost.resource, as far as the client has set it.
func (s state) choice() string {
	if s.chooses {
		return s.local
	}
	return s.chosen
}

// chose returns the state after a choice of the client's. The proxy lets none pass inside a block,
// but for those of its transaction, and none of these outside. A check from before it was for something
// else; to have set nothing means the resource of the startup.
func (s state) chose(q *statement, p place) state {
	before := s.choice()
	switch {
	case q.chooses == nil:
	case q.chooses.local:
		s.local, s.chooses = q.chooses.value, true
	default:
		s.chosen = q.chooses.value
		if q.chooses.lasts {
			s.was = s.chosen
		}
	}
	if s.cover == fullCover && cmp.Or(s.choice(), p.resource) != cmp.Or(before, p.resource) {
		s.cover = uncovered
	}
	return s
}

// runOpaque adds the effects of a statement that may end the transaction and begin others.
func (s state) runOpaque(p place, r *result) {
	for _, ph := range []phase{idle, implicit, block, failed} {
		t := s.ended()
		t.phase, t.noted, t.pipelined = ph, s.noted, s.pipelined && ph == implicit
		if ph == block || ph == failed {
			t.saves = unknownSaves
		}
		r.bad.add(t.fail(p.extended))
		if ph != failed {
			r.ok.add(t)
		}
	}
}

// worked records the lasting effects of a statement other than the phase.
func (s state) worked(q *statement, p place) state {
	switch q.kind {
	case query, writes, commits, lone, opaque:
		s.work = s.work || s.cover == readCover
	}
	if q.unsets && s.cover == readCover && p.version < 16 {
		s = s.undone()
	}
	if s.afterwards == nil { // a second one would end the session
		s.afterwards = q.afterwards
	}
	if q.copies {
		s.copies, s.byExecute = s.copies+1, p.extended
	}
	return s
}

// end returns the state after a COMMIT or ROLLBACK. Outside a block it still ends an
// implicit transaction.
func (s state) end(q *statement, p place, r *result) state {
	if q.chain && s.phase != block {
		return s // refused, and r has the error
	}
	t := s.ended()
	r.bad.add(t.fail(p.extended)) // a deferred constraint fails
	if q.chain {
		t.phase = block
	}
	return t
}

// runFailed is run in a failed block, in which only its end has an effect.
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
			if t.phase = ph; ph == block {
				t.saves = unknownSaves
			}
			r.ok.add(t)
		}
	}
	return r
}
