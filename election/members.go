package election

import (
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// membership is who needs a candidacy.
type membership struct {
	members map[fencing.Member]*member
	// campaigners is how many of the members campaign.
	campaigners int
	// retained, if not 0, is when the candidacy ends although its last campaigning
	// member has left in an orderly way, unless another one joins until then.
	retained time.Duration
	// ended means that no one needs the candidacy any more, or that Elections is being
	// closed. The lease is released, and the loop stops.
	ended bool
}

// member is what the loop knows about one connection.
type member struct {
	campaigns bool
	arrives   bool          // it campaigns once the candidacy was passed on to this process
	timeout   time.Duration // negative: the configured timeout; 0: never
	heartbeat time.Duration // how often it has promised to send something; 0: no promise
	reads     uint64        // as of the last sample
	seen      bool
}

func newMembership() membership {
	return membership{members: map[fencing.Member]*member{}}
}

// add adds a member, which may be one already.
func (s *membership) add(who fencing.Member, m member) {
	s.remove(who)
	s.members[who] = &m
	if m.campaigns {
		s.campaigners++
	}
}

// remove returns who was a member, nil if it was none.
func (s *membership) remove(who fencing.Member) *member {
	m := s.members[who]
	if delete(s.members, who); m != nil && m.campaigns {
		s.campaigners--
	}
	return m
}

// arrived has those campaign that were passed on to this process with the candidacy.
func (s *membership) arrived() {
	for _, m := range s.members {
		if m.arrives {
			m.arrives, m.campaigns = false, true
			s.campaigners++
		}
	}
}

// hasLike reports whether it is known that another member is like m, so that nothing is different with or without m.
func (s *membership) hasLike(m member) bool {
	for _, one := range s.members { // any one: mostly all are alike
		return one.campaigns == m.campaigns && one.timeout == m.timeout && one.heartbeat == m.heartbeat
	}
	return false
}

// needed reports whether a member campaigns, or whether the candidacy is retained after
// the last one has left.
func (s *membership) needed() bool {
	return !s.ended && (s.campaigners > 0 || s.retained != 0)
}

// endIfEmpty ends the candidacy if it has no members.
func (s *membership) endIfEmpty() { s.ended = s.ended || len(s.members) == 0 }

// expireRetention ends the retention if its time has come.
func (s *membership) expireRetention(now time.Duration) {
	if s.retained != 0 && now >= s.retained && s.campaigners == 0 {
		s.retained = 0
		s.endIfEmpty()
	}
}

// timeout returns the longest worker timeout of the campaigning members, 0 if one of
// them has none. configured is that of members that requested no timeout.
func (s *membership) timeout(configured time.Duration) time.Duration {
	var longest time.Duration
	for _, m := range s.members {
		timeout := m.timeout
		if timeout < 0 {
			timeout = configured
		}
		switch {
		case !m.campaigns:
		case timeout == 0:
			return 0
		default:
			longest = max(longest, timeout)
		}
	}
	return longest
}

// heartbeat returns the shortest heartbeat that a campaigning member has promised, 0 if none
// has. A promise is one of the worker, whose bytes count on all of its connections.
func (s *membership) heartbeat() (shortest time.Duration) {
	for _, m := range s.members {
		if m.campaigns && m.heartbeat > 0 && (shortest == 0 || m.heartbeat < shortest) {
			shortest = m.heartbeat
		}
	}
	return shortest
}

// conflictsWith reports whether req comes from another address than this candidacy of the same
// worker while both campaign: a worker id must name one process. An observer neither
// bars others nor is barred. An unresponsive candidacy does not bar anyone, because
// its client may have died silently; the new client then has a candidacy of its own, and
// the fence lets only one of the two write. Where workers bring tokens, those say who leads.
func (s *state) conflictsWith(req fencing.JoinRequest) bool {
	if s.user != req.User || s.client == req.Client || req.Campaign == fencing.CampaignOff || req.Token != 0 {
		return false
	}
	return s.campaigners > 0 && !s.isOver() && !s.liveness.unresponsive
}

// admitLocked makes m a member, unless the candidacy is over.
func (c *Candidacy) admitLocked(req fencing.JoinRequest, m fencing.Member) bool {
	campaigns := req.Campaign != fencing.CampaignOff
	arrives := campaigns && req.Arrives
	campaigns = campaigns && !arrives
	switch {
	case c.isOver() || c.user != req.User || c.token != req.Token:
		return false
	case c.client != req.Client:
		if campaigns {
			c.endRetentionLocked()
		}
		return false
	}
	if campaigns && c.campaigners == 0 {
		c.expectFirst()
	}
	one := member{campaigns: campaigns, arrives: arrives, timeout: req.WorkerTimeout, heartbeat: req.Heartbeat}
	if !c.hasLike(one) || c.liveness.unresponsive {
		poke(c.poke)
	}
	c.add(m, one)
	if campaigns {
		c.retained, c.liveness.quiet = 0, 0
	}
	return true
}

// endRetentionLocked ends the retention after a process has gone, because another
// process has connected under its worker id.
func (c *Candidacy) endRetentionLocked() {
	if c.retained == 0 {
		return
	}
	c.retained = 0
	c.endIfEmpty()
	c.departLocked()
	poke(c.poke)
}

// Leave implements fencing.Candidacy.
func (c *Candidacy) Leave(m fencing.Member, orderly bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.leaveLocked(m, orderly)
}

func (c *Candidacy) leaveLocked(m fencing.Member, orderly bool) {
	left := c.membership.remove(m)
	if left == nil || c.hasLike(*left) {
		return
	}
	defer poke(c.poke)
	if c.campaigners > 0 {
		return
	}
	if orderly && c.set.Linger > 0 && c.held.lease != nil && c.held.granted && !c.isOver() {
		c.retained = c.r.e.cfg.Now() + c.set.Linger
		return
	}
	c.endIfEmpty()
	c.departLocked()
}

// departLocked records that the lease, if there may be one, is about to be released. A
// first attempt of another candidacy then waits for the release instead of failing.
func (c *Candidacy) departLocked() {
	if c.held.lease != nil || c.requests.has(requestAcquire) || c.leftovers.uncertain || c.leftovers.unresponsive != nil {
		c.r.mu.departing[c] = struct{}{}
	}
}
