package protocol

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// A client may choose by SET fencepost.resource for which resources its transactions are fenced: by SET LOCAL
// for one transaction, and by SET for the session. Its backend is registered for all of them, and for no other
// while the session is at rest.

// membership is a session's part in a candidacy, and what its client knows of that.
type membership struct {
	Candidacy
	epochs announced
	shown  fencing.Epoch // that SHOW shows
}

func newMembership(c Candidacy) membership {
	return membership{Candidacy: c, epochs: announced{current: c.Announced}}
}

// leads reports whether the worker leads, and the client knows that.
func (st *membership) leads() bool {
	now := st.Status()
	return now.CanWrite() && st.epochs.current == now.Epoch
}

// choice is what transactions are fenced for.
type choice struct {
	value string        // of fencepost.resource
	all   []*membership // in the order in which the client has named them
	local bool          // for one transaction
}

// choices is what a session knows of those that its client has made.
type choices struct {
	startup   choice
	session   *choice          // of the session; nil for the startup's
	local     *choice          // of the block in hand; nil for the session's
	block     blockMode        // of that block
	denied    *fencing.Refusal // of that block: what a write gets, because the backend was not registered
	deniedFor *membership      // for this one
	known     []*membership    // without that of the startup
}

// blockMode is what Fencepost has made of a block that has chosen.
type blockMode uint8

const (
	noBlock     blockMode = iota
	blockReads            // the block is READ ONLY
	blockWrites           // it is READ WRITE, and the backend is registered for its choice
)

// currentChoice is the choice that the transaction in hand is fenced for.
func (s *Session) currentChoice() *choice {
	switch c := &s.choices; {
	case c.local != nil:
		return c.local
	case c.session != nil:
		return c.session
	default:
		return &c.startup
	}
}

// leads reports whether the worker leads all resources that the transaction in hand is fenced for, and the client
// knows that.
func (s *Session) leads() bool { return s.config.Mode == ModeFenced && s.currentChoice().led() }

func (c *choice) led() bool {
	for _, st := range c.all {
		if !st.leads() {
			return false
		}
	}
	return true
}

// refusedMembership is the first membership because of which a write is refused, or the first of all if none is.
func (s *Session) refusedMembership() *membership {
	c := s.currentChoice()
	if s.choices.deniedFor != nil {
		return s.choices.deniedFor
	}
	if i := slices.IndexFunc(c.all, func(st *membership) bool { return !st.leads() }); i >= 0 {
		return c.all[i]
	}
	return c.all[0]
}

// isRegisteredFor reports whether the backend is registered for all resources of c.
func (s *Session) isRegisteredFor(c *choice) bool {
	for _, st := range c.all {
		if !slices.Contains(s.registered, st) {
			return false
		}
	}
	return true
}

// choiceToRegister is what the message in hand chooses for its block, or what its transaction is fenced for.
func (s *Session) choiceToRegister() *choice {
	if c := s.inHand.chosen; c != nil && c.local {
		return c
	}
	return s.currentChoice()
}

// unregisteredEpochs is what NeedRegister asks for.
func (s *Session) unregisteredEpochs() (all []AnnouncedEpoch) {
	for _, st := range s.choiceToRegister().all {
		if !slices.Contains(s.registered, st) {
			all = append(all, AnnouncedEpoch{st.Resource, st.epochs.current})
		}
	}
	return all
}

// registrationAnswered follows the answer to NeedRegister: r is why the backend is not registered for a resource, or
// nil.
func (s *Session) registrationAnswered(r *fencing.Refusal, resource string) {
	if r == nil {
		s.markRegistered()
		return
	}
	if s.superseded() { // what it writes is discarded
		return
	}
	s.inHand.denied = r
	if c := s.choiceToRegister(); c.local {
		i := slices.IndexFunc(c.all, func(st *membership) bool { return st.Resource == resource })
		s.choices.denied, s.choices.deniedFor = r, c.all[max(i, 0)]
	}
}

