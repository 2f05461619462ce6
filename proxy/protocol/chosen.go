package protocol

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// A client may choose by SET fencepost.resource for which resources its transactions are checked:
// for one transaction, or for the session. Whoever chooses nothing is checked for the candidacy of
// the startup, which Config describes, and pays nothing for this. A choice has one check for all of
// its resources, in the order of their fences. It also compares the choice with what the server has
// for fencepost.resource, so that nothing passes if the two should differ.

// Candidacy describes a candidacy that a session has joined besides that of its startup.
type Candidacy struct {
	Fence                 int32
	Resource, Incarnation string
	Status                func() *fencing.Status // as Config.Status
	Trouble               func() *fencing.Trouble
}

// Chosen is one of the resources that a SET fencepost.resource names.
type Chosen struct {
	// Resource is that of the Candidacy, which is zero for the resource of the startup and for
	// one that the machine knows.
	Resource  string
	Candidacy Candidacy
	// Announced is the epoch that the client knows when it has named the resource for the first
	// time; 0 for none.
	Announced fencing.Epoch
}

// standing is a resource that the client has named, and the epoch of it that the client knows.
type standing struct {
	Candidacy
	own bool // it is that of the startup: Config and announced have the rest

	told    fencing.Epoch // to the client
	before  fencing.Epoch // what it was when the transaction in which it changed last began
	changed uint64        // the number of that transaction
	pending fencing.Epoch // what a reply announces, once nothing of the client's is under way
	waits   bool          // there is something pending
}

// choice is what transactions are checked for instead of the candidacy of the startup.
type choice struct {
	value string      // of fencepost.resource
	named []*standing // in the order in which the client has named them
	all   []*standing // the same, in the order of their fences
	local bool        // for one transaction
}

// choices is what a session knows of those that its client has made.
type choices struct {
	base  *choice // of the session; nil for the candidacy of the startup
	known []*standing
	// before is what the base was, as long as it is not answered whether it has changed.
	before  *choice
	changes bool
	shown   *shownParameters // nil as long as nothing was chosen
	// subjects are those of the message in hand: memory for the next use.
	subjects []fencing.Subject
}

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

// chooseAnswer is what came of a SET fencepost.resource.
type chooseAnswer struct {
	value   string
	refusal *fencing.Refusal
	choice  *choice
}

// promise is an epoch that a reply announces.
type promise struct {
	standing *standing
	epoch    fencing.Epoch
}

// Told is an epoch that was announced to the client. Resource is "" for that of the startup.
type Told struct {
	Resource string
	Epoch    fencing.Epoch
}

// find returns what is known of a resource, nil if nothing is.
func (c *choices) find(resource string) *standing {
	for _, st := range c.known {
		if st.Resource == resource {
			return st
		}
	}
	return nil
}

// expect notes what a reply announces.
func (st *standing) expect(e fencing.Epoch) { st.pending, st.waits = e, true }

// learn takes e for what the client knows, from the transaction behind that number on.
func (st *standing) learn(e fencing.Epoch, number uint64) {
	if e != st.told && st.changed != number {
		st.before, st.changed = st.told, number
	}
	st.told = e
}

