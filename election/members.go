package election

import "github.com/fencepost/fencepost/fencing"

// bars reports whether claim comes from another address than this candidacy of the same
// worker while both campaign: a worker id must name one process. An observer neither
// bars others nor is barred. An unresponsive candidacy does not bar anybody, because
// its client may have died silently; the newcomer then has a candidacy of its own, and
// the fence lets only one of the two write.
func (c *Candidacy) bars(claim fencing.JoinRequest) bool {
	if c.user != claim.User || c.client == claim.Client || claim.Campaign == fencing.CampaignOff {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.campaignersLocked() > 0 && !c.overLocked() && !c.mu.liveness.unresponsive
}

// overLocked reports that nobody can join any more.
func (c *Candidacy) overLocked() bool { return c.mu.phase == superseded || c.mu.ended }

// admit makes m a member, unless the candidacy is over. r.mu is held.
func (c *Candidacy) admit(claim fencing.JoinRequest, m fencing.Member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	campaigns := claim.Campaign != fencing.CampaignOff
	switch {
	case c.overLocked() || c.user != claim.User:
		return false
	case c.client != claim.Client:
		if campaigns {
			c.endRetentionLocked()
		}
		return false
	}
	if campaigns && c.campaignersLocked() == 0 {
		if s.first != nil {
			closeOnce(s.first)
		}
		s.first = make(chan struct{})
	}
	s.members[m] = &member{campaigns: campaigns, timeout: claim.WorkerTimeout}
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
	s.ended = len(s.members) == 0
	c.closeLocked()
	poke(c.poke)
}

func (c *Candidacy) campaignersLocked() int {
	n := 0
	for _, m := range c.mu.members {
		if m.campaigns {
			n++
		}
	}
	return n
}

// Leave implements fencing.Candidacy.
func (c *Candidacy) Leave(m fencing.Member, orderly bool) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.mu.state
	k, ok := s.members[m]
	if !ok {
		return
	}
	if s.phase == superseded && k.campaigns {
		s.left[m] = k // its last sample will show whether it had come back
	}
	delete(s.members, m)
	defer poke(c.poke)
	if c.campaignersLocked() > 0 {
		return
	}
	if orderly && c.r.set.Linger > 0 && s.held.lease != nil && s.held.granted && !c.overLocked() {
		s.retained = c.r.e.cfg.Now() + c.r.set.Linger
		return
	}
	s.ended = s.ended || len(s.members) == 0
	c.closeLocked()
}

// closeLocked records that the lease, if there may be one, is about to be released. A
// first attempt of another candidacy then waits for the release instead of failing.
// r.mu is held too.
func (c *Candidacy) closeLocked() {
	s := &c.mu.state
	if s.held.lease != nil || s.requests.has(requestAcquire) || s.uncertain || s.unresponsive != nil {
		s.closing = true
		c.r.mu.departing[c] = struct{}{}
	}
}

// closes reports whether the lease is about to be released. r.mu is held, because the
// answer may have changed a moment ago.
func (c *Candidacy) closes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closing
}

// end makes the candidacy release its lease and stop, even if it has members.
func (c *Candidacy) end() {
	c.mu.Lock()
	c.mu.ended = true
	c.mu.Unlock()
	c.cancel()
	poke(c.poke)
}

// abandon gives up on a release.
func (c *Candidacy) abandon() { c.abandonFunc() }
