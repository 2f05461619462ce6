package election

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"
)

// request is a kind of request to the lease service or the fence.
type request uint8

const (
	requestAcquire request = iota
	requestGrant
	requestRenew
	requestRelease
	requestKinds
)

var requestNames = [requestKinds]string{"acquire", "grant", "renew", "release"}

func (k request) String() string { return requestNames[k] }

// requests are the requests that a candidacy has in flight, at most one of each kind. A
// grant or a renewal may outlast its lease: its result then says nothing about the next
// lease. An acquire and a release exclude each other, because the lease service could
// process them in either order.
type requests struct {
	inFlight [requestKinds]bool
	stops    [requestKinds]context.CancelFunc // nil: not to be cancelled
}

// begin records that a request of kind k is about to be sent. stop, if not nil, cancels
// it. begin panics if the request must not be sent now, which is a mistake of the caller.
func (q *requests) begin(k request, stop context.CancelFunc) {
	excluded := k
	switch k {
	case requestAcquire:
		excluded = requestRelease
	case requestRelease:
		excluded = requestAcquire
	}
	for _, other := range []request{k, excluded} {
		if q.inFlight[other] {
			panic(fmt.Sprintf("election: a request to %v while one to %v is in flight", k, other))
		}
	}
	q.inFlight[k], q.stops[k] = true, stop
}

// end records that the result of the request of kind k is known.
func (q *requests) end(k request) { q.inFlight[k], q.stops[k] = false, nil }

// has reports whether a request of kind k is in flight.
func (q *requests) has(k request) bool { return q.inFlight[k] }

// any reports whether any request is in flight.
func (q *requests) any() bool { return slices.Contains(q.inFlight[:], true) }

// cancel cancels the request of kind k, if one is in flight. It stays in flight until
// its result is known.
func (q *requests) cancel(k request) {
	if stop := q.stops[k]; stop != nil {
		stop()
	}
}

// ask runs one request outside the loop. The loop runs the function that it returns,
// and does not end before that.
func (c *Candidacy) ask(request func() (apply func())) {
	go func() { c.results <- request() }()
}

// refreshLocked makes the watch read the record.
func (c *Candidacy) refreshLocked() { poke(c.r.wake) }

func (c *Candidacy) failed(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failedLocked(what, err)
}

func (c *Candidacy) failedLocked(what string, err error) {
	if c.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // cancelled by this candidacy
	}
	err = fmt.Errorf("%s: %w", what, err)
	c.log.Warn("request failed", zap.Error(err))
	c.event(Event{Kind: EventFailed, Err: err})
}
