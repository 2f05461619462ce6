package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
	"go.uber.org/zap"
)

// Candidacy is one worker's attempt to lead one resource through this proxy.
type Candidacy struct {
	r     *resource
	set   Settings // as they were when the candidacy began
	fence Fence
	identity
	before       atomic.Bool   // the result of SupersededBefore
	deserted     atomic.Bool   // its database is gone, and so are its members
	examined     fencing.Epoch // the highest epoch, as of before
	ignoreBefore time.Time     // announcements up to then do not count; guarded by resource.mu
	log          *zap.Logger
	failing      failures // guarded by mu

	samples samples      // acquired before mu
	next    atomic.Int64 // when the next step is due, as a reading of CLOCK_BOOTTIME
	current atomic.Pointer[fencing.Status]
	poke    chan struct{} // cap 1; wakes the loop
	results chan func()   // how the loop applies the result of a request
	done    chan struct{} // closed when the loop has ended

	contexts

	// mu is acquired after resource.mu.
	mu struct {
		sync.Mutex
		state
	}
}

// identity is who a candidacy is.
type identity struct {
	user, worker string
	nameless     bool       // the worker id was generated for one connection
	client       netip.Addr // address of the members
	token        int64      // what the members bring; 0 if they bring none
	incarnation  string
}

// contexts are those of a candidacy's requests.
type contexts struct {
	// ctx is for requests that are pointless once the candidacy is over. Requests that
	// may acquire or release a lease use releaseCtx, which abandon ends.
	ctx         context.Context
	cancel      context.CancelFunc
	releaseCtx  context.Context
	abandonFunc context.CancelFunc
}

// state is the loop's state. It is guarded by Candidacy.mu.
type state struct {
	leadership
	membership
	demand
	fenceFacts
	bar
	pace
	answers
	reclaim   own.Reclaim
	liveness  liveness
	seen      snapshot // the resource, as of the last step
	held      holding
	leftovers leftovers
	requests  requests
	outbox    outbox
	changed   chan struct{} // closed and replaced with each new status
	closing   bool          // the resource knows that the lease is about to be released
}

var _ fencing.Candidacy = (*Candidacy)(nil)

func newCandidacy(r *resource, fence Fence, req fencing.JoinRequest, past history) *Candidacy {
	c := &Candidacy{
		r: r, set: r.settings(), fence: fence, examined: past.highest, failing: failures{},
		identity: identity{
			user: req.User, worker: req.Worker, nameless: req.Nameless, client: req.Client,
			token: req.Token, incarnation: cmp.Or(past.incarnation, own.Incarnation(r.presenceID(), req.User, req.Worker)),
		},
		poke: make(chan struct{}, 1), results: make(chan func()), done: make(chan struct{}),
	}
	c.before.Store(past.before)
	c.log = r.log.With(zap.String("worker", c.worker), zap.String("incarnation", c.incarnation))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.releaseCtx, c.abandonFunc = context.WithCancel(context.Background())
	c.mu.changed = make(chan struct{})
	c.mu.membership = newMembership()
	c.current.Store(&fencing.Status{})
	return c
}

// Status implements fencing.Candidacy.
func (c *Candidacy) Status() *fencing.Status { return c.current.Load() }

// Incarnation implements fencing.Candidacy.
func (c *Candidacy) Incarnation() string { return c.incarnation }

// Fence implements fencing.Candidacy.
func (c *Candidacy) Fence() fencing.Fence { return c.fence }

// SupersededBefore implements fencing.Candidacy.
func (c *Candidacy) SupersededBefore() bool { return c.before.Load() }

// Term returns what is known about the lease. Its Epoch is 0 while the candidacy does
// not lead.
func (c *Candidacy) Term() fencing.Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.termLocked()
}

func (c *Candidacy) termLocked() fencing.Term {
	s := &c.mu.state
	if s.held.lease == nil || !s.held.granted {
		return fencing.Term{Award: fencing.Award{Resource: c.r.key.name, Worker: c.worker, Incarnation: c.incarnation}}
	}
	return fencing.Term{Award: c.award(s.held.lease, s.epoch, 0), Epoch: s.epoch, TrustedUntil: s.held.trusted}
}

// ledUntil returns when the candidacy was last confirmed as the leader, 0 if it did not
// lead under its last lease, and how that ended. r.mu is held.
func (c *Candidacy) ledUntil() (time.Duration, fencing.Ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.lastLed, c.mu.lastEnded
}

func (c *Candidacy) award(l *Lease, held, highest fencing.Epoch) fencing.Award {
	return fencing.Award{
		Resource: l.Resource, Worker: l.Worker, Incarnation: l.Incarnation,
		Source: c.r.provider.Source(), InstanceID: l.InstanceID, Index: l.Index,
		Held: held, HighestObserved: highest,
	}
}

// CheckSuperseded implements fencing.Candidacy.
func (c *Candidacy) CheckSuperseded(ctx context.Context) bool {
	if _, err := c.r.refresh(ctx); err != nil {
		c.failed("read the record", err)
	} else {
		c.passed("read the record")
	}
	return c.Status().Role == fencing.Superseded
}

// verify compares what a leading candidacy believes with the database, whenever another
// connection joins.
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
		c.mu.Lock()
		c.mu.fault, c.mu.disagrees = faultOf(err), true
		c.mu.Unlock()
		poke(c.poke)
	}
	return fmt.Errorf("verify the fence: %w", err)
}

// end makes the candidacy release its lease and stop, even if it has members.
func (c *Candidacy) end() {
	c.mu.Lock()
	c.mu.ended = true
	c.mu.Unlock()
	c.cancel()
	poke(c.poke)
}

// abandon gives up on a release.
func (c *Candidacy) abandon() { c.abandonFunc() }
