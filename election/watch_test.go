package election

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

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
	select {
	case <-r.watcher.wake:
	default:
		t.Error("the watch was not woken")
	}
}

// TestAnotherOrderOfTheSameId: a failover has lost the newest order, and the next one got its id.
func TestAnotherOrderOfTheSameId(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zap.InfoLevel)
	e := &Elections{log: zap.New(core)}
	e.mu.resources, e.mu.lostOrders = map[resourceKey]*resource{}, map[resourceKey]fencing.Order{}
	e.mu.orders = map[string]*seenOrders{}
	seen := e.seenOrders("d")
	at := time.Now()
	orders := func(pause, resume time.Time) Orders {
		return func(_ context.Context, after int64) (st fencing.Ordered, err error) {
			st.LastOrder = 6
			for _, o := range []fencing.Order{
				{ID: 5, Kind: "pause", Resource: "r", AskedAt: pause}, {ID: 6, Kind: "resume", Resource: "r", AskedAt: resume},
			} {
				if o.ID > after {
					st.Orders = append(st.Orders, o)
				}
			}
			return st, nil
		}
	}
	look := func(read Orders, want bool) {
		t.Helper()
		if _, ordered, err := e.readNewOrders(t.Context(), "d", read, seen, false); err != nil || ordered != want {
			t.Errorf("ordered is %v, want %v: %v", ordered, want, err)
		}
	}
	first := orders(at, at)
	look(func(ctx context.Context, after int64) (fencing.Ordered, error) {
		return fencing.Ordered{LastOrder: 4}, nil
	}, true) // the first look
	look(first, true)
	look(first, false)
	lines.TakeAll()
	look(orders(at, at.Add(time.Second)), true)
	if n := lines.FilterMessage("an operator's order is not in the database any more, after a failover or a restore: give it again if it still counts").Len(); n != 1 {
		t.Errorf("%d orders are lost, want one: %v", n, lines.All())
	}
	if n := lines.FilterMessage("an operator gave an order").Len(); n != 1 {
		t.Errorf("%d orders are new, want one: %v", n, lines.All())
	}
	look(orders(at, at.Add(time.Second)), false)
	lines.TakeAll()
	look(orders(at.Add(2*time.Second), at.Add(2*time.Second)), true)
	if n := lines.FilterMessage("an operator gave an order").Len(); n != 2 {
		t.Errorf("%d orders are new, want two: %v", n, lines.All())
	}
	look(orders(at.Add(2*time.Second), at.Add(2*time.Second)), false)
}
