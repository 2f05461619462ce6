package oracle

// apply returns the states that a message leads to from each state in from: those after
// its success, and those after an error. judged means that the message is about to be
// sent, so its coverage is checked.
func (o *Observer) apply(from set, m *message, judged bool) (ok, bad set) {
	for _, s := range from {
		switch {
		case s.dead:
			ok.add(s)
		case s.copies > 0:
			o.applyInCopy(s, m, &ok, &bad)
		case s.skip:
			if m.typ == 'S' {
				o.applySync(s, m, false, &ok, &bad)
			} else {
				ok.add(s)
			}
		default:
			o.applyTo(s, m, judged, &ok, &bad)
		}
	}
	return ok, bad
}

// applyInCopy is apply while the server reads COPY data.
func (o *Observer) applyInCopy(s state, m *message, ok, bad *set) {
	switch m.typ {
	case 'd', 'H', 'S':
		ok.add(s)
	case 'c':
		if s.copies--; s.copies == 0 {
			s.byExecute = false
		}
		ok.add(s)
	case 'f':
		bad.add(s.fail(s.byExecute))
	default:
		s.dead = true
		bad.add(s)
	}
}

func (o *Observer) applyTo(s state, m *message, judged bool, ok, bad *set) {
	switch m.typ {
	case 'S':
		o.applySync(s, m, judged && !m.noted, ok, bad)
	case 'X':
		s.dead = true
		ok.add(s)
	case 'Q', 'F':
		o.applyText(s, m, judged, ok, bad)
	case 'P', 'B', 'D', 'E':
		o.applyExtended(s, m, judged, ok, bad)
	case 'C':
		ok.add(s)
		bad.add(s.fail(true))
	case 'H':
		if m.bad {
			bad.add(s.fail(true))
		} else {
			ok.add(s)
		}
	default:
		ok.add(s) // part of a COPY that has already ended
	}
}

// applySync is apply for a Sync. A Sync with a body is an error, but still ends the
// batch.
func (o *Observer) applySync(s state, m *message, judged bool, ok, bad *set) {
	s.skip = false
	if m.bad {
		s.pipelined = false
		bad.add(s.fail(false))
		return
	}
	for _, t := range o.concluded(s, place{resource: o.facts.Resource, version: o.facts.Version}, bad) {
		ok.add(o.endBatch(t, judged))
	}
}

// concluded returns the states after what an SQL EXECUTE that has run in s does to the
// transaction. The name that it gave may have been prepared again as a query, unseen.
func (o *Observer) concluded(s state, p place, bad *set) (all set) {
	q := s.afterwards
	s.afterwards = nil
	all.add(s)
	switch {
	case q == nil:
	case s.phase == failed: // an error in front of a COMMIT's end, for example
		all.add(s.ended())
	default:
		r := o.runOne(s, q, p)
		*bad = union(*bad, r.bad)
		all = union(all, r.ok)
	}
	return all
}

// endBatch ends a transaction outside a block.
func (o *Observer) endBatch(s state, judged bool) state {
	s.pipelined = false
	if s.phase != implicit {
		return s
	}
	if judged && s.work && s.cover == uncovered {
		o.complain("the end of a transaction that ran in a read-only mode which was undone: %s", s)
	}
	return s.ended()
}

var preparedNames = map[byte]string{'P': "a Parse", 'B': "a Bind", 'D': "a Describe"}

// applyExtended is apply for a message that refers to a statement.
func (o *Observer) applyExtended(s state, m *message, judged bool, ok, bad *set) {
	bad.add(s.fail(true))
	if m.bad {
		return
	}
	p := place{resource: o.facts.Resource, version: o.facts.Version, extended: true}
	may := m.mayIn(s)
	for i := range may {
		q := &may[i]
		if m.typ != 'E' {
			v := o.judgePrepared(s, q, preparedNames[m.typ])
			m.rests = m.rests || m.noted && v.why != ""
			if v.why != "" && judged && !m.noted {
				o.complain("%s", v.why)
			}
			// A statement that returns no rows can also be described in a failed block.
			if s.phase == failed && m.typ != 'D' && !endsFailed(q) || m.typ == 'P' && q.early {
				continue
			}
			t := s.running()
			t.bound = m.typ == 'B' && s.phase == idle && q.kind == check && q.check.front
			t.noted = t.noted || m.noted && v.why != ""
			ok.add(t)
			continue
		}
		v := o.judge(s, q, p)
		m.rests = m.rests || m.noted && v.why != ""
		if v.why != "" && !v.later && judged && !m.noted {
			o.complain("Execute of %s", v.why)
		}
		r := o.runOne(s, q, p)
		for _, t := range r.ok {
			t.pipelined = t.phase != idle && (t.pipelined || !q.empty && q.kind != begin)
			t.noted = t.noted || m.noted && v.why != "" && t.phase != idle
			ok.add(t)
		}
		*bad = union(*bad, r.bad)
	}
	switch {
	case len(may) > 0:
	case m.typ == 'E': // a cursor WITH HOLD, or an error
		ok.add(s.running())
	default: // Describe of a portal
		ok.add(s)
	}
}

