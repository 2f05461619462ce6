package own

import "time"

const (
	// A proxy that holds the lease for the same worker is looked at again with pauses between
	// these two.
	minPause = 10 * time.Millisecond
	maxPause = 500 * time.Millisecond
	// firstWait is how long a first attempt waits until that proxy is known to be gone. The
	// worker may connect before the server has noticed that its former proxy was killed.
	firstWait = 500 * time.Millisecond
)

// Reclaim is what a candidacy knows of a lease that another proxy holds for the same worker and role.
// The zero value means that there is none. Times are readings of one clock.
type Reclaim struct {
	// From is the incarnation that holds the lease; "" if there is none.
	From string
	// At is when to look at that proxy again.
	At time.Duration
	// Logged means that it is logged that the proxy is alive.
	Logged bool

	since time.Duration // when the candidacy first saw that
	pause time.Duration // the last one; 0 before the first look
}

// Pending reports whether another proxy holds the lease for the same worker.
func (r *Reclaim) Pending() bool { return r.From != "" }

// Looked reports whether that proxy was looked at before.
func (r *Reclaim) Looked() bool { return r.pause > 0 }

// Follow notes which incarnation of the same worker holds the lease at another proxy, "" for none.
func (r *Reclaim) Follow(incarnation string, now time.Duration) {
	if r.From != incarnation {
		*r = Reclaim{From: incarnation, since: now, At: now}
	}
}

// Postpone schedules the next look at a proxy that is alive.
func (r *Reclaim) Postpone(now time.Duration) {
	r.pause = min(max(2*r.pause, minPause), maxPause)
	r.At = now + r.pause
}

// Waits reports whether a first attempt still waits for what becomes of that proxy.
func (r *Reclaim) Waits(now time.Duration) bool { return r.Pending() && now < r.since+firstWait }
