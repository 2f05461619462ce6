package election

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// grantWait is how much longer AwaitFirst waits for a first attempt that already has
// the lease: after the grace its grant ends whatever blocks it.
const grantWait = 5 * time.Second

// demand is who waits for an attempt to get the lease.
type demand struct {
	first    chan struct{}   // closed when the first attempt has ended; nil if none was made
	demanded []chan struct{} // callers of CampaignOnDemand
	waiters  int             // callers of AwaitLeader
}

// expectFirst says that a first attempt will be made. It answers those who still wait
// for an earlier one.
func (d *demand) expectFirst() {
	d.answerFirst()
	d.first = make(chan struct{})
}

// firstExpected reports whether the first attempt has not ended yet.
func (d *demand) firstExpected() bool {
	if d.first == nil {
		return false
	}
	select {
	case <-d.first:
		return false
	default:
		return true
	}
}

func (d *demand) answerFirst() {
	if d.firstExpected() {
		close(d.first)
	}
}

// asked reports whether someone waits for the result of an attempt.
func (d *demand) asked() bool { return d.firstExpected() || len(d.demanded) > 0 }

// answer ends the wait of those who wait for the result of an attempt.
func (d *demand) answer() {
	d.answerFirst()
	for _, ch := range d.demanded {
		close(ch)
	}
	d.demanded = nil
}

// AwaitFirst implements fencing.Candidacy.
func (c *Candidacy) AwaitFirst(ctx context.Context, wait time.Duration) error {
	c.r.mu.Lock()
	first := c.first
	c.r.mu.Unlock()
	if first == nil { // only observers
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for longer := true; ; longer = false {
		select {
		case <-first:
			return nil
		case <-c.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if !longer || !c.isGranting() {
			return context.DeadlineExceeded
		}
		timer.Reset(grantWait)
	}
}

func (c *Candidacy) isGranting() bool {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.requests.has(requestGrant)
}

// AwaitLeader implements fencing.Candidacy.
func (c *Candidacy) AwaitLeader(ctx context.Context) error {
	c.r.mu.Lock()
	c.waiters++
	c.r.mu.Unlock()
	defer func() {
		c.r.mu.Lock()
		c.waiters--
		c.r.mu.Unlock()
	}()
	var refusal error
	err := c.await(ctx, func(s *fencing.Status) bool {
		switch {
		case s.Role == fencing.Superseded:
			refusal = c.refuseSuperseded()
		case s.Fault != nil:
			refusal = fencing.FaultRefusal(s.Fault)
		case s.Barred != nil:
			refusal = s.Barred
		}
		return refusal != nil || s.CanWrite()
	})
	return errors.Join(err, refusal)
}

// AwaitConfirmed implements fencing.Candidacy.
func (c *Candidacy) AwaitConfirmed(ctx context.Context) error {
	return c.await(ctx, func(s *fencing.Status) bool { return !s.Lapsed })
}

// await wakes the loop, which may have something to find out, and waits until the
// status satisfies ok.
func (c *Candidacy) await(ctx context.Context, ok func(*fencing.Status) bool) error {
	for {
		c.r.mu.Lock()
		changed, now := c.changed, c.current.Load()
		c.r.mu.Unlock()
		if ok(now) {
			return nil
		}
		poke(c.poke)
		select {
		case <-changed:
		case <-c.done:
			if ok(c.current.Load()) {
				return nil
			}
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CampaignOnDemand implements fencing.Candidacy.
func (c *Candidacy) CampaignOnDemand(ctx context.Context) {
	if !c.Status().Vacant {
		return
	}
	answered := make(chan struct{})
	c.r.mu.Lock()
	c.demanded = append(c.demanded, answered)
	c.r.mu.Unlock()
	poke(c.poke)
	select {
	case <-answered:
	case <-c.done:
	case <-ctx.Done():
	}
}

// refuseSuperseded returns the refusal of a client that waits to lead.
func (c *Candidacy) refuseSuperseded() error {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	st := fencing.Status{Epoch: c.epoch, Removed: c.removed, Holder: c.supersededBy}
	return fencing.SupersededRefusal(c.r.key.name, c.worker, c.incarnation, &st)
}