// markRegistered says that the backend is registered for what NeedRegister has asked for.
func (s *Session) markRegistered() {
	for _, st := range s.choiceToRegister().all {
		if !slices.Contains(s.registered, st) {
			s.registered = append(s.registered, st)
		}
	}
}

// choice returns the choice of these candidacies by the message in hand.
func (s *Session) choice(chosen []Candidacy) *choice {
	c := &choice{value: s.inHand.value, local: s.inHand.join.Local}
	for _, cand := range chosen {
		c.all = append(c.all, s.membershipOf(cand))
	}
	return c
}

// membershipOf returns what is known of a candidacy, which is new if nothing is.
func (s *Session) membershipOf(c Candidacy) *membership {
	if c.Resource == s.startup.Resource {
		return &s.startup
	}
	known := &s.choices.known
	for _, st := range *known {
		if st.Resource == c.Resource {
			return st
		}
	}
	st := newMembership(c)
	*known = append(*known, &st)
	return &st
}

// setSessionChoice has the session choose c from now on, nil for the resource of the startup.
func (s *Session) setSessionChoice(c *choice) {
	if c != nil && len(c.all) == 1 && c.all[0] == &s.startup && (c.value == "" || c.value == s.startup.Resource) {
		c = nil
	}
	if c == nil && s.choices.session == nil {
		return
	}
	s.choices.session, s.settings.shown = c, shown{}
	if c == nil {
		c = &s.choices.startup
	}
	s.emit(Event{Kind: EventChosen, Resources: c.resources()})
}

// transactionEnded follows the end of a transaction: what was chosen for it is over, and the backend keeps no
// registration for that.
func (s *Session) transactionEnded() {
	c := &s.choices
	c.local, c.block, c.denied, c.deniedFor = nil, noBlock, nil, nil
	if len(s.registered) == 0 || c.session == nil && len(c.known) == 0 {
		return
	}
	var over []string
	keep := s.currentChoice()
	s.registered = slices.DeleteFunc(s.registered, func(st *membership) bool {
		goes := !slices.Contains(keep.all, st)
		if goes {
			over = append(over, st.Resource)
		}
		return goes
	})
	if len(over) > 0 {
		s.emit(Event{Kind: EventUnregister, Resources: over})
	}
}

// role is the worker's role, as it is reported.
func (c *choice) role() string {
	role := fencing.Leader.String()
	for _, st := range c.all {
		switch now := shownRole(st.Status()); {
		case now == fencing.Superseded.String():
			return now
		case now != fencing.Leader.String():
			role = now
		}
	}
	return role
}

// epochs are those under which the worker may write, as they are reported. They are remembered as what SHOW shows.
func (c *choice) epochs() string {
	var text []byte
	for i, st := range c.all {
		if i > 0 {
			text = append(text, ", "...)
		}
		st.shown = shownEpoch(st.Status())
		text = strconv.AppendInt(text, int64(st.shown), 10)
	}
	return string(text)
}

// shownResource is the value of fencepost.resource.
func (c *choice) shownResource() string { return cmp.Or(c.value, c.all[0].Resource) }

func (c *choice) resources() []string {
	all := make([]string, len(c.all))
	for i, st := range c.all {
		all[i] = st.Resource
	}
	return all
}

// decideChoice decides about a SET of fencepost.resource or fencepost.token by its text and its place. alone says
// that nothing shares its text, or its batch.
func (s *Session) decideChoice(st *sqltext.Statement, alone bool) *fencing.Refusal {
	_, valid := fencing.ParseResources(st.Value)
	local := st.Does(sqltext.SetsLocally)
	switch {
	case s.config.Mode != ModeFenced:
		return fencing.SetRefusal(st.Name)
	case st.Name == "token":
		if r := fencing.SetTokenRefusal(st.Value, local); r != nil {
			return r
		}
		if !alone || s.txn != 'I' {
			return fencing.TokenInTransactionRefusal
		}
		if s.choices.session != nil {
			return fencing.ChosenParameterRefusal(st.Name)
		}
	case st.Does(sqltext.SetsCurrent):
		return fencing.InvalidResourcesRefusal("FROM CURRENT")
	case !valid, local && st.Value == "":
		return fencing.InvalidResourcesRefusal(st.Value)
	case local && s.txn != 'T' && !s.inBlockOfBatch():
		return fencing.ChooseLateRefusal
	case !local && (!alone || s.txn != 'I'):
		return fencing.ChooseInTransactionRefusal
	}
	return nil
}

