package election

import (
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// notice is something that the loop reports to others once it holds no lock.
type notice uint8

const (
	noticeStatus      notice = 1 << iota // to the members: the status has changed
	noticeVacated                        // to the resource: this candidacy holds no lease now
	noticeFalseAlarm                     // to the resource: a false alarm
	noticeFenceFailed                    // to the resource: its fence cannot be used
	noticeHandedOver                     // to the resource: the leader has stopped for another worker
)

// outbox is the set of notices that have not been passed on yet.
type outbox notice

func (o *outbox) put(n notice) { *o |= outbox(n) }

// take removes a notice, and reports whether it was there.
func (o *outbox) take(n notice) bool {
	had := *o&outbox(n) != 0
	*o &^= outbox(n)
	return had
}

// publishLocked stores the new status if it has changed. The loop announces it to the
// members.
func (c *Candidacy) publishLocked(now time.Duration) {
	s := &c.mu.state
	c.checkDeadlineLocked(now)
	next := fencing.Status{Epoch: s.epoch, Holder: s.record, Fault: s.fault}
	switch s.phase {
	case superseded:
		next.Role, next.Removed = fencing.Superseded, s.removed
	case leading:
		next.Role = fencing.Leader
	default:
		next.Lapsed, next.Barred = s.phase == lapsed, s.barred
		next.Vacant = s.held.lease == nil && s.seen.observation.State == Unresponsive
	}
	if next == *c.current.Load() {
		return
	}
	c.current.Store(&next)
	close(s.changed)
	s.changed = make(chan struct{})
	s.outbox.put(noticeStatus)
	poke(c.poke)
}

// announceToResource passes on to the resource what the loop has found out. The loop holds no
// lock of its own while it does so.
func (c *Candidacy) announceToResource() {
	c.mu.Lock()
	o := &c.mu.outbox
	vacated, falseAlarm, fenceFailed := o.take(noticeVacated), o.take(noticeFalseAlarm), o.take(noticeFenceFailed)
	handedOver := o.take(noticeHandedOver)
	c.mu.Unlock()
	if handedOver {
		c.r.noteStopped()
	}
	if fenceFailed {
		c.r.reopenLater()
	}
	if falseAlarm {
		c.r.countFalseAlarm()
	}
	c.r.leaseChanged(c, vacated)
}

// announce calls StatusChanged of all members if they do not know the current status
// yet. Only the loop calls it, and it holds no lock while it calls the members.
func (c *Candidacy) announce() {
	c.mu.Lock()
	if !c.mu.outbox.take(noticeStatus) {
		c.mu.Unlock()
		return
	}
	over := c.overLocked()
	members := c.membersLocked()
	c.mu.Unlock()
	if over {
		c.r.forget(c)
	}
	c.r.followLeader()
	for _, m := range members {
		m.StatusChanged()
	}
}

// allMembers returns the members, who may be called without a lock.
func (c *Candidacy) allMembers() []fencing.Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.membersLocked()
}

func (c *Candidacy) membersLocked() []fencing.Member {
	members := make([]fencing.Member, 0, len(c.mu.members))
	for m := range c.mu.members {
		members = append(members, m)
	}
	return members
}

// event reports e under the candidacy's names. c.mu is held.
func (c *Candidacy) event(e Event) {
	e.Database, e.Resource = c.r.key.database, c.r.key.name
	e.Worker, e.Incarnation, e.Epoch = c.worker, c.incarnation, c.mu.epoch
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
