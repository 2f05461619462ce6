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
	timeout   time.Duration // negative: the configured timeout; 0: never
	heartbeat time.Duration // how often it has promised to send something; 0: no promise
	reads     uint64        // as of the last sample; guarded by Candidacy.samples
	seen      bool
}

func newMembership() membership {
	return membership{members: map[fencing.Member]*member{}}
}

func (s *membership) add(who fencing.Member, m member) {
	s.members[who] = &m
	if m.campaigns {
		s.campaigners++
	}
}

// remove reports whether who was a member.
func (s *membership) remove(who fencing.Member) bool {
	m, ok := s.members[who]
	if !ok {
		return false
	}
	if delete(s.members, who); m.campaigns {
		s.campaigners--
	}
	return true
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
func (c *Candidacy) conflictsWith(req fencing.JoinRequest) bool {
	if c.user != req.User || c.client == req.Client || req.Campaign == fencing.CampaignOff || req.Token != 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.campaigners > 0 && !c.overLocked() && !c.mu.liveness.unresponsive
}

// admit makes m a member, unless the candidacy is over. r.mu is held.
func (c *Candidacy) admit(req fencing.JoinRequest, m fencing.Member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	campaigns := req.Campaign != fencing.CampaignOff
	switch {
	case c.overLocked() || c.user != req.User || c.token != req.Token:
		return false
	case c.client != req.Client:
		if campaigns {
			c.endRetentionLocked()
		}
		return false
	}
	if campaigns && s.campaigners == 0 {
		s.expectFirst()
	}
	s.add(m, member{campaigns: campaigns, timeout: req.WorkerTimeout, heartbeat: req.Heartbeat})
	if campaigns {
		s.retained, s.liveness.quiet = 0, 0
	}
	poke(c.poke)
	return true
}

// endRetentionLocked ends the retention after a process has gone, because another
// process has connected under its worker id. r.mu is held too.
func (c *Candidacy) endRetentionLocked() {
	s := &c.mu.state
	if s.retained == 0 {
		return
	}
	s.retained = 0
	s.endIfEmpty()
	c.closeLocked()
	poke(c.poke)
}

// Leave implements fencing.Candidacy.
func (c *Candidacy) Leave(m fencing.Member, orderly bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.leave(m, orderly)
}

// leave is Leave. r.mu is held.
func (c *Candidacy) leave(m fencing.Member, orderly bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	if !s.remove(m) {
		return
	}
	defer poke(c.poke)
	if s.campaigners > 0 {
		return
	}
	if orderly && c.set.Linger > 0 && s.held.lease != nil && s.held.granted && !c.overLocked() {
		s.retained = c.r.e.cfg.Now() + c.set.Linger
		return
	}
	s.endIfEmpty()
	c.closeLocked()
}

// closeLocked records that the lease, if there may be one, is about to be released. A
// first attempt of another candidacy then waits for the release instead of failing.
// r.mu is held too.
func (c *Candidacy) closeLocked() {
	s := &c.mu.state
	if s.held.lease != nil || s.requests.has(requestAcquire) || s.leftovers.uncertain || s.leftovers.unresponsive != nil {
		s.closing = true
		c.r.mu.addDeparting(c)
	}
}

// isClosing reports whether the lease is about to be released. r.mu is held, because the
// answer may have changed a moment ago.
func (c *Candidacy) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closing
}
