package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
)

// Candidacy is one worker's attempt to lead one resource through this proxy.
type Candidacy struct {
	r     *resource
	set   Settings // as they were when the candidacy began
	fence Fence
	log   *zap.Logger

	current  atomic.Pointer[fencing.Status]
	before   atomic.Bool   // the result of SupersededBefore
	deserted atomic.Bool   // its database is gone, and so are its members
	poke     chan struct{} // cap 1; wakes the loop
	done     chan struct{} // closed when the loop has ended
	contexts

	// What follows is guarded by resource.mu, except for identity, which changes at most once, while the candidacy is
	// held (move) and only with the lock.
	state
	reports
	due time.Duration // when the next step is
}

// contexts are those of a candidacy's requests.
type contexts struct {
	// ctx is for requests that are pointless once the candidacy is over. Requests that
	// may acquire or release a lease use releaseCtx, which abandon ends.
	ctx        context.Context
	cancel     context.CancelFunc
	releaseCtx context.Context
	abandon    context.CancelFunc // gives up on a release
}

// state is what the loop decides by.
type state struct {
	identity               // who it is
	leadership             // what it has achieved
	membership             // who needs it
	demand                 // who waits for an attempt
	pace                   // when to try again
	bar                    // the order that keeps it from leading
	troubles               // what is wrong with the lease service and the fence
	liveness   liveness    // what its worker does
	held       holding     // the lease that it holds
	leftovers  leftovers   // what else it may have at the lease service
	requests   requests    // what it has asked for and has not been answered
	reclaim    own.Reclaim // the lease of another proxy that it may take
	seen       view        // the resource, as of the last step
	move       move        // keeps it from asking for anything
}

// reports are what the candidacy passes on.
type reports struct {
	changed      chan struct{} // closed and replaced with each new status
	unannounced  bool          // the members do not know the current status yet
	ignoreBefore time.Time     // announcements up to then do not count
	failing      failures
}

// identity is who a candidacy is.
type identity struct {
	user, worker string
	nameless     bool       // the worker id was generated for one connection
	client       netip.Addr // address of the members
	token        int64      // what the members bring; 0 if they bring none
	incarnation  string
	examined     fencing.Epoch // the highest epoch when it was found out whether the worker was superseded before
}

var _ fencing.Candidacy = (*Candidacy)(nil)

func newCandidacy(r *resource, fence Fence, req fencing.JoinRequest, past history) *Candidacy {
	c := &Candidacy{r: r, set: r.settings(), fence: fence, poke: make(chan struct{}, 1), done: make(chan struct{})}
	c.state = state{
		identity: identity{
			user: req.User, worker: req.Worker, nameless: req.Nameless, client: req.Client, token: req.Token,
			incarnation: cmp.Or(past.incarnation, own.Incarnation(r.presenceID(), req.User, req.Worker)), examined: past.highest,
		},
		membership: newMembership(),
	}
	c.reports = reports{changed: make(chan struct{}), failing: failures{}}
	c.before.Store(past.before)
	c.log = r.log.With(zap.String("worker", c.worker), zap.String("incarnation", c.incarnation))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.releaseCtx, c.abandon = context.WithCancel(context.Background())
	c.current.Store(&fencing.Status{})
	return c
}

// Status implements fencing.Candidacy.
func (c *Candidacy) Status() *fencing.Status { return c.current.Load() }

// Incarnation implements fencing.Candidacy.
func (c *Candidacy) Incarnation() string {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.incarnation
}

// Fence implements fencing.Candidacy.
func (c *Candidacy) Fence() fencing.Fence { return c.fence }

// SupersededBefore implements fencing.Candidacy.
func (c *Candidacy) SupersededBefore() bool { return c.before.Load() }

// Term returns what is known about the lease. Its Epoch is 0 while the candidacy does
// not lead.
func (c *Candidacy) Term() fencing.Term {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.termLocked()
}

func (c *Candidacy) termLocked() fencing.Term {
	if c.held.lease == nil || !c.held.granted {
		return fencing.Term{Award: fencing.Award{Resource: c.r.key.name, Worker: c.worker, Incarnation: c.incarnation}}
	}
	return fencing.Term{Award: c.award(c.held.lease, c.epoch, 0), Epoch: c.epoch, TrustedUntil: c.held.trusted}
}

func (c *Candidacy) award(l *elector.Lease, held, highest fencing.Epoch) fencing.Award {
	return fencing.Award{
		Resource: l.Resource, Worker: l.Worker, Incarnation: l.Incarnation,
		Source: c.r.provider.Source(), InstanceID: l.InstanceID, Index: l.Index,
		Held: held, HighestObserved: highest,
	}
}

// CheckSuperseded implements fencing.Candidacy.
func (c *Candidacy) CheckSuperseded(ctx context.Context) bool {
	rec, err := c.r.refresh(ctx)
	c.noted("read the record", err)
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	// One that has ended does not follow the record.
	if !slices.Contains(c.r.mu.loops, c) && err == nil && c.epoch > 0 && rec.Epoch > c.epoch && rec.Incarnation != c.incarnation {
		c.becomeSuperseded(rec)
		c.publishLocked(c.r.e.cfg.Now())
	}
	return c.Status().Role == fencing.Superseded
}

// isAnnounced reports whether a connection that joins now is told the candidacy's epoch in its startup.
func (c *Candidacy) isAnnounced() bool { return c.Status().CanWrite() && !c.SupersededBefore() }

// verify compares what a leading candidacy believes with the database, when another connection
// joins and nothing else compares it.
func (c *Candidacy) verify(ctx context.Context) error {
	term := c.Term()
	err := c.fence.Verify(ctx, term)
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, fencing.ErrReplaced):
		c.end()
		c.r.reopenLater()
		return err
	case errors.Is(err, fencing.ErrRemoved):
		c.r.removed(c.fence)
		return err
	}
	if c.CheckSuperseded(ctx) || c.Term().Epoch != term.Epoch {
		return nil // the status has changed meanwhile
	}
	if isState(err, fencing.StateNoFence) {
		c.r.mu.Lock()
		c.fault, c.disagrees = faultOf(err), true
		c.r.mu.Unlock()
		poke(c.poke)
	}
	return fmt.Errorf("verify the fence: %w", err)
}

// end makes the candidacy release its lease and stop, even if it has members.
func (c *Candidacy) end() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.endLocked()
}

func (c *Candidacy) endLocked() {
	c.ended = true
	c.cancel()
	poke(c.poke)
}
