package protocol

import (
	"cmp"
	"slices"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
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
	lastIn  uint64           // the number of the last transaction for which something was chosen
	shown   *shownParameters // nil as long as nothing was chosen
	aim     aim              // of the message in hand, or of an earlier one: memory for the next
}

// choosing is what is known of the message in hand that chooses.
type choosing struct {
	value   string // of the SET fencepost.resource that has a need
	local   bool   // it chooses for one transaction
	answers []chooseAnswer
}

// maxChoices bounds the values to which one text may set fencepost.resource. For each of them the
// text is decided about again from its beginning.
const maxChoices = 16

// answers are what came of the choices of the message in hand.
func (h *inHand) answers() []chooseAnswer {
	if h.choosing == nil {
		return nil
	}
	return h.choosing.answers
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

// answerChoice takes what has come of a SET fencepost.resource.
func (m *Machine) answerChoice(a Answer) {
	h := &m.inHand
	made := chooseAnswer{value: h.choosing.value, refusal: a.Refusal}
	if a.Refusal == nil {
		made.choice = m.choiceOf(made.value, a.Chosen)
	}
	h.choosing.answers = append(h.choosing.answers, made)
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

// choose follows a statement that chooses, just before it is sent. Everything before it has run,
// unless it stands among others in a text.
func (m *Machine) choose(s *statement, among bool) {
	value, local := s.chooses()
	for _, a := range m.inHand.answers() {
		if a.value == value {
			m.epochs.choose(a.choice, local)
		}
	}
	if !among {
		m.epochs.confirmed = m.epochs.inHand
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
		a.inHand.choice, a.choices.lastIn = &made, a.inHand.number
		if a.confirmed.number == a.inHand.number {
			a.confirmed.choice = &made
		}
		return
	}
	if len(c.all) == 1 && c.all[0].own && (c.value == "" || c.value == c.all[0].Resource) {
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
// anything of its batch has failed. It reports whether there was one.
func (a *announced) settleBase(failed bool) bool {
	if !a.choices.changes {
		return false
	}
	before := a.choices.before
	a.choices.before, a.choices.changes = nil, false
	if failed {
		a.rebase(before)
	}
	return true
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
	if q.statement.info.Current {
		return refuses(fencing.InvalidResourcesRefusal("FROM CURRENT"))
	}
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
	for _, a := range q.answers() {
		switch {
		case a.value != value:
		case a.refusal != nil:
			return refuses(a.refusal)
		default:
			return decision{action: chooses, reason: pass}
		}
	}
	if len(q.answers()) >= maxChoices {
		return refuses(fencing.TooManyChoicesRefusal)
	}
	return needs(NeedJoin)
}

// mayChoose reports whether the transaction in hand, of which everything is answered, is a block in
// which nothing but BEGIN and settings has run. What the server has said of its coverage counts, too:
// where the batch in hand began before that, the machine has not taken it over. Behind a COMMIT in the
// same text, it is about another transaction.
func (q *situation) mayChoose() bool {
	return (q.txn.State() == gate.InBlock || q.chain.had&hadBegin != 0) && q.chain.had&hadWork == 0 &&
		q.txn.Coverage() == gate.Uncovered && (q.txn.ServerCoverage() == gate.Uncovered || q.chain.adds&hadEnd != 0)
}

// keepsChoice reports whether the statement, in the batch in which the session has just chosen,
// leaves the transaction of that as it is. One that ended it, or made a block of it, could undo the
// choice on the server, or keep it there although the batch fails.
func (q *situation) keepsChoice() bool {
	if q.carrier != executed || !q.statement.known {
		return q.carrier == prepared
	}
	switch q.statement.info.Kind {
	case sqltext.Ordinary, sqltext.Session, sqltext.SetFence, sqltext.ShowFence:
		return true
	default:
		return false
	}
}

// promises are what one reply announces.
type promises struct{ all []promise }

// showsItsCheck reports whether the statement, which shows query texts, goes as extended messages
// behind the check of what was chosen, because the registry is not for it.
func (q *situation) showsItsCheck() bool {
	return q.aim != nil && q.statement.info.MentionsQueryText && !q.batch.mayBeSkipped()
}
