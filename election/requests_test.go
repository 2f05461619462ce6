package election

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

func TestUnsuccessfulAttemptsSlowDown(t *testing.T) {
	t.Parallel()
	const now = time.Hour
	var p pace
	for _, backoff := range []time.Duration{minBackoff, 2 * minBackoff, 4 * minBackoff, 8 * minBackoff, 16 * minBackoff, maxBackoff, maxBackoff} {
		p.slowDown(now)
		if wait := p.tryAt - now; p.backoff != backoff || wait < backoff/2 || wait >= backoff {
			t.Errorf("backoff %v, next attempt after %v, want about %v", p.backoff, wait, backoff)
		}
	}
}

func TestStrayAwardIsOneOfAnUncertainAcquire(t *testing.T) {
	t.Parallel()
	mine := elector.Observation{State: elector.Held, Incarnation: "a", Index: 7}
	for name, c := range map[string]struct {
		l    leftovers
		o    elector.Observation
		want bool
	}{
		"no Acquire is uncertain":  {leftovers{}, mine, false},
		"held by this incarnation": {leftovers{uncertain: true}, mine, true},
		"an earlier one released":  {leftovers{uncertain: true, stray: 6}, mine, true},
		"released already":         {leftovers{uncertain: true, stray: 7}, mine, false},
		"held by another one":      {leftovers{uncertain: true}, elector.Observation{State: elector.Held, Incarnation: "b", Index: 7}, false},
		"free":                     {leftovers{uncertain: true}, elector.Observation{State: elector.Freed, Incarnation: "a", Index: 7}, false},
	} {
		if got := c.l.strayed(c.o, "a"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAReleaseThatFailedIsNotReportedAsOne: no one else leads before the lease has expired.
func TestAReleaseThatFailedIsNotReportedAsOne(t *testing.T) {
	t.Parallel()
	now := time.Minute
	for err, want := range map[error]EventKind{nil: EventReleased, context.DeadlineExceeded: EventFailed} {
		r, c := resourceElsewhere("w", &now)
		var events []Event
		r.e.cfg.Observe = func(e Event) { events = append(events, e) }
		c.requests.begin(requestRelease, nil)
		c.releasedLocked(&elector.Lease{Index: 7}, elector.ReasonLeft, 0, err)
		if len(events) != 1 || events[0].Kind != want || !errors.Is(events[0].Err, err) {
			t.Errorf("a release that ended with %v: %v", err, events)
		}
	}
}

func TestWhatAReleaseLeaves(t *testing.T) {
	t.Parallel()
	awarded, unknown := &elector.Lease{Index: 7}, &elector.Lease{}
	for name, c := range map[string]struct {
		before leftovers
		lease  *elector.Lease
		why    elector.Reason
		after  leftovers
		again  bool
	}{
		"left":                     {leftovers{}, awarded, elector.ReasonLeft, leftovers{}, false},
		"unresponsive":             {leftovers{}, awarded, elector.ReasonUnresponsive, leftovers{unresponsive: awarded}, false},
		"unresponsive, then left":  {leftovers{unresponsive: awarded}, awarded, elector.ReasonLeft, leftovers{}, true},
		"an award of many":         {leftovers{uncertain: true}, awarded, elector.ReasonLeft, leftovers{uncertain: true}, false},
		"whatever it may have got": {leftovers{uncertain: true}, unknown, elector.ReasonLeft, leftovers{}, false},
	} {
		l := c.before
		if again := l.released(c.lease, c.why); again != c.again || l != c.after {
			t.Errorf("%s: %+v, again is %v; want %+v", name, l, again, c.after)
		}
	}
}

// TestSilenceBeginsWithTheFirstRequestThatIsNotAnswered: a follower may not have asked anything
// for hours before.
func TestSilenceBeginsWithTheFirstRequestThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	var a troubles
	a.leaseAnswered(nil, time.Hour)
	for _, sent := range []time.Duration{3 * time.Hour, 3*time.Hour + 2*time.Second} {
		a.leaseAnswered(context.DeadlineExceeded, sent)
	}
	if got, want := a.trouble("consul", false, 3*time.Hour+5*time.Second).Problem, "Consul has not answered for 5s"; got != want {
		t.Errorf("the problem is %q, want %q", got, want)
	}
	a.leaseAnswered(nil, 4*time.Hour)
	if got := a.trouble("consul", false, 4*time.Hour); got != nil {
		t.Errorf("after an answer, the problem is %v", got)
	}
}

// ledger is a Fence that is asked only whether a worker was superseded before.
type ledger struct {
	Fence
	answer func(context.Context) (bool, error)
}

func (l ledger) SupersededBefore(ctx context.Context, _, _ string) (bool, error) {
	return l.answer(ctx)
}

// newBearer returns a candidacy that brings a token.
func newBearer(l ledger) *Candidacy {
	now := time.Minute
	r, _ := resourceElsewhere("other", &now)
	return newCandidacy(r, l, fencing.JoinRequest{Worker: "w", Token: 7}, history{incarnation: "token:1:7"})
}

// TestAnEarlierAnswerDoesNotReplaceALaterOne: a connection joins while the candidacy learns whether its worker was
// superseded before its grant, and it was superseded after that.
func TestAnEarlierAnswerDoesNotReplaceALaterOne(t *testing.T) {
	t.Parallel()
	var c *Candidacy
	asked := 0
	c = newBearer(ledger{answer: func(ctx context.Context) (bool, error) {
		if asked++; asked == 1 {
			return false, c.examineShared(ctx)
		}
		return true, nil
	}})
	c.examineAgain(t.Context(), 2)
	if asked != 2 || !c.SupersededBefore() {
		t.Errorf("superseded before: %t, after %d questions", c.SupersededBefore(), asked)
	}
}

// TestAGrantDoesNotWaitForALostAnswer for longer than a moment, and the worker counts as one that was superseded.
func TestAGrantDoesNotWaitForALostAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBearer(ledger{answer: func(ctx context.Context) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}})
		began := time.Now()
		c.examineAgain(t.Context(), 2)
		if took := time.Since(began); took != examineTimeout || !c.SupersededBefore() {
			t.Errorf("superseded before: %t, after %v", c.SupersededBefore(), took)
		}
	})
}

