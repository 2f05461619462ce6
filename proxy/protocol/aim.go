package protocol

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/wire"
)

// shownParameters are the parameters as the client was told of them last.
type shownParameters struct{ resource, role, epoch string }

// aim is the choice that the message in hand is decided by, and the one of its candidacies that
// decides: the first that does not lead, if there is one.
type aim struct {
	choice   *choice
	number   uint64 // of the transaction
	focus    *standing
	told     fencing.Epoch
	subjects []fencing.Subject
}

// status returns the status of the candidacy of st.
func (m *Machine) status(st *standing) *fencing.Status {
	if st.own {
		return m.config.Status()
	}
	return st.Status()
}

// own is the candidacy of the startup.
func (m *Machine) own() Candidacy {
	c := &m.config
	return Candidacy{Fence: c.Fence, Resource: c.Resource, Incarnation: c.Incarnation, Status: c.Status, Trouble: c.Trouble}
}

// candidacy returns that of st, or that of the startup if st is nil.
func (m *Machine) candidacy(st *standing) Candidacy {
	if st == nil || st.own {
		return m.own()
	}
	return st.Candidacy
}

// aimed returns the candidacy that the message in hand is decided by.
func (m *Machine) aimed() Candidacy { return m.candidacy(m.focus()) }

// focus is what the message in hand is decided by, nil for the candidacy of the startup.
func (m *Machine) focus() *standing {
	if m.inHand.aim == nil {
		return nil
	}
	return m.inHand.aim.focus
}

// aim finds out by what the message in hand is decided.
func (m *Machine) aim() {
	if m.epochs.inHand.choice != nil || m.inHand.aim != nil {
		m.aimAtChoice()
	}
}

// aimAtChoice looks at each status once for one message.
func (m *Machine) aimAtChoice() {
	h, t := &m.inHand, &m.epochs.inHand
	switch {
	case t.choice == nil:
		h.aim, h.status = nil, m.config.Status()
		return
	case h.aim != nil && h.aim.choice == t.choice && h.aim.number == t.number:
		return
	}
	a := &m.epochs.choices.aim
	*a = aim{choice: t.choice, number: t.number, subjects: a.subjects[:0]}
	for _, st := range t.choice.all {
		s, told, c := m.status(st), t.of(st), m.candidacy(st)
		subject := fencing.Subject{Fence: c.Fence, Incarnation: c.Incarnation, Told: told, Claims: s.Holder.Guards > 0}
		if s.CanWrite() {
			subject.Held = s.Epoch
		}
		a.subjects = append(a.subjects, subject)
		if a.focus == nil || leads(h.status, a.told) && !leads(s, told) {
			a.focus, a.told, h.status = st, told, s
		}
	}
	h.aim = a
}

// told is the epoch that counts for the message in hand.
func (m *Machine) told() fencing.Epoch { return m.around.told() }

func (a *surroundings) told() fencing.Epoch {
	if a.aim != nil {
		return a.aim.told
	}
	return a.epochs.inHand.announced
}

// checksChoice reports whether g, for the message in hand, is a check that compares what the client has
// chosen with what the server has for fencepost.resource: in each session that has chosen once. It fails
// if the machine takes a transaction for another than the server does. Verdicts, and what runs without a
// check, such as a statement with its backend registered or a proven read, compare nothing.
func (m *Machine) checksChoice(g injectedCheck) bool {
	return m.epochs.choices.shown != nil && g == fullCheck
}

// chosenSQL is the check of what was chosen, or of the resource of the startup if nothing is.
func (m *Machine) chosenSQL() string {
	a := m.inHand.aim
	if a == nil {
		own := fencing.Subject{Fence: m.config.Fence, Incarnation: m.config.Incarnation, Told: m.epochs.inHand.announced, Held: m.held(), Claims: m.checks.claims}
		return fencing.UnchosenCheckSQL(m.config.Worker, m.config.Resource, own)
	}
	return fencing.ChosenCheckSQL(m.config.Worker, a.choice.value, a.subjects)
}

