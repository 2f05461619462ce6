package protocol

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/shadow"
)

// This file observes a session in ModePassing whose resource is in shadow. It decides about each
// statement as ModeFenced would, and records what that would have refused. It changes neither
// what is sent nor what is known of the session, except for the epoch that the client would have
// been told.

// observe looks at a statement about which q would decide if the session were fenced.
func (m *Machine) observe(known *situation) {
	w := m.config.Shadow
	t := shadow.Transaction{Number: m.epochs.inHand.number}
	if m.txn.Uncertain() {
		t.Batch = m.batch.id
	}
	w.Begin(t)
	s, txn := known.statement, m.txn
	if w.Checked() {
		txn.Send(gate.RunCheck, false)
	}
	hand := *known.inHand
	hand.done = NeedConfirm // nothing waits for the lease
	hand.catalog = m.catalogFor(s)
	around := *known.surroundings
	around.mode, around.txn, around.inHand = ModeFenced, &txn, &hand
	q := *known
	q.surroundings = &around
	d := q.decide()
	if q.carrier != prepared {
		m.observeEpoch(s)
	}
	if outlived, wrote := w.Outlived(q.status); outlived && d.reason != (gate.Reason{}) && !(s.known && s.info.Kind == sqltext.Rollback) && m.txn.State() != gate.Failed {
		r := *m.verdict(&q)
		r.Message += "; the grant would have waited for this transaction, and ended it after lease.grace"
		text, write := m.ofStatement(s)
		w.Tell(m.shadowed(&r, text, write || wrote))
		return
	}
	m.conclude(&q, d)
}

// conclude records what d would have done to the statement of q.
func (m *Machine) conclude(q *situation, d decision) {
	w, s := m.config.Shadow, q.statement
	text, write := m.ofStatement(s)
	switch d.action {
	case answerFirst:
		m.campaigns(q.status)
	case checkFirst, undoCheckFirst, lapsedFirst:
		r := m.verdict(q)
		switch {
		case r == nil:
			w.Pass()
		case m.campaigns(q.status):
			return // the worker may lead in a moment
		case w.Tells():
			w.Tell(m.shadowed(r, text, write))
		}
		if r != nil && r.SQLState == fencing.StateStartOver {
			m.epochs.current = q.status.Epoch // the refusal would have announced it
		}
	case refuseFirst:
		if !d.refusal.Usage && w.Tells() {
			w.Tell(m.shadowed(d.refusal, text, write))
		}
	case needsMoreFor:
		switch {
		case d.need == NeedCatalog:
			w.Refresh()
		case d.need == NeedRegister && q.carrier != prepared:
			r := m.shadowed(&fencing.Refusal{Message: "no check can stand in front of it: it would run with its backend registered, which a grant ends"}, text, write)
			r.Kind = fencing.KindRegistered
			w.Note(r)
		}
	}
	if write && w.Checked() {
		w.Wrote()
	}
}

// verdict is what a check in front of the statement would say, as far as this proxy knows.
func (m *Machine) verdict(q *situation) *fencing.Refusal {
	s := fencing.Standing{Resource: m.config.Resource, Worker: m.config.Worker, Nameless: m.config.Nameless, Status: q.status}
	if m.config.Trouble != nil {
		s.Trouble = m.config.Trouble()
	}
	return shadow.Verdict(s, m.config.Incarnation, q.told())
}

// campaigns has the candidacy try to lead, if the lease is vacant and the candidacy is not
// trying already.
func (m *Machine) campaigns(st *fencing.Status) bool {
	if !st.Vacant {
		return false
	}
	m.config.Shadow.Campaign()
	return true
}

// observeEpoch follows a SET fencepost.epoch, which Postgres runs.
func (m *Machine) observeEpoch(s *statement) {
	var e reply
	if m.namesEpoch(&e, s); e.announces {
		m.epochs.current = e.announced
	}
}

// shadowed is the record of what r would have refused.
func (m *Machine) shadowed(r *fencing.Refusal, text string, write bool) fencing.Rejection {
	return m.rejection(r, m.finding(), text, write)
}

// observeQuery observes a Query, which the machine itself does not look into.
func (m *Machine) observeQuery(text, body []byte) {
	if _, inert := gate.Inert('Q', body); inert || m.config.Shadow == nil {
		return
	}
	var one statement
	many := m.statementsOf(text, &one)
	if many == nil {
		m.describeOne(&one, text)
		m.observeOne(lone, &one, text)
		return
	}
	for i := range many.Statements {
		m.observeOne(among, oneOf(many, i, true), text)
	}
}

// observeOne observes a statement of a Query with this text.
func (m *Machine) observeOne(c carrier, s *statement, text []byte) {
	s.text = string(text)
	q := m.situation(c, s)
	m.observe(&q)
	m.observeEnd(s)
}

// observeEnd follows a statement of a Query.
func (m *Machine) observeEnd(s *statement) {
	m.chain.follow(s)
	if !s.known || s.ends() || s.info.EndsTransaction && m.txn.State() != gate.InBlock {
		m.config.Shadow.End() // a DO or CALL in a block cannot end it
	}
}

// Shadowed returns what was observed and not reported by FromServer.
func (m *Machine) Shadowed() []fencing.Rejection {
	if m.config.Shadow == nil {
		return nil
	}
	return m.config.Shadow.Found()
}

// reportShadow reports what was observed since the last reply.
func (m *Machine) reportShadow() {
	for _, r := range m.Shadowed() {
		m.down.happens(Event{Kind: EventRefused, Rejection: &r})
	}
}
