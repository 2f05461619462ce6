package election_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// errNotPassed is why a test does not pass a candidacy on.
var errNotPassed = errors.New("the other process has ended")

// passOn passes the candidacy of a to b. Before the commit, between is called, whose error is that of the commit.
func passOn(t *testing.T, a, b *conn, between func() error) error {
	return a.Candidacy.(fencing.Movable).PassOn(t.Context(), func(ctx context.Context, lead []byte) error {
		begin, drop, err := b.Candidacy.(fencing.Movable).Adopt(ctx, lead)
		if err != nil {
			return err
		}
		if err := between(); err != nil {
			drop()
			return err
		}
		begin()
		return nil
	})
}

func atOnce() error { return nil }

// TestACandidacyIsPassedOn from process to process: the epoch, the award and the lease stay, and so does what a member knows that
// was there before. The process that has passed it on asks for nothing any more, and releases nothing.
func TestACandidacyIsPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, server, p := newMortals(t, "one", "two", "three")
		a := enter(t, p[0].Elections, "a")
		wantRole(t, a, fencing.Leader)
		sent := time.Now()
		time.Sleep(time.Second)
		a.AnnouncementRead(1, sent, time.Now())
		first := a.Incarnation()
		other := enter(t, p[2].Elections, "b")
		for i := range 2 {
			next := enter(t, p[i+1].Elections, "a")
			wantRole(t, next, fencing.Follower)
			if err := passOn(t, a, next, atOnce); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			wantRole(t, next, fencing.Leader)
			wantRole(t, a, fencing.Follower)
			if next.Incarnation() != first || next.Status().Epoch != 1 || !next.KnewAt(1, time.Now()) {
				t.Errorf("it leads as %s under epoch %d", next.Incarnation(), next.Status().Epoch)
			}
			time.Sleep(3 * simulatedTTL)
			a.Leave(a, true)
			if err := p[i].Close(t.Context()); err != nil {
				t.Error(err)
			}
			server.end(p[i].id)
			again := enter(t, p[i+1].Elections, "a")
			wantRole(t, again, fencing.Leader)
			again.Leave(again, true)
			time.Sleep(3 * simulatedTTL)
			wantRole(t, next, fencing.Leader)
			wantRole(t, other, fencing.Follower)
			a = next
		}
		if m.lease.Index != 1 || m.record.Epoch != 1 {
			t.Errorf("the award is %d, and the epoch is %d", m.lease.Index, m.record.Epoch)
		}
		a.Leave(a, false)
		time.Sleep(simulatedTTL / 2)
		wantRole(t, other, fencing.Leader)
	})
}

// TestWhoeverArrivesDoesNotCampaign: connections that another process has still wait for its candidacy, and do not take
// the lease if that process has gone. They campaign once the candidacy was passed on.
func TestWhoeverArrivesDoesNotCampaign(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, p := newMortals(t, "one", "two")
		a := enter(t, p[0].Elections, "a")
		wantRole(t, a, fencing.Leader)
		arrives := fencing.JoinRequest{Worker: "a", Arrives: true}
		first, last := enterWith(t, p[1].Elections, arrives), enterWith(t, p[1].Elections, arrives)
		a.Leave(a, false)
		time.Sleep(3 * simulatedTTL)
		m.do(func() {
			if m.lease.State == elector.Held {
				t.Errorf("the lease is held: %+v", m.lease)
			}
		})
		again := enter(t, p[0].Elections, "a")
		wantRole(t, again, fencing.Leader)
		if err := passOn(t, again, last, atOnce); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		last.Leave(last, false)
		time.Sleep(3 * simulatedTTL)
		wantRole(t, first, fencing.Leader)
	})
}

// TestACandidacyThatIsNotPassedOn goes on where it is: its lease is renewed, and the other process has nothing.
func TestACandidacyThatIsNotPassedOn(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(m *model) error{
		"the other process ends": func(*model) error { return errNotPassed },
		"it takes long": func(*model) error {
			time.Sleep(simulatedTTL / 5)
			return errNotPassed
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _, p := newMortals(t, "one", "two")
				a, next := enter(t, p[0].Elections, "a"), enter(t, p[1].Elections, "a")
				for range 3 {
					if err := passOn(t, a, next, func() error { return between(m) }); !errors.Is(err, errNotPassed) {
						t.Errorf("it is passed on with %v", err)
					}
					time.Sleep(3 * simulatedTTL)
					wantRole(t, a, fencing.Leader)
					wantRole(t, next, fencing.Follower)
				}
				if m.lease.Index != 1 || m.record.Epoch != 1 {
					t.Errorf("the award is %d, and the epoch is %d", m.lease.Index, m.record.Epoch)
				}
				a.Leave(a, false)
				time.Sleep(simulatedTTL / 2)
				wantRole(t, next, fencing.Leader)
			})
		})
	}
}