// inBlockOfBatch reports whether the batch in hand may have begun a block.
func (s *Session) inBlockOfBatch() bool {
	x := &s.exchange
	return x.kind == batchExchange && (len(x.runs) > 0 || x.resumed)
}

// join asks for what SET fencepost.token or fencepost.resource wants, when it is about to run.
func (s *Session) join(st *sqltext.Statement, alone bool) (*fencing.Refusal, NeedKind) {
	switch {
	case s.inHand.refusal != nil:
		return s.inHand.refusal, NeedNothing
	case s.inHand.joined:
		return nil, NeedNothing
	}
	if r := s.decideChoice(st, alone); r != nil {
		return r, NeedNothing
	}
	if st.Name == "token" {
		token, _ := fencing.ParseToken(st.Value)
		s.inHand.join = JoinNeed{Token: token}
	} else {
		resources, _ := fencing.ParseResources(st.Value)
		if len(resources) == 0 {
			resources = []string{s.startup.Resource}
		}
		s.inHand.join, s.inHand.value = JoinNeed{Resources: resources, Local: st.Does(sqltext.SetsLocally)}, st.Value
	}
	return nil, NeedJoin
}

// blockNeed is what has to be done before the message in hand may choose for its block: the backend is registered if
// the worker leads, and the server says whether the block has run anything yet. It returns NeedNothing if that is done.
func (s *Session) blockNeed() NeedKind {
	c := s.inHand.chosen
	if c == nil || !c.local || s.inHand.blockUnused {
		return NeedNothing
	}
	if c.led() && !s.isRegisteredFor(c) && !s.inHand.registerAnswered && fencing.Checking {
		return NeedRegister
	}
	return NeedRoom
}

// blockSetup is the exchange of Fencepost's own that opens the block. SET TRANSACTION NOT DEFERRABLE fails with 25001
// in a block that has run a query, and in a savepoint, whatever its value was; its value only matters to a transaction
// that stays read-only.
func (s *Session) blockSetup() (o own) {
	c := s.inHand.chosen
	o.add(opensBlock, "SET TRANSACTION NOT DEFERRABLE")
	if s.isRegisteredFor(c) && c.led() {
		o.add(0, "SET TRANSACTION READ WRITE")
	} else {
		o.add(0, "SET TRANSACTION READ ONLY")
	}
	o.add(0, "SET LOCAL fencepost.role TO "+fencing.Literal(c.role()), "SET LOCAL fencepost.epoch TO "+fencing.Literal(c.epochs()))
	return o
}

// applyLocalChoice follows a statement that chooses for its block, before it is sent.
func (s *Session) applyLocalChoice() {
	c := s.inHand.chosen
	if c == nil || !c.local || s.choices.local == c {
		return
	}
	s.choices.local = c
	s.settings.shown = shown{valid: true, role: c.role(), epochs: c.epochs(), resource: c.shownResource(), inBlock: true}
	s.settings.unsure, s.choices.block = false, blockReads
	if c.led() && s.isRegisteredFor(c) {
		s.choices.block = blockWrites
	}
}

// executesChoice reports whether a statement is an EXECUTE of one that joins candidacies, which Fencepost would not see
// run.
func (s *Session) executesChoice(st *sqltext.Statement) bool {
	e := s.fenceStatements[st.Name]
	return st.Does(sqltext.Executes) && e != nil && joinsCandidacy(e.statement)
}
