package election

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// publishLocked stores the new status if it has changed. The loop announces it to the
// members.
func (c *Candidacy) publishLocked(now time.Duration) {
	c.checkDeadlineLocked(now)
	next := fencing.Status{Epoch: c.epoch, Holder: c.r.mu.record, Fault: c.fault}
	switch c.phase {
	case superseded:
		next.Role, next.Removed = fencing.Superseded, c.removed
		if c.removed {
			next.Holder = c.supersededBy
		}
	case leading:
		next.Role = fencing.Leader
	default:
		next.Lapsed, next.Barred = c.phase == lapsed, c.barred
		next.Vacant = c.held.lease == nil && c.seen.observation.State == elector.Unresponsive
	}
	if next == *c.current.Load() {
		return
	}
	c.current.Store(&next)
	close(c.changed)
	c.changed = make(chan struct{})
	c.unannounced = true
	poke(c.poke)
	c.r.followLocked(now)
}

// announce calls StatusChanged of all members if they do not know the current status
// yet. Only the loop calls it, and it holds no lock while it calls the members.
func (c *Candidacy) announce() {
	c.r.mu.Lock()
	if !c.unannounced {
		c.r.mu.Unlock()
		return
	}
	c.unannounced = false
	if c.isOver() {
		c.r.mu.remove(c)
	}
	members := c.membersLocked()
	c.r.mu.Unlock()
	for _, m := range members {
		m.StatusChanged()
	}
}

func (c *Candidacy) membersLocked() []fencing.Member {
	members := make([]fencing.Member, 0, len(c.members))
	for m := range c.members {
		members = append(members, m)
	}
	return members
}

// event reports e under the candidacy's names. r.mu is held.
func (c *Candidacy) event(e Event) {
	e.Database, e.Resource = c.r.key.database, c.r.key.name
	e.Worker, e.Incarnation, e.Epoch = c.worker, c.incarnation, c.epoch
	c.r.e.cfg.Observe(e)
}

// knowledge says which worker knows its epoch at this proxy. One entry is enough for a
// resource, because the epoch is announced only to its holder.
type knowledge struct {
	user, worker string
	epoch        fencing.Epoch
	since        time.Time // the worker has read this epoch, or one directly before it, by then
}

func (k knowledge) of(c *Candidacy) bool { return k.user == c.user && k.worker == c.worker }

// reaches reports whether k's worker knows c's epoch e, or the one directly before e. No one else held an
// epoch between the two, because each grant takes a new number. With a token, others may have led under e
// itself before this worker did, so that only e counts.
func (k knowledge) reaches(c *Candidacy, e fencing.Epoch) bool {
	return k.of(c) && (k.epoch == e || c.token == 0 && k.epoch+1 == e)
}

// AnnouncementRead implements fencing.Candidacy.
func (c *Candidacy) AnnouncementRead(e fencing.Epoch, sent, read time.Time) {
	if st := c.Status(); !st.CanWrite() || st.Epoch != e {
		return // it was only claimed by the client, or is over already
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if !sent.After(c.ignoreBefore) {
		return // the worker had other connections that did not know
	}
	if k := c.r.mu.knowledge; k.reaches(c, e) {
		read = k.since
	}
	c.r.mu.knowledge = knowledge{c.user, c.worker, e, read}
}

// KnewAt implements fencing.Candidacy.
func (c *Candidacy) KnewAt(e fencing.Epoch, at time.Time) bool {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	k := c.r.mu.knowledge
	return k.reaches(c, e) && k.since.Before(at)
}

// ConnectionSuperseded implements fencing.Candidacy.
func (c *Candidacy) ConnectionSuperseded() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if c.r.mu.knowledge.of(c) {
		c.r.mu.knowledge = knowledge{}
	}
	now := time.Now()
	for _, other := range c.r.mu.byWorker[c.worker] {
		if other.user == c.user {
			other.ignoreBefore = now // what was announced to its connections before does not count
		}
	}
}