// TestWhoeverIsPassedOnIsHeld: while a candidacy is passed on, neither process asks for anything, and that lasts for a
// part of the time after which the lease is renewed.
func TestWhoeverIsPassedOnIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, p := newMortals(t, "one", "two")
		a, next := enter(t, p[0].Elections, "a"), enter(t, p[1].Elections, "a")
		err := a.Candidacy.(fencing.Movable).PassOn(t.Context(), func(ctx context.Context, lead []byte) error {
			if end, ok := ctx.Deadline(); !ok || time.Until(end) > simulatedTTL/3/2 {
				t.Errorf("it may last for %s", time.Until(end))
			}
			_, drop, err := next.Candidacy.(fencing.Movable).Adopt(ctx, lead)
			if err != nil {
				return err
			}
			if err := passOn(t, a, next, atOnce); err == nil {
				t.Error("it is passed on twice at a time")
			}
			m.mu.Lock()
			expires := m.expires
			m.mu.Unlock()
			time.Sleep(2 * simulatedTTL) // longer than any process waits
			wantRole(t, a, fencing.Follower)
			m.mu.Lock()
			if m.expires != expires || m.lease.State == elector.Held {
				t.Errorf("somebody has renewed or acquired the lease: %+v", m.lease)
			}
			m.mu.Unlock()
			drop()
			return errNotPassed
		})
		if !errors.Is(err, errNotPassed) {
			t.Error(err)
		}
	})
}

// TestALeaseIsLostWhileItIsPassedOn: the other process refuses it, and the worker leads again where it is, if it can.
func TestALeaseIsLostWhileItIsPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, p := newMortals(t, "one", "two")
		a, next := enter(t, p[0].Elections, "a"), enter(t, p[1].Elections, "b")
		arrival := enter(t, p[1].Elections, "a")
		err := a.Candidacy.(fencing.Movable).PassOn(t.Context(), func(ctx context.Context, lead []byte) error {
			m.do(func() { m.lease.State = elector.Freed })
			_, _, err := arrival.Candidacy.(fencing.Movable).Adopt(ctx, lead)
			return err
		})
		if err == nil {
			t.Error("a candidacy without a lease is passed on")
		}
		time.Sleep(2 * simulatedTTL)
		leaders := 0
		for _, c := range []*conn{a, next, arrival} {
			if c.Status().CanWrite() {
				leaders++
			}
		}
		if leaders != 1 {
			t.Errorf("%d lead", leaders)
		}
	})
}

// TestAGrantWhileACandidacyIsPassedOn, to another worker, or an order that ends its epoch: whoever has it in the end is
// superseded.
func TestAGrantWhileACandidacyIsPassedOn(t *testing.T) {
	t.Parallel()
	order := func(m *model) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.record = fencing.Record{Epoch: m.record.Epoch + 1, Worker: "c", Incarnation: "c", Index: m.lease.Index}
	}
	grant := func(m *model) {
		m.do(func() { m.lease.Incarnation, m.lease.Index = "c", m.lease.Index+1 })
		order(m)
	}
	nothing := func(*model) {}
	for name, c := range map[string]struct{ before, after func(*model) }{
		"a grant before the examination": {grant, nothing}, "a grant after it": {nothing, grant},
		"an order before the examination": {order, nothing}, "an order after it": {nothing, order},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _, p := newMortals(t, "one", "two")
				a, next := enter(t, p[0].Elections, "a"), enter(t, p[1].Elections, "a")
				err := a.Candidacy.(fencing.Movable).PassOn(t.Context(), func(ctx context.Context, lead []byte) error {
					c.before(m)
					begin, _, err := next.Candidacy.(fencing.Movable).Adopt(ctx, lead)
					if err != nil {
						return err
					}
					c.after(m)
					begin()
					return nil
				})
				passed := err == nil
				if before := strings.Contains(name, "before"); passed == before {
					t.Errorf("it ends with %v", err)
				}
				for _, one := range []*conn{a, next} {
					one.CheckSuperseded(t.Context())
				}
				time.Sleep(simulatedTTL / 2)
				if passed {
					wantRole(t, next, fencing.Superseded)
				} else {
					wantRole(t, a, fencing.Superseded)
					if next.Status().Epoch == 1 { // a later one may be granted to it
						t.Error("the other candidacy has its epoch")
					}
				}
			})
		})
	}
}

// TestWhatIsNotPassedOn: a follower, and what another candidacy of the new process may have.
func TestWhatIsNotPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, p := newMortals(t, "one", "two")
		a, follower, next := enter(t, p[0].Elections, "a"), enter(t, p[1].Elections, "b"), enter(t, p[0].Elections, "c")
		for _, c := range []struct {
			of, to *conn
			what   string
		}{{follower, a, "a follower"}, {a, follower, "another worker"}, {a, a, "the same process"}, {a, next, "a process that leads"}} {
			if err := passOn(t, c.of, c.to, atOnce); err == nil {
				t.Errorf("a candidacy is passed on: %s", c.what)
			}
		}
		time.Sleep(simulatedTTL)
		wantRole(t, a, fencing.Leader)
	})
}
