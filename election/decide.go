package election

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
)

// action is what a candidacy does next. All that begins with release gives back a lease, or what may be one.
type action uint8

const (
	nothing action = iota
	answer         // end the wait of those who asked for an attempt: they find its result in the status
	acquire
	grant // turn the lease into an epoch
	renew
	releaseUnneeded  // no one needs the lease that is held, or it cannot be led by any more
	releaseDisputed  // the database contradicts the candidacy's term
	releaseUnreached // the database does not answer, so the lease is of no use here
	releaseSilent    // the worker is unresponsive
	releaseOffered   // the resource is handed over to another worker
	releaseUncertain // an Acquire whose answer was lost may have got a lease
	releaseStray     // the watch shows that it did
	releaseVacant    // the worker of a lease that was released as unresponsive has gone
)

var actionNames = [...]string{
	"nothing", "answer", "acquire", "grant", "renew", "release: unneeded", "release: disputed", "release: unreached", "release: silent",
	"release: offered", "release: uncertain", "release: stray", "release: vacant",
}

func (a action) String() string { return actionNames[a] }

// isOver reports that the candidacy can never lead (again): it is superseded or ended.
func (s *state) isOver() bool { return s.phase == superseded || s.ended }

// lives reports whether the candidacy is needed and may still lead.
func (s *state) lives() bool { return s.needed() && s.phase != superseded }

// eligible reports whether the candidacy may lead and its worker is responsive.
func (s *state) eligible() bool { return s.lives() && !s.liveness.unresponsive }

// next decides what the candidacy does at this time. It changes nothing, and is asked again after each action
// until it returns nothing.
func (s *state) next(now time.Duration) action {
	switch {
	case s.move.holds():
		return nothing
	case s.isOver() && s.asked():
		return answer
	case s.requests.has(requestAcquire), s.requests.has(requestRelease): // its result decides what follows
		return nothing
	case s.held.lease != nil:
		return s.nextHolding(now)
	case s.isOver() && s.leftovers.uncertain:
		return releaseUncertain
	case s.leftovers.strayed(s.seen.observation, s.incarnation) && !s.eligible():
		return releaseStray
	case s.leftovers.unresponsive != nil && !s.lives():
		return releaseVacant
	default:
		return s.nextFollowing(now)
	}
}

// nextHolding decides what a held lease needs.
func (s *state) nextHolding(now time.Duration) action {
	switch {
	case !s.lives():
		return releaseUnneeded
	case s.disagrees:
		return releaseDisputed
	case s.seen.unreached:
		return releaseUnreached
	case s.liveness.unresponsive && s.held.granted:
		return releaseSilent
	case s.held.granted && s.token == 0 && s.seen.offer.Stops(s.worker, now):
		return releaseOffered
	case s.held.granted && s.asked():
		return answer
	case !s.held.granted && !s.requests.has(requestGrant) && now >= s.held.grantAt:
		return grant
	case !s.requests.has(requestRenew) && now >= s.held.renewAt:
		return renew
	default:
		return nothing
	}
}

// nextFollowing decides whether it is time to try for the lease. If an attempt that someone waits for is pointless, it
// ends their wait.
func (s *state) nextFollowing(now time.Duration) action {
	giveUp := nothing
	if s.asked() {
		giveUp = answer
	}
	switch {
	case !s.eligible(), s.retained != 0, s.seen.unreached, now < s.barredUntil, s.seen.offer.Excludes(s.worker, now):
		return giveUp
	case s.token > 0: // with a token, no other holder has to release first
		return s.tryIf(s.firstExpected() || now >= s.tryAt)
	case s.seen.departing: // it releases first, and then wakes this loop
		return nothing
	case s.seen.taken:
		return giveUp
	case s.reclaim.Pending():
		if !s.reclaim.Waits(now) && s.asked() {
			return answer
		}
		return s.tryIf(now >= s.reclaim.At)
	case s.firstExpected(), // whatever the watch saw may be out of date
		len(s.demanded) > 0 && s.seen.observation.State != elector.Held:
		return acquire
	case s.asked():
		return answer
	default:
		return s.tryIf(now >= s.tryAt && s.isWorthTrying(now))
	}
}

func (s *state) tryIf(due bool) action {
	if due {
		return acquire
	}
	return nothing
}

// isWorthTrying reports whether the candidacy may get the lease although no one asks for it now.
func (s *state) isWorthTrying(now time.Duration) bool {
	switch s.seen.observation.State {
	case elector.Freed:
		return true
	case elector.Unresponsive:
		return s.waiters > 0 || s.epoch > 0 || s.seen.offer.Invites(s.worker, now)
	case elector.Held: // by a lost response of this candidacy, or the observation is old
		return s.seen.watchFailing || s.seen.observation.Incarnation == s.incarnation
	default: // elector.Unseen
		return s.seen.watchFailing
	}
}

// idleStep is the longest time between two steps.
const idleStep = 5 * time.Second

// wait returns for how long nothing will be due.
func (s *state) wait(now time.Duration) time.Duration {
	wait := idleStep
	due := func(at time.Duration) { wait = min(wait, max(at-now, time.Millisecond)) }
	if s.phase == superseded && !s.ended {
		return wait
	}
	if s.move.holds() {
		if now < s.held.trusted {
			due(s.held.trusted)
		}
		return wait
	}
	if at := s.seen.offer.Next(now); at != 0 {
		due(at)
	}
	if s.liveness.skipped {
		due(s.liveness.last + minSample)
	}
	if s.campaigners > 0 && s.liveness.isLimited() && !s.liveness.sampledOftenEnough() {
		due(now + s.liveness.next())
	}
	if s.retained != 0 {
		due(s.retained)
	}
	if s.held.lease == nil {
		if at := max(s.tryAt, s.barredUntil); !s.requests.has(requestAcquire) && !s.requests.has(requestRelease) && at > now {
			due(at)
		}
		if at := s.reclaim.At; s.reclaim.Pending() && at > now {
			due(at)
		}
		return wait
	}
	if !s.held.granted && !s.requests.has(requestGrant) {
		due(s.held.grantAt)
	}
	if !s.requests.has(requestRenew) && !s.requests.has(requestRelease) {
		due(s.held.renewAt)
	}
	if now < s.held.trusted {
		due(s.held.trusted)
	}
	return wait
}
