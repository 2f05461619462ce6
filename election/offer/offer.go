// Package offer decides what candidacies do while a resource is offered to one worker.
//
// Whoever does not know the offer, or decides otherwise, is refused by the fence: what is decided here
// keeps others from taking the lease in vain, and stops the leader.
package offer

import "time"

// Offer is an operator's offer of the lead to one worker. The zero value is none. Its times are
// readings of the clock that the caller uses.
type Offer struct {
	Order  int64 // the order that made it, 0 if there is none
	Worker string
	Begins time.Duration // when the leader stops
	Until  time.Duration // when anyone may take the lease again
}

// IsActive reports whether the offer is in force.
func (o Offer) IsActive(now time.Duration) bool { return o.Order != 0 && now < o.Until }

// Excludes reports whether the worker has to leave the lease to another one.
func (o Offer) Excludes(worker string, now time.Duration) bool {
	return o.IsActive(now) && worker != o.Worker
}

// Invites reports whether the worker may take the lease also if it was released because its holder was
// silent, which others take on demand only.
func (o Offer) Invites(worker string, now time.Duration) bool {
	return o.IsActive(now) && worker == o.Worker
}

// Stops reports whether the worker has to give up the lease now. A proxy that learns of the offer in
// the second half of its time stops no one, because the chosen worker may not have enough of it left.
func (o Offer) Stops(leader string, now time.Duration) bool {
	return o.Excludes(leader, now) && now >= o.Begins && now-o.Begins <= o.Until-now
}

// stopTime is how long the leader's proxy has to stop the leader and to release the lease.
const stopTime = 500 * time.Millisecond

// Takes reports whether the worker may take the lease away from a leader whose proxy is gone, because that one
// was to stop and has not.
func (o Offer) Takes(worker string, now time.Duration) bool {
	return o.Invites(worker, now) && now >= o.Begins+stopTime
}

// Next returns the next time at which something else is to be decided, 0 if there is none.
func (o Offer) Next(now time.Duration) time.Duration {
	switch {
	case !o.IsActive(now):
		return 0
	case now < o.Begins:
		return o.Begins
	case now < o.Begins+stopTime && o.Begins+stopTime < o.Until:
		return o.Begins + stopTime
	default:
		return o.Until
	}
}