// shown returns what the client is told of its resource, role and epoch under c, which is nil for
// the candidacy of the startup.
func (m *Machine) shown(c *choice) shownParameters {
	if c == nil {
		st := m.shownStatus()
		return shownParameters{m.config.Resource, shownRole(st), strconv.FormatInt(int64(shownEpoch(st)), 10)}
	}
	role, epochs := fencing.Leader, make([]string, 0, len(c.named))
	for _, st := range c.named {
		s := m.status(st)
		switch {
		case s.Role == fencing.Superseded:
			role = fencing.Superseded
		case role == fencing.Leader && !s.CanWrite():
			role = fencing.Follower
		}
		epochs = append(epochs, strconv.FormatInt(int64(shownEpoch(s)), 10))
	}
	return shownParameters{cmp.Or(c.value, m.config.Resource), role.String(), strings.Join(epochs, ", ")}
}

// report makes the parameters that have changed since the client was last told of them.
func (m *Machine) report() []byte {
	d, was := &m.down, m.epochs.choices.shown
	if was == nil {
		return d.report(m.shownStatus())
	}
	if st := d.reported; st != nil && *was == (shownParameters{}) { // the first choice
		*was = shownParameters{m.config.Resource, shownRole(st), strconv.FormatInt(int64(shownEpoch(st)), 10)}
	}
	at, now := len(d.made), m.shown(m.epochs.confirmed.choice)
	for _, p := range [][3]string{{"resource", was.resource, now.resource}, {"role", was.role, now.role}, {"epoch", was.epoch, now.epoch}} {
		if p[1] != p[2] {
			d.made = wire.AppendParameterStatus(d.made, "fencepost."+p[0], fencing.ASCII(p[2]))
		}
	}
	*was = now
	return d.made[at:]
}

// announcesChosen marks the reply to a SHOW of role or epoch, or to what has chosen, with the epochs
// that it tells the client.
func (m *Machine) announcesChosen(e *reply, shows bool) {
	a := m.inHand.aim
	if a == nil {
		return
	}
	e.more = &promises{}
	for i, st := range a.choice.all {
		epoch := a.subjects[i].Told
		if shows {
			epoch = a.subjects[i].Held
		}
		if shows || epoch != 0 {
			e.more.all = append(e.more.all, promise{st, epoch})
		}
	}
	e.announces = len(e.more.all) > 0
}

// announces follows a reply that announces.
func (m *Machine) announces(e *reply) {
	if e.more == nil {
		m.epochs.expect(e.announced)
		return
	}
	for _, p := range e.more.all {
		m.expect(p.standing, p.epoch)
	}
}

// expect notes what a reply announces of st, which is nil for the candidacy of the startup.
func (m *Machine) expect(st *standing, e fencing.Epoch) {
	if st == nil || st.own {
		m.epochs.expect(e)
	} else {
		st.expect(e)
	}
}

// concerned returns the candidacy for a resource, as an error names it: one that was chosen, or else
// that of the startup.
func (m *Machine) concerned(resource string) *standing {
	if st := m.epochs.choices.find(resource); st != nil && !st.own {
		return st
	}
	return nil
}

// answering returns the candidacy because of which the transaction in hand may not write, as far as
// the server has answered: nil for that of the startup.
func (m *Machine) answering() *standing {
	t := m.epochs.confirmed
	if t.choice == nil {
		return nil
	}
	for _, st := range t.choice.all {
		if !leads(m.status(st), t.of(st)) {
			return st
		}
	}
	return t.choice.all[0]
}

// Checked returns the resources that the client has chosen for the transaction in hand, none if it
// is checked for that of the startup.
func (m *Machine) Checked() (resources []string) {
	return append(m.resources(m.epochs.inHand.choice), m.resources(m.epochs.confirmed.choice)...)
}

// resources are those of a choice, none of nil.
func (m *Machine) resources(c *choice) (resources []string) {
	if c != nil {
		for _, st := range c.all {
			resources = append(resources, m.candidacy(st).Resource)
		}
	}
	return resources
}

// setChosenSQL gives the server the value that SHOW fencepost.<name> is to show under c.
func (m *Machine) setChosenSQL(name string, c *choice) string {
	shown := m.shown(c)
	v := map[string]string{"role": shown.role, "epoch": shown.epoch}[name]
	if c.local {
		return "SET LOCAL fencepost." + name + " TO " + fencing.Literal(v)
	}
	return "SET fencepost." + name + " TO " + fencing.Literal(v)
}

// focusOf is the resource that the message in hand is decided by, "" for that of the startup.
func (m *Machine) focusOf() string {
	return resourceOf(m.focus())
}

// resourceOf is the resource of st, "" for that of the startup.
func resourceOf(st *standing) string {
	if st == nil || st.own {
		return ""
	}
	return st.Resource
}