// of returns the epoch of st that counts in t.
func (t transaction) of(st *standing) fencing.Epoch {
	switch {
	case st.own:
		return t.announced
	case t.number > st.changed:
		return st.told
	default:
		return st.before
	}
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
func (m *Machine) aimed() Candidacy { return m.candidacy(m.inHand.aim.focus) }

// aim finds out by what the message in hand is decided. For one message it looks at each status
// once.
func (m *Machine) aim() {
	h, t := &m.inHand, &m.epochs.inHand
	switch {
	case t.choice == nil && h.aim.choice == nil:
		return
	case t.choice == nil:
		h.aim, h.status = aim{}, m.config.Status()
		return
	case h.aim.choice == t.choice && h.aim.number == t.number:
		return
	}
	a := aim{choice: t.choice, number: t.number, subjects: m.epochs.choices.subjects[:0]}
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
	h.aim, m.epochs.choices.subjects = a, a.subjects
}

// told is the epoch that counts for the message in hand.
func (m *Machine) told() fencing.Epoch {
	if m.inHand.aim.choice != nil {
		return m.inHand.aim.told
	}
	return m.epochs.inHand.announced
}

// chosen returns the check of what was chosen for the message in hand. ok is false if nothing was
// chosen, or if g is no check of epochs.
func (m *Machine) chosen(g injectedCheck) (sql string, ok bool) {
	a := &m.inHand.aim
	if a.choice == nil || g != fullCheck {
		return "", false
	}
	return fencing.ChosenCheckSQL(m.config.Worker, a.choice.value, a.subjects), true
}

// answerChoice takes what has come of a SET fencepost.resource.
func (m *Machine) answerChoice(a Answer) {
	made := chooseAnswer{value: m.inHand.choosing, refusal: a.Refusal}
	if a.Refusal == nil {
		made.choice = m.choiceOf(made.value, a.Chosen)
	}
	m.inHand.choices = append(m.inHand.choices, made)
}

// choiceOf returns the choice of these resources.
func (m *Machine) choiceOf(value string, chosen []Chosen) *choice {
	known := &m.epochs.choices
	c := &choice{value: value}
	if len(chosen) == 0 {
		chosen = []Chosen{{Resource: m.config.Resource}}
	}
	for i := range chosen {
		st := known.find(chosen[i].Resource)
		switch {
		case st != nil:
		case chosen[i].Resource == m.config.Resource:
			st = &standing{own: true, Candidacy: m.own()}
			known.known = append(known.known, st)
		default:
			st = &standing{Candidacy: chosen[i].Candidacy, told: chosen[i].Announced}
			known.known = append(known.known, st)
		}
		c.named = append(c.named, st)
	}
	c.all = slices.Clone(c.named)
	slices.SortFunc(c.all, func(a, b *standing) int { return cmp.Compare(m.candidacy(a).Fence, m.candidacy(b).Fence) })
	return c
}

// choose follows a statement that chooses, just before it is sent.
func (m *Machine) choose(s *statement) {
	value, local := s.chooses()
	for _, a := range m.inHand.choices {
		if a.value == value {
			m.epochs.choose(a.choice, local)
		}
	}
	m.aim()
}

// choose has transactions checked for c: that in hand, or all from now on.
func (a *announced) choose(c *choice, local bool) {
	if a.choices.shown == nil {
		a.choices.shown = &shownParameters{}
	}
	if local {
		made := *c
		made.local = true
		a.inHand.choice = &made
		if a.confirmed.number == a.inHand.number {
			a.confirmed.choice = &made
		}
		return
	}
	if len(c.all) == 1 && c.all[0].own {
		c = nil
	}
	if !a.choices.changes {
		a.choices.before, a.choices.changes = a.choices.base, true
	}
	a.rebase(c)
}

// rebase has the session choose c.
func (a *announced) rebase(c *choice) {
	a.choices.base, a.inHand.choice, a.confirmed.choice = c, c, c
}

// settleBase follows the ReadyForQuery behind a SET of the session's choice, which is undone if
// anything of its batch has failed.
func (a *announced) settleBase(failed bool) {
	if !a.choices.changes {
		return
	}
	before := a.choices.before
	a.choices.before, a.choices.changes = nil, false
	if failed {
		a.rebase(before)
	}
}

// chooses returns the value of fencepost.resource that s sets, which is "" if it resets it, and
// whether it does so for one transaction.
func (s *statement) chooses() (value string, local bool) {
	if s.info.Resets || s.discardsAll() {
		return "", false
	}
	return s.info.Value, s.info.Local
}

// resetsChoice reports whether the statement resets the session's choice, if there is one, with
// other settings: RESET ALL and DISCARD ALL.
func (q *situation) resetsChoice() bool {
	s := q.statement
	return q.mode == ModeFenced && q.carrier != prepared && (q.epochs.choices.base != nil || q.epochs.inHand.choice != nil) && (s.info.Resets || s.discardsAll())
}

// decideChoice is for a statement that chooses.
func (q *situation) decideChoice() decision {
	pass, _ := q.txn.Harmless(&q.statement.info, q.config.Version)
	if q.carrier == prepared {
		return passes(pass)
	}
	value, local := q.statement.chooses()
	if _, ok := fencing.ParseResources(value); !ok || local && value == "" {
		return refuses(fencing.InvalidResourcesRefusal(value))
	}
	switch d := q.decideAlone(); {
	case q.copy.stalls() && local:
		return refuses(fencing.ChooseLateRefusal)
	case local && q.pending.certain():
		return decision{action: answersFirst}
	case local && !q.mayChoose():
		return refuses(fencing.ChooseLateRefusal)
	case !local && q.carrier == among:
		return refuses(fencing.ChooseInsideRefusal)
	case !local && d.action == refuseFirst:
		return refuses(fencing.ChooseInsideRefusal)
	case !local && d.action != forward:
		return d
	}
	for _, a := range q.choices {
		switch {
		case a.value != value:
		case a.refusal != nil:
			return refuses(a.refusal)
		default:
			return decision{action: chooses, reason: pass}
		}
	}
	return needs(NeedJoin)
}

// mayChoose reports whether the transaction in hand, of which everything is answered, is a block in
// which nothing but BEGIN and settings has run.
func (q *situation) mayChoose() bool {
	return (q.txn.State() == gate.InBlock || q.chain.begun) && !q.chain.worked && q.txn.Coverage() == gate.Uncovered
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
	c := m.inHand.aim.choice
	if c == nil {
		return
	}
	e.more = &promises{}
	for i, st := range c.all {
		epoch := m.inHand.aim.subjects[i].Told
		if shows {
			epoch = m.inHand.aim.subjects[i].Held
		}
		if shows || epoch != 0 {
			e.more.all = append(e.more.all, promise{st, epoch})
		}
	}
	e.announces = len(e.more.all) > 0
}

// promises are what one reply announces.
type promises struct{ all []promise }

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

// isPending reports whether there is something to announce.
func (a *announced) isPending() bool {
	return a.hasPending || slices.ContainsFunc(a.choices.known, func(st *standing) bool { return st.waits })
}

// settleAll takes what is pending for what the client knows, and returns it.
func (a *announced) settleAll() (all []Told) {
	if a.hasPending {
		a.settle()
		all = append(all, Told{Epoch: a.current})
	}
	for _, st := range a.choices.known {
		if st.waits {
			st.learn(st.pending, a.number)
			st.waits = false
			all = append(all, Told{st.Resource, st.told})
		}
	}
	return all
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
	for _, c := range []*choice{m.epochs.inHand.choice, m.epochs.confirmed.choice} {
		if c != nil {
			for _, st := range c.all {
				resources = append(resources, m.candidacy(st).Resource)
			}
		}
	}
	return resources
}

// setChosenSQL gives the server the value that SHOW fencepost.<name> is to show under c.
func (m *Machine) setChosenSQL(name string, c *choice) string {
	shown := m.shown(c)
	v := map[string]string{"role": shown.role, "epoch": shown.epoch, "resource": c.value}[name]
	if c.local {
		return "SET LOCAL fencepost." + name + " TO " + fencing.Literal(v)
	}
	return "SET fencepost." + name + " TO " + fencing.Literal(v)
}

// focusOf is the resource that the message in hand is decided by, "" for that of the startup.
func (m *Machine) focusOf() string {
	return resourceOf(m.inHand.aim.focus)
}

// resourceOf is the resource of st, "" for that of the startup.
func resourceOf(st *standing) string {
	if st == nil || st.own {
		return ""
	}
	return st.Resource
}

// showsItsCheck reports whether the statement, which shows query texts, goes as extended messages
// behind the check of what was chosen, because the registry is not for it.
func (q *situation) showsItsCheck() bool {
	return q.aim.choice != nil && q.statement.info.MentionsQueryText && !q.batch.mayBeSkipped()
}
