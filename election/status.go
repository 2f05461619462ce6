package election

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

// Resources returns what is known about every resource that has candidacies here, or
// had some recently, ordered by database and name. It sends no requests.
func (e *Elections) Resources() []status.Resource {
	resources := e.all()
	all := make([]status.Resource, 0, len(resources))
	for _, r := range resources {
		all = append(all, r.status())
	}
	slices.SortFunc(all, func(a, b status.Resource) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

// LedByTokens reports whether the workers of a resource that is known here are elected elsewhere, as was
// configured when it was first used here.
func (e *Elections) LedByTokens(database, resource string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.mu.resources[resourceKey{database, resource}]
	return r != nil && r.tokenProvider != nil
}

// all returns all resources.
func (e *Elections) all() []*resource {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.mu.resources))
}

func (r *resource) status() status.Resource {
	o, lost := r.e.lostOrder(r.key)
	r.mu.Lock()
	st := r.summaryLocked()
	for _, c := range r.mu.loops {
		st.Candidacies = append(st.Candidacies, c.statusLocked())
	}
	r.mu.Unlock()
	if lost {
		st.LostOrder = &o
	}
	slices.SortFunc(st.Candidacies, func(a, b status.Candidacy) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.User, b.User), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return st
}

// summaryLocked returns the status without the candidacies.
func (r *resource) summaryLocked() status.Resource {
	now, clock := r.e.cfg.Now(), time.Now()
	state := r.stateLocked(now)
	unusable := r.mu.unusable
	if r.lostLocked() {
		unusable = r.mu.lost
	}
	st := status.Resource{
		Database: r.key.database, Resource: r.key.name, Record: r.mu.record, State: state.State, Reason: state.Why,
		LeaseState: r.mu.observation.State, FalseAlarms: r.mu.falseAlarms, WatchError: r.mu.watchErr, Unusable: unusable, Orders: r.mu.inForce.Orders,
		Local: r.leaderLocked() == status.LeaderHere, BlockedBy: r.blockedByLocked(),
	}
	if state.Since != 0 {
		st.StateSince = clock.Add(state.Since - now)
	}
	if r.mu.asked != 0 {
		st.OrdersAsked = clock.Add(r.mu.asked - now)
	}
	if state.Until != 0 {
		st.LeaseLeft = max(0, state.Until-now)
	}
	if o := r.offerLocked(); o.IsActive(now) {
		st.Offered, st.OfferedUntil = o.Worker, clock.Add(o.Until-now)
	}
	if r.mu.holder != nil {
		st.LeaseState = elector.Held
		if term := r.mu.holder.termLocked(); term.Epoch != 0 {
			st.Holds, st.Margin = true, max(0, term.TrustedUntil-now)
		}
	}
	if state.State.NeedsNoLeader() {
		r.mu.NoLeaderNeededUntil = now
	} else if since := cmp.Or(r.mu.WantedSince(), state.Since); state.State.LacksLeader() && since != 0 {
		st.Leaderless = max(now-since, time.Millisecond) // 0 would mean that someone leads
	}
	return st
}

func (c *Candidacy) statusLocked() status.Candidacy {
	now := c.r.e.cfg.Now()
	return status.Candidacy{
		User: c.user, Worker: c.worker, Incarnation: c.incarnation, Status: *c.current.Load(),
		Members: len(c.members), Unresponsive: c.liveness.unresponsive, Retained: c.retained != 0, Observes: c.campaigners == 0, Campaigns: c.campaigns(),
		WorkerTimeout: c.allowedSilence(now), FalseAlarms: c.extension(now).Alarms,
		Silence: c.liveness.quiet, LongestSilence: c.liveness.longest, Heartbeat: c.heartbeat(),
	}
}

// servedWithin is how long the lease service may fail to serve a candidacy before the state of the resource says so.
const servedWithin = 5 * time.Second

// blockedByLocked returns what blocks the grants to candidacies of this proxy. r.mu is held.
func (r *resource) blockedByLocked() []string {
	if len(r.mu.loops) == 0 {
		return nil
	}
	return r.mu.fence.BlockedBy()
}

// candidacyStatesLocked collects the states of all candidacies. r.mu is held.
func (r *resource) candidacyStatesLocked(now time.Duration) (all status.Candidacies) {
	all.GrantBlocked = len(r.blockedByLocked()) > 0
	for _, c := range r.mu.loops {
		if c.fault != nil && c.lives() {
			all.Fault = c.fault
		}
		if err := c.ungrantedLocked(); err != nil && c.lives() {
			all.Ungranted = fmt.Errorf("nobody is granted an epoch: %w", err)
			all.Obstructed = all.Obstructed || c.requests.has(requestUnblock)
		}
		switch c.campaign(r.mu.observation.State) {
		case fencing.CandidateWaiting:
			all.Waiting = true
			if t := c.trouble(r.provider.Source(), false, now); t != nil && c.unserved != nil && now-c.unansweredSince >= servedWithin {
				all.Unserved = fmt.Errorf("nobody is given the lease: %s", t.Problem)
			}
		case fencing.CandidateBarred:
			all.Barred = c.barred
		case fencing.CandidateFrozen:
			if c.campaigns() {
				all.Frozen = fmt.Errorf("worker %s does not send the heartbeats that it has promised", fencing.ASCII(c.worker))
			}
		case fencing.CandidateIdle:
			all.Idle = all.Idle || c.campaigns()
		}
		if c.held.lease != nil && c.held.granted && now >= c.held.trusted {
			all.Unconfirmed = c.held.trusted
			if t := c.trouble(r.provider.Source(), r.mu.unreached, now); t != nil {
				all.UnconfirmedWhy = fmt.Errorf("the lease is not confirmed: %s", t.Problem)
			}
		}
	}
	return all
}

// knownLocked is what this proxy knows of the resource now. r.mu is held.
func (r *resource) knownLocked(now time.Duration) status.Known {
	all, leader := r.candidacyStatesLocked(now), r.leaderLocked()
	offer := r.offerLocked()
	k := status.Known{
		Leader: leader, History: r.mu.History, Candidacies: all,
		Unusable: r.mu.unusable, WatchErr: r.mu.watchErr, FailingSince: r.mu.failingSince,
		Paused: r.mu.inForce.Paused, PausedSince: r.mu.pausedSince, Resumed: r.mu.resumed,
		Offered: offer.IsActive(now), OfferBegins: offer.Begins,
		Holder: r.leaseHolderLocked(), FreeSince: r.mu.freeSince,
	}
	if r.lostLocked() {
		k.Lost = r.mu.lost
	}
	if r.mu.unreached && len(r.mu.loops) > 0 { // otherwise no one follows whether it answers
		k.Unreached = errUnreached
	}
	switch leader {
	case status.LeaderHere:
		k.LeaseUntil = r.mu.holder.termLocked().TrustedUntil
	case status.LeaderElsewhere:
		if p, ok := r.provider.(elector.Expirer); ok {
			k.LeaseUntil, k.AnswerWithin = p.ConfirmedUntil(r.key.name), r.settings().callTimeout()
		}
	}
	return k
}

// stateLocked returns the state of the resource. r.mu is held.
func (r *resource) stateLocked(now time.Duration) status.Shown {
	known := r.knownLocked(now)
	return known.At(now)
}
