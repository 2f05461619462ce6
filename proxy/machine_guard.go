package proxy

import (
	"strconv"

	"github.com/fencepost/fencepost/fencing"
)

// guardExtended puts what s needs in front of an extended message that may run
// it.
func (m *machine) guardExtended(s *statement, p *plan) need {
	v, need, r := m.judge(s)
	switch v {
	case needsMoreFor:
		return need
	case checkFirst:
		m.runCheck(fullCheck, s, p)
		m.cover = fullCovered
	case readFirst:
		m.runCheck(readOnly, s, p)
		m.cover = readCovered
	case lapsedFirst:
		m.runOnce(m.lapsedSQL(), fullCheck, s, p)
		m.cover = fullCovered
	case refuseFirst:
		if m.endsBlock(r, s.text) {
			m.endBlock(r, s, p)
		} else {
			at := len(m.scratch)
			m.scratch = appendParse(m.scratch, m.checks.portal, raiseSQL)
			p.insert(m.scratch[at:])
			e := m.owed.push(parse, true)
			e.guard, e.refuse, e.stmt = refusal, r, s
		}
		m.open, m.ours, m.cover = true, true, fullCovered
	}
	return needNothing
}

// runCheck runs a prepared check by extended messages.
func (m *machine) runCheck(g guard, s *statement, p *plan) {
	m.checks.build(m.txTold, m.held())
	if m.reparses {
		at := len(m.scratch)
		m.scratch = appendCloseStatement(m.scratch, "")
		p.insert(m.scratch[at:])
		m.owed.push(closing, true)
	}
	if !m.checks.prepared {
		m.prepare(false, p)
		m.checks.build(m.txTold, m.held())
	}
	if !m.checks.usable(m.batch) {
		m.runOnce(m.checks.inline(g), g, s, p)
		return
	}
	p.insert(m.checks.run(g, m.inFront()))
	e := m.owed.push(run, true)
	e.guard, e.stmt, e.told, e.first = g, s, m.checks.held, m.repeat.first()
	m.open, m.ours = true, true
}

// inFront reports that the next message begins a transaction outside any block,
// with the session at rest: nothing can stand in front of it.
func (m *machine) inFront() bool { return m.bare && !m.open && m.quiet() }

// runOnce prepares, runs and forgets a text of ours. One that failed was not
// forgotten: the server skipped what stood behind it.
func (m *machine) runOnce(sql string, g guard, s *statement, p *plan) {
	at, name := len(m.scratch), m.checks.portal
	kinds := []kind{closing, parse, run, closing}
	if g == noGuard { // it never fails
		kinds = kinds[1:]
	} else {
		m.scratch = appendCloseStatement(m.scratch, name)
	}
	m.scratch = appendParse(m.scratch, name, sql)
	m.scratch = appendRun(m.scratch, name, name)
	m.scratch = appendCloseStatement(m.scratch, name)
	p.insert(m.scratch[at:])
	for _, k := range kinds {
		e := m.owed.push(k, true)
		e.guard, e.stmt, e.told = g, s, m.checks.held
	}
	m.open, m.ours = true, true
}

// held is the epoch that the candidacy holds now.
func (m *machine) held() fencing.Epoch {
	if st := m.standing(); st.May() {
		return st.Epoch
	}
	return 0
}

func (m *machine) lapsedSQL() string {
	return fencing.RefuseSQL(m.checks.fence, m.checks.worker, m.checks.incarnation, m.txTold, m.held(), true)
}

// prepare prepares the checks on the server, in the batch at hand. ahead says
// that it is one of our own.
func (m *machine) prepare(ahead bool, p *plan) {
	at := len(m.scratch)
	m.scratch = m.checks.appendPrepare(m.scratch, m.batch, ahead, &m.owed)
	p.insert(m.scratch[at:])
	m.open, m.ours = true, true
}

// closeChecks closes the checks in front of what lists prepared statements. They
// are prepared again for the next transaction.
func (m *machine) closeChecks(p *plan) {
	if !m.checks.sent() {
		return
	}
	at := len(m.scratch)
	m.scratch = m.checks.appendClose(m.scratch, &m.owed)
	p.insert(m.scratch[at:])
	m.checks.build(m.txTold, m.held())
}

// shows reports whether s shows a parameter of Fencepost's, which is set on the
// server right in front, so that the server itself answers in the right place.
func (m *machine) shows(s *statement) bool {
	return m.mode == fencedMode && s.known && s.info.Kind == fencing.ShowFence && !m.failed
}

// askFirst gives the candidacy the chance to lead before its role is told.
func (m *machine) askFirst(st *fencing.Standing) need {
	if st.Vacant && m.hasAsked < needDemand {
		return needDemand
	}
	return needNothing
}

func (m *machine) setExtended(s *statement, st *fencing.Standing, p *plan) {
	m.runOnce(m.setSQL(s.info.Name, st), noGuard, s, p)
}

// setSQL gives the server the value that SHOW fencepost.<name> is to show. SET
// takes no snapshot, so it may stand in front of anything.
func (m *machine) setSQL(name string, st *fencing.Standing) string {
	var v string
	switch name {
	case "role":
		v = shownRole(st)
	case "epoch":
		v = strconv.FormatInt(int64(shownEpoch(st)), 10)
	case "worker":
		v = m.checks.worker
	case "resource":
		v = m.checks.resource
	default:
		return "SELECT 1" // not ours: the server says what it thinks of it
	}
	return "SET fencepost." + name + " TO " + fencing.Literal(v)
}

// shownRole is what a worker is told of st.
func shownRole(st *fencing.Standing) string {
	if st.Role == fencing.Leader && !st.May() {
		return fencing.Follower.String()
	}
	return st.Role.String()
}

// shownEpoch is the epoch under which a worker that knows st may write.
func shownEpoch(st *fencing.Standing) fencing.Epoch {
	if st.May() {
		return st.Epoch
	}
	return 0
}

// tellBy marks a reply that tells the client an epoch.
func (m *machine) tellBy(e *reply, s *statement, st *fencing.Standing) {
	if m.mode != fencedMode || !s.known {
		return
	}
	switch {
	case s.info.Kind == fencing.ShowFence && (s.info.Name == "role" || s.info.Name == "epoch"):
		e.tells, e.told = true, shownEpoch(st)
	case s.info.Kind == fencing.SetFence && s.info.Name == "epoch":
		if n, err := strconv.ParseInt(s.info.Value, 10, 64); err == nil && n >= 0 {
			e.tells, e.told = true, fencing.Epoch(n)
		}
	}
}