// endsFailed reports whether a statement may be parsed and bound in a failed block.
func endsFailed(q *statement) bool {
	switch q.kind {
	case commit, rollback, rollbackTo, twoPhase, opaque:
		return true
	default:
		return q.empty || q.ends
	}
}

// runOne is run, except that another session's check counts as a query.
func (o *Observer) runOne(s state, q *statement, p place) result {
	if q.kind == check && q.check.chosen && !q.check.agrees(s.choice()) { // it compares them
		failing := *q
		failing.kind = fails
		return s.run(&failing, p)
	}
	if q.kind == check && !o.mine(s, q.check) {
		other := *q
		other.kind = query
		return s.run(&other, p)
	}
	return s.run(q, p)
}

// function is what a fast-path function call runs.
var function = []statement{{kind: writes}}

// applyText is apply for a Query or a function call.
func (o *Observer) applyText(s state, m *message, judged bool, ok, bad *set) {
	var failures set
	o.applyStatements(s, m, judged, ok, &failures)
	*bad = union(*bad, o.allConcluded(failures, place{resource: o.facts.Resource, version: o.facts.Version}, bad))
}

// applyStatements is applyText, except that an SQL EXECUTE in front of an error has not
// had its effect on the transaction yet. The replies received so far show how far the
// text got.
func (o *Observer) applyStatements(s state, m *message, judged bool, ok, bad *set) {
	all := m.may
	if m.typ == 'F' {
		all = function
	}
	if m.bad {
		bad.add(s.fail(false))
		return
	}
	p := place{resource: o.facts.Resource, version: o.facts.Version, among: len(all) > 1}
	passed, stopped := m.progress(all)
	if judged {
		passed, stopped = 0, -1
	}
	if passed == 0 {
		bad.add(s.fail(false)) // a syntax error
	}
	now := set{s}
	for i := range all {
		q, next := &all[i], set{}
		ran := i < passed || i == stopped && q.kind != lone || q.kind == opaque && i > 0 && i <= len(m.tags)
		for _, s := range now {
			v := o.judge(s, q, p)
			v.later = v.later || o.refused(all[:i])
			m.rests = m.rests || m.noted && v.why != "" && !v.later
			if v.why != "" && !m.noted && (judged && !v.later || v.later && ran) {
				o.complain("Query: %s", v.why)
			}
			r := o.runOne(s, q, p)
			if i >= passed {
				*bad = union(*bad, r.bad)
			}
			for _, t := range r.ok {
				t.noted = t.noted || m.noted && v.why != ""
				next.add(t)
			}
		}
		if i == stopped {
			return
		}
		now = next
	}
	for _, s := range o.allConcluded(now, p, bad) {
		if s.phase == implicit && s.pipelined && o.facts.Version >= 18 {
			ok.add(s) // PostgreSQL 18 continues the transaction of the batch
		}
		pipelined := s.pipelined
		t := o.endBatch(s, judged && !m.noted)
		t.pipelined = pipelined && t.phase != idle
		ok.add(t)
		if s.phase == implicit {
			bad.add(t) // a deferred constraint fails
		}
	}
}

// allConcluded is concluded for each state in from.
func (o *Observer) allConcluded(from set, p place, bad *set) (all set) {
	for _, s := range from {
		all = union(all, o.concluded(s, p, bad))
	}
	return all
}

// refused reports whether the statements in before begin with this session's check and
// contain a COMMIT, or something that may be one. The proxy sends such a text only if
// the registry has refused it, so whatever follows the COMMIT is wrong only if the
// check passes.
func (o *Observer) refused(before []statement) bool {
	if len(before) == 0 || before[0].kind != check || !before[0].check.chosen && !o.own(before[0].check) {
		return false
	}
	for i := range before {
		switch before[i].kind {
		case commit, rollback, opaque:
			return true
		}
	}
	return false
}

// progress returns how many statements of a Query are known to have succeeded, and
// which one has failed, or -1 if none has.
func (m *message) progress(all []statement) (passed, stopped int) {
	known := len(all)
	for i := range all {
		if all[i].kind == opaque {
			known = i
			break
		}
	}
	passed, stopped = min(len(m.tags), known), -1
	if m.failed && passed < known {
		stopped = passed
	}
	return passed, stopped
}

// exact reports whether every statement of a text is known.
func exact(all []statement) bool {
	for i := range all {
		if all[i].kind == opaque {
			return false
		}
	}
	return true
}
