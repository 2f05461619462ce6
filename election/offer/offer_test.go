package offer_test

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/offer"
)

// given is an offer to b. Its leader stops at 10 s, and anyone may lead at 20 s.
var given = offer.Offer{Order: 1, Worker: "b", Begins: 10 * time.Second, Until: 20 * time.Second}

func TestWhatAnOfferMeansAtEachTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at                                         time.Duration
		lasts, stopsA, excludesA, invitesB, takesB bool
		next                                       time.Duration
	}{
		{0, true, false, true, true, false, 10 * time.Second},
		{10*time.Second - 1, true, false, true, true, false, 10 * time.Second},
		{10 * time.Second, true, true, true, true, false, 10500 * time.Millisecond},
		{10500 * time.Millisecond, true, true, true, true, true, 20 * time.Second}, // a had time to stop
		{15 * time.Second, true, true, true, true, true, 20 * time.Second},
		{15*time.Second + 1, true, false, true, true, true, 20 * time.Second}, // too late to stop anyone
		{20*time.Second - 1, true, false, true, true, true, 20 * time.Second},
		{20 * time.Second, false, false, false, false, false, 0},
		{time.Hour, false, false, false, false, false, 0},
	} {
		if got := given.IsActive(c.at); got != c.lasts {
			t.Errorf("at %v it lasts: %t", c.at, got)
		}
		if got := given.Stops("a", c.at); got != c.stopsA {
			t.Errorf("at %v it stops a: %t", c.at, got)
		}
		if got := given.Excludes("a", c.at); got != c.excludesA {
			t.Errorf("at %v it excludes a: %t", c.at, got)
		}
		if got := given.Invites("b", c.at); got != c.invitesB {
			t.Errorf("at %v it invites b: %t", c.at, got)
		}
		if got := given.Takes("b", c.at); got != c.takesB {
			t.Errorf("at %v b takes it: %t", c.at, got)
		}
		if got := given.Next(c.at); got != c.next {
			t.Errorf("at %v the next time is %v, want %v", c.at, got, c.next)
		}
		if given.Stops("b", c.at) || given.Excludes("b", c.at) || given.Invites("a", c.at) || given.Takes("a", c.at) {
			t.Errorf("at %v it keeps b from leading, or invites a", c.at)
		}
	}
}

func TestNoOfferKeepsNoOne(t *testing.T) {
	t.Parallel()
	none := offer.Offer{}
	for _, worker := range []string{"", "a"} {
		if none.IsActive(0) || none.Stops(worker, 0) || none.Excludes(worker, 0) || none.Invites(worker, 0) || none.Takes(worker, time.Hour) || none.Next(0) != 0 {
			t.Errorf("the zero offer means something to worker %q", worker)
		}
	}
}
