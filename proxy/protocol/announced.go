package protocol

import (
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// announced follows which epoch the client knows. A write goes by what was announced
// before its transaction began, so that no client writes from what it has read as a
// follower.
type announced struct {
	current fencing.Epoch // announced to the client

	// inHand is the transaction that the client's next message belongs to, as long as
	// nothing fails; confirmed is the last of which the server has said so.
	inHand, confirmed transaction
	number            uint64 // of the last transaction that has begun
	endedIn           uint64 // the batch of the COMMIT or ROLLBACK that was sent last, by its id + 1
	ended             ended  // by the first one since confirmed

	// pending is what a reply announces, once nothing of the client's is under way.
	pending    fencing.Epoch
	hasPending bool

	choices choices
}

// transaction is what is known of one transaction of the client's.
type transaction struct {
	number    uint64        // they are counted
	announced fencing.Epoch // when it began
	choice    *choice       // nil if it is checked for the candidacy of the startup
}

// ended is the transaction that a COMMIT or ROLLBACK ends if it runs.
type ended struct {
	number uint64
	chain  chain
}

// begins follows a message that finds the session at rest: what runs from now on is a
// new transaction.
func (a *announced) begins() {
	a.ends()
	a.confirmed = a.inHand
}

// endsIn follows a COMMIT or ROLLBACK that was sent in a batch: what comes after it, if it
// runs at all, is a new transaction. c is the chain of the one that it ends.
func (a *announced) endsIn(batch uint64, c chain) {
	if a.inHand.number == a.confirmed.number {
		a.ended = ended{a.inHand.number, c}
	}
	a.ends()
	a.endedIn = batch + 1
}

func (a *announced) ends() {
	a.number++
	a.inHand = transaction{a.number, a.current, a.choices.base}
}

// mayGoOn follows what can revive a transaction after an error, such as ROLLBACK TO: a
// COMMIT that was sent in front of that error has not run. It has run if it stands in the
// same batch, because an error ends the batch. A COMMIT that is not answered yet counts as not
// run: the epoch that was announced before it is the stricter one, and where the choice differs,
// the message has waited (see unconfirmed). c is the chain of the transaction in hand.
func (a *announced) mayGoOn(batch uint64, c *chain) {
	if a.endedIn != batch+1 {
		a.revive(c)
	}
}

// revive takes back what followed the ends of transactions that are not confirmed. A chain that is
// not known any more is the one that allows the least.
func (a *announced) revive(c *chain) {
	adds := c.adds
	switch {
	case a.inHand.number == a.confirmed.number:
	case a.ended.number == a.confirmed.number:
		*c = a.ended.chain
	default:
		c.imported, c.had = true, hadBegin|hadWork
	}
	c.adds = adds
	a.inHand = a.confirmed
}

// unsure follows an Execute that may have run another statement than it seems: the COMMIT or ROLLBACK
// which it stands for may not have run, and it may have run one that nobody has seen.
func (a *announced) unsure(c *chain) {
	a.revive(c)
	c.had, c.adds, a.endedIn = hadWork, hadWork|hadUnsure, 0
}

// confirm follows what shows that t is the transaction in hand: a ReadyForQuery by which everything
// up to there has run, or the tag of a COMMIT or ROLLBACK. It reports whether t is new.
func (a *announced) confirm(t transaction) bool {
	if t.number <= a.confirmed.number {
		return false
	}
	a.confirmed = t
	if a.inHand.number < t.number {
		a.inHand = t
	}
	return true
}

// expect notes what a reply announces.
func (a *announced) expect(e fencing.Epoch) { a.pending, a.hasPending = e, true }

// rejoins follows the begin of another candidacy, between two transactions. e is what the
// client knows of it.
func (a *announced) rejoins(e fencing.Epoch) {
	a.current, a.hasPending = e, false
	a.inHand.announced, a.confirmed.announced = e, e
}

// settle takes what is pending for what the client knows.
func (a *announced) settle() { a.current, a.hasPending = a.pending, false }

// isPending reports whether there is something to announce.
func (a *announced) isPending() bool {
	return a.hasPending || len(a.choices.known) > 0 && slices.ContainsFunc(a.choices.known, func(st *standing) bool { return st.waits })
}

// settleAll takes what is pending for what the client knows, and returns it. Nothing is under way then, so
// the transaction is the one that is confirmed: a COMMIT that was skipped has begun none.
func (a *announced) settleAll() (all []Told) {
	if a.hasPending {
		a.settle()
		all = append(all, Told{Epoch: a.current})
	}
	for _, st := range a.choices.known {
		if st.waits {
			st.learn(st.pending, a.confirmed.number)
			st.waits = false
			all = append(all, Told{st.Resource, st.told})
		}
	}
	return all
}

// unconfirmed reports whether the transaction in hand may not have begun, and is checked for something
// else than one before it that may go on in its place.
func (a *announced) unconfirmed() bool {
	return a.inHand.choice != a.confirmed.choice || a.choices.lastIn > a.confirmed.number
}

// setSQL gives the server the value that SHOW fencepost.<name> is to show. SET
// takes no snapshot, so it may stand in front of anything.
func (m *Machine) setSQL(name string) string {
	if a := m.inHand.aim; a != nil && name != "worker" {
		return m.setChosenSQL(name, a.choice)
	}
	var v string
	st := m.inHand.status
	switch name {
	case "role":
		v = shownRole(st)
	case "epoch":
		v = strconv.FormatInt(int64(shownEpoch(st)), 10)
	case "worker":
		v = m.config.Worker
	default:
		v = m.config.Resource
	}
	return "SET fencepost." + name + " TO " + fencing.Literal(v)
}

// shownRole is what a worker is told of st.
func shownRole(st *fencing.Status) string {
	if st.Role == fencing.Leader && !st.CanWrite() {
		return fencing.Follower.String()
	}
	return st.Role.String()
}

// shownEpoch is the epoch under which a worker that knows st may write.
func shownEpoch(st *fencing.Status) fencing.Epoch {
	if st.CanWrite() {
		return st.Epoch
	}
	return 0
}

// announceBy marks a reply that tells the client an epoch.
func (m *Machine) announceBy(e *reply, s *statement) {
	if m.config.Mode != ModeFenced || !s.known {
		return
	}
	switch s.info.Kind {
	case sqltext.ShowFence:
		m.announceByShow(e, s)
	case sqltext.SetFence:
		m.announceBySet(e, s)
	}
}

// announceByShow is announceBy for SHOW fencepost.….
func (m *Machine) announceByShow(e *reply, s *statement) {
	switch {
	case s.info.Name != "role" && s.info.Name != "epoch":
	case m.inHand.aim != nil:
		m.announcesChosen(e, true)
	default:
		e.announces, e.announced = true, shownEpoch(m.inHand.status)
	}
}

// announceBySet is announceBy for SET fencepost.….
func (m *Machine) announceBySet(e *reply, s *statement) {
	switch s.info.Name {
	case "resource":
		m.announcesChosen(e, false)
	case "token":
		e.announces, e.announced = m.epochs.current != 0, m.epochs.current
	default:
		m.namesEpoch(e, s)
	}
}

// namesEpoch marks the reply to a statement by which the client itself says which epoch it knows.
func (m *Machine) namesEpoch(e *reply, s *statement) {
	if s.known && s.info.Kind == sqltext.SetFence && s.info.Name == "epoch" {
		if n, err := strconv.ParseInt(s.info.Value, 10, 64); err == nil && n >= 0 {
			e.announces, e.announced = true, fencing.Epoch(n)
		}
	}
}
