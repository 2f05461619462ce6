package electiontest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// leadsOrIsRefused waits until the worker leads under an epoch above the last one, or the fence
// refuses its awards as older and the error says what to do. It reports whether it leads.
func (c *conn) leadsOrIsRefused(last fencing.Epoch) bool {
	c.w.Helper()
	refused := func() bool { return c.Status().Fault != nil }
	eventually(c.w.T, "the worker leads, or is refused", c.w.service.Death+patience, func() bool {
		return c.leads() && c.Status().Epoch > last || refused()
	})
	if !refused() {
		return true
	}
	ctx, cancel := context.WithTimeout(c.w.Context(), patience)
	defer cancel()
	var refusal *fencing.Refusal
	switch err := c.AwaitLeader(ctx); {
	case err == nil: // it was refused, and leads now
	case !errors.As(err, &refusal), !strings.Contains(refusal.Hint, "fencepost generation bump"):
		c.w.Errorf("the error does not say what to do: %v", err)
	}
	return false
}

// restoreCases are about a service that was put back to an older state.
var restoreCases = []testCase{
	{"a service that was restored grants no epoch twice, and goes on after a bump", func(w *testEnv) {
		p, q := w.proxy("one", w.expiring), w.proxy("two", w.expiring)
		a := p.first("a")
		a.eventuallyLeads(soon)
		a.leaves()
		restore := w.service.Backup(w.T)
		for _, worker := range []string{"b", "c"} {
			c := p.join(worker)
			c.eventuallyLeads(patience)
			c.leaves()
		}
		d := p.join("d")
		last := d.eventuallyLeads(patience)
		restore(w.T)
		d.dies()
		e := q.join("e")
		if !e.leadsOrIsRefused(last) { // its awards may catch up, which is right, or not
			w.service.Bump(w.T)
			eventually(w.T, "the worker leads after the bump", w.service.Death+patience, e.leads)
		}
		if next := e.mustLead(); next != last+1 {
			w.Errorf("epoch %d was granted after %d", next, last)
		}
		w.mustBeGranted("a", "b", "c", "d", "e")
	}},
	{"whoever watches sees what happens after a restore", func(w *testEnv) {
		p, _ := w.provider("one")
		q, _ := w.provider("two")
		shows := func(state elector.State, incarnation string) {
			eventually(w.T, "the watch shows what "+incarnation+" did", w.service.Death+patience, func() bool {
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				obs, err := q.Watch(ctx, resource, elector.Observation{}) // the service may be away
				return err == nil && obs.State == state && obs.Incarnation == incarnation
			})
		}
		release := func(l *elector.Lease) {
			eventually(w.T, l.Worker+" releases the lease", patience, func() bool {
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				return p.Release(ctx, l, elector.ReasonLeft, 0) == nil
			})
		}
		lease := w.mustAcquire(p, w.briefBid("a"))
		shows(elector.Held, lease.Incarnation)
		restore := w.service.Backup(w.T)
		release(lease)
		for _, worker := range []string{"b", "c", "d"} { // so that the restored state is far behind
			lease = w.acquire(p, w.briefBid(worker))
			release(lease)
		}
		shows(elector.Freed, lease.Incarnation)
		restore(w.T)
		shows(elector.Held, w.acquire(p, w.briefBid("e")).Incarnation)
	}},
}
