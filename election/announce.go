package election

import (
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// leadsLocked reports whether the candidacy leads, as far as this proxy knows.
func (c *Candidacy) leadsLocked(now time.Duration) bool {
	s := &c.mu.state
	return s.held.leads(now) && !s.requests.has(requestRelease) && !s.superseded
}

// publishLocked stores the new status if it has changed. The loop announces it to the
// members.
func (c *Candidacy) publishLocked(now time.Duration) {
	s := &c.mu.state
	leads := c.leadsLocked(now)
	next := fencing.Status{Epoch: s.epoch, Holder: s.record, Fault: s.fault}
	switch {
	case s.superseded:
		next.Role = fencing.Superseded
	case leads:
		next.Role = fencing.Leader
	default:
		next.Lapsed = s.epoch > 0
		next.Vacant = s.held.lease == nil && s.observation.State == Unresponsive
	}
	if next == *c.current.Load() {
		return
	}
	c.current.Store(&next)
	close(s.changed)
	s.changed = make(chan struct{})
	s.announced = false
	poke(c.poke)
	c.noteLocked(next, leads)
}

// noteLocked logs and reports what a new status means.
func (c *Candidacy) noteLocked(next fencing.Status, leads bool) {
	s := &c.mu.state
	was := s.wasLed
	s.wasLed = leads
	switch {
	case next.Role == fencing.Superseded && !s.noted:
		s.noted = true
		c.log.Info("superseded", zap.Int64("epoch", int64(s.epoch)),
			zap.Int64("current_epoch", int64(s.supersedeBy.Epoch)), zap.String("current_worker", s.supersedeBy.Worker))
		c.event(Event{Kind: EventSuperseded})
	case was && !leads && s.held.lease != nil && !s.requests.has(requestRelease):
		c.log.Warn("lapsed: the lease is not confirmed", zap.Int64("epoch", int64(s.epoch)))
		c.event(Event{Kind: EventLapsed})
		poke(c.r.wake) // find out whether somebody else was granted an epoch
	}
}

// announceToResource tells the resource what the loop has found out. The loop holds no
// lock of its own while it does so.
func (c *Candidacy) announceToResource() {
	c.mu.Lock()
	vacated, alarm, fenceFailed := c.mu.vacated, c.mu.alarm, c.mu.fenceFailed
	c.mu.vacated, c.mu.alarm, c.mu.fenceFailed = false, false, false
	c.mu.Unlock()
	if fenceFailed {
		c.r.reopenLater()
	}
	if alarm {
		c.r.countFalseAlarm()
	}
	c.r.settle(c, vacated)
}

// announce calls StatusChanged of all members if they do not know the current status
// yet. Only the loop calls it, and it holds no lock while it calls the members.
func (c *Candidacy) announce() {
	c.mu.Lock()
	if c.mu.announced {
		c.mu.Unlock()
		return
	}
	c.mu.announced = true
	over := c.overLocked()
	members := make([]fencing.Member, 0, len(c.mu.members))
	for m := range c.mu.members {
		members = append(members, m)
	}
	c.mu.Unlock()
	if over {
		c.r.forget(c)
	}
	for _, m := range members {
		m.StatusChanged()
	}
}

// event reports e under the candidacy's names. c.mu is held.
func (c *Candidacy) event(e Event) {
	e.Database, e.Resource = c.r.key.database, c.r.key.name
	e.Worker, e.Incarnation, e.Epoch = c.worker, c.incarnation, c.mu.epoch
	c.r.e.cfg.Observe(e)
}
