package election

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// holding is the lease that a candidacy holds, as far as the candidacy knows, with the
// times at which something is due for it. The zero value means that it holds none.
type holding struct {
	lease *elector.Lease
	// granted means that the fence has turned the lease into the epoch.
	granted bool
	// trusted is the time until which the lease is trusted; see fencing.Term.TrustedUntil.
	trusted time.Duration
	// renewAt is when to confirm the lease again.
	renewAt time.Duration
	// grantAt is when to ask (again) for the grant. It means nothing after the grant.
	grantAt time.Duration
	// requested is when the request that got the lease was sent.
	requested time.Duration
	// confirmedAt is when the last request that confirmed the lease was sent.
	confirmedAt time.Duration
	// freeSince is since when the resource had no holder before the lease was acquired.
	freeSince time.Duration
	// lastLed is when the leader before was last confirmed; 0 if that is not known.
	lastLed time.Duration
	// lastEnded is how the term of that leader ended.
	lastEnded fencing.Ending
}

// newHolding returns the holding of a lease that a request sent at this time got. The
// resource had no holder since freeSince, 0 if that is unknown. delay is added to the
// time of the renewal.
func newHolding(lease *elector.Lease, set Settings, sent, freeSince, delay time.Duration) holding {
	h := holding{lease: lease, requested: sent, freeSince: sent}
	if freeSince != 0 {
		h.freeSince = min(sent, freeSince)
	}
	return h.confirmed(set, sent, delay)
}

// confirmed returns the holding after a request that was sent at this time has
// confirmed the lease. A response never shortens the trust.
func (h holding) confirmed(set Settings, sent, delay time.Duration) holding {
	set = set.forLease(h.lease)
	h.trusted = max(h.trusted, sent+set.trust())
	h.confirmedAt = max(h.confirmedAt, sent)
	h.renewAt = set.renewalAfter(sent) + delay
	return h
}

// dueNow returns the holding with everything due now that would be due later.
func (h holding) dueNow(now time.Duration) holding {
	h.grantAt, h.renewAt = min(h.grantAt, now), min(h.renewAt, now)
	return h
}

// leads reports whether the lease entitles its holder to lead.
func (h holding) leads(now time.Duration) bool {
	return h.lease != nil && h.granted && now < h.trusted
}

// forLease returns the settings while a lease lasts: with the TTL that the lease service has
// granted, if that is shorter than what was asked for.
func (s Settings) forLease(l *elector.Lease) Settings {
	if l.Granted != 0 {
		s.TTL = min(s.TTL, l.Granted)
	}
	return s
}

// renewalAfter returns when to renew a lease that was confirmed by a request sent at
// this time: at the next multiple of a third of its TTL. The leases of a proxy are thus
// renewed at about the same time, and expire at about the same time if the proxy dies.
// Their takeovers then do not wait for each other's workers.
func (s Settings) renewalAfter(sent time.Duration) time.Duration {
	third := s.TTL / 3
	return (sent/third + 1) * third
}

// renewalSpread is the longest delay of a renewal, so that the leases of a proxy are not renewed at the same
// instant. A lease service that renews them together needs none.
func (s Settings) renewalSpread() time.Duration { return s.TTL / 3 / 5 }

// delay returns a random time below spread; 0 if the lease service renews leases together.
func (r *resource) delay(spread time.Duration) time.Duration {
	if r.together {
		return 0
	}
	return jitter(spread)
}

// takeover returns how long the resource had no confirmed leader before the moment at
// which the candidacy was granted an epoch, and how long the lease had been free.
func (h holding) takeover(now time.Duration) (took, grant time.Duration) {
	from := h.freeSince
	if h.lastLed != 0 {
		from = min(from, h.lastLed)
	}
	return now - from, now - h.freeSince
}

// leftovers are what a candidacy may have at the lease service although it holds no
// lease.
type leftovers struct {
	// unresponsive is the lease that was released as unresponsive, if no one has
	// acquired it since, as far as known.
	unresponsive *elector.Lease
	// uncertain means that an Acquire of unknown outcome may have got a lease, or may
	// still get one.
	uncertain bool
	// stray is the index of the last award to such an Acquire that was released.
	stray int64
}

// strayed reports whether the observation shows a lease that an Acquire of unknown
// outcome got for this incarnation, and that has not been released.
func (l *leftovers) strayed(o elector.Observation, incarnation string) bool {
	return l.uncertain && o.State == elector.Held && o.Incarnation == incarnation && o.Index != l.stray
}

// released records that a lease was released. It reports whether the same lease had
// been released as unresponsive before.
func (l *leftovers) released(lease *elector.Lease, why elector.Reason) (again bool) {
	again = lease == l.unresponsive
	l.unresponsive = nil
	if why == elector.ReasonUnresponsive {
		l.unresponsive = lease
	}
	if lease.Index == 0 { // whatever the incarnation got or may still get
		l.uncertain = false
	}
	return again
}

// Unsuccessful attempts are followed by pauses between these two.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// pace says when the next attempt to acquire the lease may be made.
type pace struct {
	tryAt   time.Duration // no attempt before this time, unless someone asks for it
	backoff time.Duration // about how long to wait after the last attempt, 0 if it succeeded
}

// slowDown schedules the attempt that follows an unsuccessful one.
func (p *pace) slowDown(now time.Duration) {
	p.backoff = min(max(2*p.backoff, minBackoff), maxBackoff)
	p.tryAt = now + p.backoff/2 + jitter(p.backoff/2)
}
