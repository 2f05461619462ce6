package election

import "github.com/fencepost/fencepost/fencing"

// bars reports that the claim comes from another address than this candidacy of
// the same worker, while both campaign: a worker id must name one process. One
// that only observes bars nobody and is not barred; nor does one that gives no
// sign of life, whose client may be gone without a word. The newcomer then has a
// candidacy of its own, and of the two the fence lets one write.
func (c *Candidacy) bars(claim fencing.JoinRequest) bool {
	if c.user != claim.User || c.client == claim.Client || claim.Campaign == fencing.CampaignOff {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.campaignersLocked() > 0 && !c.overLocked() && !c.mu.liveness.unresponsive
}

// overLocked reports that nobody can join any more.
func (c *Candidacy) overLocked() bool { return c.mu.superseded || c.mu.ended }

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

// endRetentionLocked ends the wait for a process that has gone, because another
// one came under its worker id. r.mu is held as well.
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
	if s.superseded && k.campaigns {
		s.left[m] = k // whether it had come back is seen by its last sample
	}
	delete(s.members, m)
	defer poke(c.poke)
	if c.campaignersLocked() > 0 {
		return
	}
	if orderly && c.r.set.Linger > 0 && s.lease != nil && s.granted && !c.overLocked() {
		s.retained = c.r.e.cfg.Now() + c.r.set.Linger
		return
	}
	s.ended = s.ended || len(s.members) == 0
	c.closeLocked()
}

// closeLocked notes that the lease, if there may be one, is about to be given
// back: a first attempt of somebody else waits for it rather than lose against
// a goodbye. r.mu is held as well.
func (c *Candidacy) closeLocked() {
	s := &c.mu.state
	if s.lease != nil || s.acquiring || s.uncertain || s.unresponsive != nil {
		s.closing = true
		c.r.mu.departing[c] = struct{}{}
	}
}

// closes reports that the lease is about to be given back. r.mu is held: it is
// asked for what may have changed a moment ago.
func (c *Candidacy) closes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closing
}

// end makes the candidacy release its lease and stop, members or not.
func (c *Candidacy) end() {
	c.mu.Lock()
	c.mu.ended = true
	c.mu.Unlock()
	c.cancel()
	poke(c.poke)
}

// abandon gives up on a release.
func (c *Candidacy) abandon() { c.abandonFunc() }
