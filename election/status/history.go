package status

import (
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// History is who has led a resource over time, as far as this proxy knows. Times are readings of CLOCK_BOOTTIME.
type History struct {
	// LeaderlessSince is since when no worker has been able to write; 0 while someone
	// leads, and while nothing is known. It is not since when the lease is free: a worker
	// that has acquired the lease cannot write before its epoch is granted, which may take
	// long, and gives the lease back if that fails.
	LeaderlessSince time.Duration
	// LedSince is since when someone leads; 0 while no one does.
	LedSince time.Duration
	// LastLed is when the last leader was last confirmed; 0 while someone leads, and if
	// that is not known.
	LastLed time.Duration
	// LastEnded is how the term of that leader ended.
	LastEnded fencing.Ending
	// NoLeaderNeededUntil is when the state was last seen to be Idle or Paused; 0 if never since the last leader.
	NoLeaderNeededUntil time.Duration
}

// WantedSince returns since when someone should lead and no one does, 0 while someone leads, and if that is not known.
func (h *History) WantedSince() time.Duration {
	if h.LeaderlessSince == 0 {
		return 0
	}
	return max(h.LeaderlessSince, h.NoLeaderNeededUntil)
}

// Follow records whether anyone leads at this time.
func (h *History) Follow(led bool, now time.Duration) {
	switch {
	case led && h.LedSince == 0:
		*h = History{LedSince: now}
	case !led && h.LeaderlessSince == 0:
		h.LeaderlessSince, h.LedSince = now, 0
	}
}

// EndedLeading records when and how the last leader's term ended. The earliest report wins, because later
// ones are less exact.
func (h *History) EndedLeading(at time.Duration, how fencing.Ending) {
	if h.LastLed == 0 || at < h.LastLed {
		h.LastLed, h.LastEnded = at, how
	}
}