// TestALaterReadingOfTheOffersCounts, whichever answer arrives first.
func TestALaterReadingOfTheOffersCounts(t *testing.T) {
	t.Parallel()
	now := time.Minute
	r, _ := resourceElsewhere("w", &now)
	r.mu.record = fencing.Record{}
	offer := &fencing.Offer{Order: 1, Worker: "w", Left: time.Minute}
	r.setOffer(nil, time.Second)
	r.setOffer(offer, 3*time.Second)
	r.setOffer(nil, 2*time.Second)
	if r.mu.offer.Order != 1 {
		t.Error("an answer that was late has ended the offer")
	}
	r.setOffer(nil, 4*time.Second)
	if r.mu.offer.Order != 0 {
		t.Error("the offer has not ended")
	}
}

// TestWhyAServiceIsSilent: refused workers get what only an operator can fix, without the request, which names
// sessions.
func TestWhyAServiceIsSilent(t *testing.T) {
	t.Parallel()
	for want, cause := range map[string]error{
		"Consul has not answered for 5s": &net.OpError{Op: "dial", Err: errors.New("connection refused")},
		"Consul has not answered for 5s (x509: certificate signed by unknown authority)": x509.UnknownAuthorityError{},
		"Consul has not answered for 5s (remote error: tls: bad certificate)":            &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")},
	} {
		var a troubles
		a.leaseAnswered(fmt.Errorf("renew: %w", &url.Error{Op: "Put", URL: "http://consul/v1/session/renew/secret", Err: cause}), time.Hour)
		if got := a.trouble("consul", false, time.Hour+5*time.Second).Problem; got != want {
			t.Errorf("the problem is %q, want %q", got, want)
		}
	}
}
