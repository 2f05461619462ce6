package election

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// phase says how far a candidacy's attempt to lead has come. Whether anyone still needs
// the candidacy is another question (membership.ended): a candidacy that has ended leads until
// the release of its lease begins, and may still be superseded.
type phase uint8

const (
	// following means that the candidacy has no epoch. Every candidacy begins like this.
	// It may hold the lease already, while the fence is being asked for the grant. The
	// phase ends when the candidacy learns that it was granted an epoch, or that another
	// candidacy was and the fence therefore refuses the grant.
	following phase = iota
	// leading means that the candidacy has an epoch, and a lease that is granted and
	// trusted. Only now may its members write. The phase begins with the grant, or when
	// a lapsed lease is confirmed. It ends at the deadline of the lease, with its loss or
	// its release, or when another candidacy is granted an epoch.
	leading
	// lapsed means that the candidacy has an epoch but no lease that entitles it to lead.
	// The phase begins when the candidacy stops leading, or when it learns that another
	// candidacy with the same token was granted its epoch. It ends when the lease is
	// confirmed or acquired again, or when another candidacy is granted an epoch.
	lapsed
	// superseded means that another candidacy was granted a higher epoch, so that this
	// one can never lead again. The phase may begin at any time and does not end.
	superseded
)

var phaseNames = [...]string{"following", "leading", "lapsed", "superseded"}

func (p phase) String() string { return phaseNames[p] }

// leadership is what a candidacy has achieved in the election. Its methods are the only
// ones that change the phase. They panic if the change is impossible, which is a mistake
// of the caller.
type leadership struct {
	phase phase
	// epoch is the epoch that the candidacy was granted. It is not 0 while the candidacy
	// leads or is lapsed.
	epoch fencing.Epoch
	// led means that the candidacy has led before.
	led bool
	// supersededBy is the grant that superseded the candidacy. Until the record has been
	// read, it may be an older one.
	supersededBy fencing.Record
	removed      bool // it is superseded because an operator has removed the resource
	// lastLed is when the candidacy was last confirmed as the leader, as of the last lease
	// that it gave up or lost; 0 if it did not lead under that lease.
	lastLed time.Duration
	// lastEnded is how the term of that lease ended.
	lastEnded fencing.Ending
}

// hasEpoch records the epoch that the candidacy was granted. That alone does not make it
// lead.
func (s *leadership) hasEpoch(epoch fencing.Epoch) {
	s.epoch = epoch
	if s.phase == following && epoch > 0 {
		s.becomeLapsed()
	}
}

// becomeLeading records that the candidacy leads. It must have an epoch.
func (s *leadership) becomeLeading() { s.change(leading, lapsed) }

// becomeLapsed records that the candidacy has an epoch and does not lead.
func (s *leadership) becomeLapsed() { s.change(lapsed, following, leading) }

// becomeSuperseded ends the candidacy's attempts for good. by may be out of date; a later
// call replaces it.
func (s *leadership) becomeSuperseded(by fencing.Record) {
	s.change(superseded, following, leading, lapsed, superseded)
	if s.supersededBy.Epoch <= s.epoch {
		s.supersededBy = by
	}
}

// change changes the phase, which must be one of from.
func (s *leadership) change(to phase, from ...phase) {
	if !slices.Contains(from, s.phase) || (to == leading || to == lapsed) && s.epoch == 0 {
		panic(fmt.Sprintf("election: a candidacy that is %v with epoch %d cannot become %v", s.phase, s.epoch, to))
	}
	s.phase = to
}

// lead makes the candidacy lead if its lease now entitles it to.
func (s *state) lead(now time.Duration) {
	if s.phase == lapsed && s.held.leads(now) {
		s.becomeLeading()
	}
}

// stopLeading makes a leading candidacy lapse, because its lease is over.
func (s *state) stopLeading() {
	if s.phase == leading {
		s.becomeLapsed()
	}
}

// counts reports whether an epoch that the candidacy was granted counts, even if it has never led under it.
// That of a token does: no lower token leads again.
func (s *state) counts() bool { return s.led || s.token > 0 }

// noteLeadEnd notes when the candidacy was last confirmed as the leader, and how its term ends. It is
// called before the candidacy gives up a lease.
func (s *state) noteLeadEnd(now time.Duration, how fencing.Ending) {
	s.lastEnded = how
	switch {
	case !s.held.granted:
	case s.liveness.unresponsive:
		s.lastLed = now - s.liveness.quiet
	case s.phase == leading:
		s.lastLed = now
	default:
		s.lastLed = s.held.confirmedAt
	}
}

// checkDeadlineLocked makes a leading candidacy lapse if its lease is no longer trusted.
func (c *Candidacy) checkDeadlineLocked(now time.Duration) {
	if c.phase != leading || c.held.leads(now) {
		return
	}
	c.becomeLapsed()
	c.log.Warn("lapsed: the lease is not confirmed", zap.Int64("epoch", int64(c.epoch)))
	c.event(Event{Kind: EventLapsed})
	c.r.watcher.wake() // find out whether someone else was granted an epoch
}

// supersedeLocked ends the candidacy's attempts for good. by may be out of date.
func (c *Candidacy) supersedeLocked(by fencing.Record) {
	before := c.phase
	c.becomeSuperseded(by)
	if before == superseded {
		return
	}
	c.log.Info("superseded", zap.Int64("epoch", int64(c.epoch)),
		zap.Int64("current_epoch", int64(c.supersededBy.Epoch)), zap.String("current_worker", c.supersededBy.Worker))
	c.event(Event{Kind: EventSuperseded})
	moved := c.token > 0 && len(c.members) == 0 // whoever led by the token has left it for the next one
	if c.supersededBy.Worker == c.worker && !moved {
		c.r.mu.supersededSelf[c.worker] = struct{}{}
	}
}
