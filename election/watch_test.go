package election

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// confirming is a lease service that knows until when a lease is confirmed.
type confirming struct {
	elector.Provider
	until time.Duration
}

func (p confirming) ConfirmedUntil(string) time.Duration { return p.until }

// TestAShortLeaseIsLookedAtBeforeItSeemsToLapse: a proxy without workers of a resource must not
// take a lease for unconfirmed only because it has not looked since.
func TestAShortLeaseIsLookedAtBeforeItSeemsToLapse(t *testing.T) {
	t.Parallel()
	const now = time.Hour
	for name, c := range map[string]struct {
		provider elector.Provider
		want     time.Duration
	}{
		"an unknown end":                       {nil, idleLook},
		"no lease was seen":                    {confirming{}, idleLook},
		"it has lapsed":                        {confirming{until: now - time.Second}, idleLook},
		"it lasts beyond the next look":        {confirming{until: now + time.Minute}, idleLook},
		"it ends before the next look":         {confirming{until: now + 2*time.Second}, 2 * time.Second},
		"it ends sooner than looks may follow": {confirming{until: now + time.Millisecond}, soonestLook},
	} {
		r := &resource{services: services{provider: c.provider}, e: &Elections{cfg: Config{Now: func() time.Duration { return now }}}}
		if got := r.nextLook(); got != c.want {
			t.Errorf("%s: the next look is after %v, want %v", name, got, c.want)
		}
	}
}

// TestTheWatchLooksAgainWhenALeaseWasGivenUp: it may have seen the next holder while the candidacy of
// this proxy held the lease as far as was known, and expected no grant of another proxy then.
func TestTheWatchLooksAgainWhenALeaseWasGivenUp(t *testing.T) {
	t.Parallel()
	e := &Elections{log: zap.NewNop(), cfg: Config{
		Now: func() time.Duration { return 0 }, Observe: func(Event) {}, Settings: func(string, string) Settings { return Settings{} },
	}}
	r := newResource(e, resourceKey{"db", "r"}, nil, nil, nil)
	c := newCandidacy(r, nil, fencing.JoinRequest{}, history{incarnation: "mine"})
	r.mu.holder = c
	r.mu.observed(elector.Observation{State: elector.Held, Incarnation: "other", InstanceID: "i"}, 0)
	if r.expectsGrant() {
		t.Error("a grant of another proxy is expected while this one holds the lease")
	}
	r.vacatedLocked(c)
	if !r.expectsGrant() {
		t.Error("no grant of another proxy is expected")
	}
	if !r.watcher.woken.Load() {
		t.Error("the watch was not woken")
	}
}
