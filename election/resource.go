package election

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// resource is one resource of one database, with the candidacies for it at this
// proxy. It knows what the lease service and the fence last showed of it.
type resource struct {
	e        *Elections
	key      resourceKey
	set      Settings
	provider Provider
	open     func(context.Context) (Fence, error)
	log      *zap.Logger
	turn     chan struct{} // cap 1; held by the candidacy that asks for the lease
	arrival  chan struct{} // cap 1; a candidacy came
	wake     chan struct{} // cap 1; somebody wants the record read
	joining  int           // calls of Join under way; guarded by Elections.mu

	// mu comes after Elections.mu and before Candidacy.mu.
	mu struct {
		sync.Mutex
		fence Fence
		// doubt says that the fence could not be used: it is opened anew for
		// the next candidacy, because it may have been made anew.
		doubt bool
		// byWorker holds the live candidacies: neither superseded nor ended.
		// They differ by user or by address.
		byWorker map[string][]*Candidacy
		// loops holds every candidacy whose loop runs.
		loops map[*Candidacy]struct{}
		// departing holds those that are about to give the lease back: a
		// first attempt waits for them rather than lose against a goodbye.
		departing map[*Candidacy]struct{}
		holder    *Candidacy // holds the lease, as far as this proxy knows
		sight     LeaseObservation
		sightErr  error         // why the watch sees nothing now
		news      chan struct{} // closed and replaced with each sight
		life      string        // marker of the lease service, as last seen; "" before
		numbered  string        // marker of the life that has a number; "" if none is known
		freeSince time.Duration // since when the lease has no holder; 0 if it has one
		record    fencing.Record
		floor     fencing.Epoch // highest epoch ever seen here
		alarmed   int           // false alarms ever
	}
}

// newResource returns a resource whose fence open has opened; it is called
// again when that fence could not be used.
func newResource(e *Elections, key resourceKey, set Settings, p Provider, f Fence, open func(context.Context) (Fence, error)) *resource {
	r := &resource{
		e: e, key: key, set: set, provider: p, open: open,
		turn: make(chan struct{}, 1), arrival: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		log: e.log.With(zap.String("database", key.database), zap.String("resource", key.name)),
	}
	r.mu.fence = f
	r.mu.news = make(chan struct{})
	r.mu.byWorker = map[string][]*Candidacy{}
	r.mu.loops = map[*Candidacy]struct{}{}
	r.mu.departing = map[*Candidacy]struct{}{}
	return r
}

// join makes m a member of the claim's live candidacy, or begins one.
func (r *resource) join(ctx context.Context, claim fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	claim.Client = claim.Client.Unmap()
	c, err := r.joinLive(claim, m)
	if err != nil {
		return nil, err
	}
	if c == nil {
		if c, err = r.beginCandidacy(ctx, claim, m); err != nil {
			return nil, err
		}
		return c, nil
	}
	if err := c.verify(ctx); err != nil {
		c.Leave(m, true)
		return nil, err
	}
	if c.Status().Role == fencing.Superseded { // verify found that out
		c.Leave(m, true)
		return r.join(ctx, claim, m)
	}
	return c, nil
}

// joinLive returns nil if the claim has no live candidacy.
func (r *resource) joinLive(claim fencing.JoinRequest, m fencing.Member) (*Candidacy, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.joinLiveLocked(claim, m)
}

func (r *resource) joinLiveLocked(claim fencing.JoinRequest, m fencing.Member) (*Candidacy, error) {
	for _, c := range r.mu.byWorker[claim.Worker] {
		if c.bars(claim) {
			return nil, r.refuseAddress(claim, c.client.String())
		}
	}
	for _, c := range r.mu.byWorker[claim.Worker] {
		if c.admit(claim, m) {
			return c, nil
		}
	}
	return nil, nil
}

// beginCandidacy begins a candidacy, unless another connection of the same
// worker was faster.
func (r *resource) beginCandidacy(ctx context.Context, claim fencing.JoinRequest, m fencing.Member) (*Candidacy, error) {
	fence, before, err := r.examine(ctx, claim.Worker)
	if err != nil {
		if isState(err, fencing.StateNoFence) {
			r.doubtFence()
		}
		return nil, err
	}
	if !r.e.begin() {
		return nil, ErrClosed
	}
	r.mu.Lock()
	if c, err := r.joinLiveLocked(claim, m); c != nil || err != nil {
		r.mu.Unlock()
		r.e.wg.Done()
		return c, err
	}
	c := newCandidacy(r, fence, claim, before)
	c.mu.record = r.mu.record
	c.admit(claim, m)
	r.mu.byWorker[claim.Worker] = append(r.mu.byWorker[claim.Worker], c)
	r.mu.loops[c] = struct{}{}
	r.mu.Unlock()
	r.e.began(r.key.database)
	poke(r.arrival)
	go c.run()
	if _, err := r.e.known(r.key); err != nil { // Close may not have seen c
		c.end()
	}
	return c, nil
}

// all returns every candidacy whose loop runs.
func (r *resource) all() []*Candidacy {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Candidacy, 0, len(r.mu.loops))
	for c := range r.mu.loops {
		all = append(all, c)
	}
	return all
}

// forget takes a superseded or ended candidacy from those that can be joined.
func (r *resource) forget(c *Candidacy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(c)
}

func (r *resource) forgetLocked(c *Candidacy) {
	list := r.mu.byWorker[c.worker]
	for i, other := range list {
		if other == c {
			list = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(list) == 0 {
		delete(r.mu.byWorker, c.worker)
		return
	}
	r.mu.byWorker[c.worker] = list
}

// loopEnded is the last that a candidacy's loop does.
func (r *resource) loopEnded(c *Candidacy) {
	r.mu.Lock()
	delete(r.mu.loops, c)
	r.forgetLocked(c)
	if len(r.mu.loops) == 0 {
		poke(r.wake) // the watch may rest
	}
	r.mu.Unlock()
	r.settle(c, true)
	r.e.ended(r.key.database)
	r.e.wg.Done()
}

// settle notes what has become of c's lease: whether it was vacated, and
// whether it is still about to be given back.
func (r *resource) settle(c *Candidacy, vacated bool) {
	r.mu.Lock()
	_, wake := r.mu.departing[c]
	if wake = wake && !c.closes(); wake {
		delete(r.mu.departing, c)
	}
	if vacated && r.mu.holder == c {
		r.mu.holder, wake = nil, true
	}
	r.mu.Unlock()
	if wake {
		r.pokeAll()
	}
}

// taken reports that another candidacy holds the lease for certain: one of this
// proxy, or, unless somebody waits for the outcome, the one that was last seen.
func (r *resource) taken(c *Candidacy, asked bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.holder != nil && r.mu.holder != c {
		return true
	}
	seen := r.mu.sight.State == Held && r.mu.sight.Incarnation != c.incarnation && r.mu.sightErr == nil
	return seen && !asked
}

func (r *resource) setHolder(c *Candidacy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.holder = c
}

func (r *resource) pokeAll() {
	for _, c := range r.all() {
		poke(c.poke)
	}
}

// view is what a candidacy's loop looks at in each step.
type view struct {
	observation     LeaseObservation
	blind           bool // the watch fails
	held            bool // another candidacy of this proxy holds the lease
	closing         bool // another candidacy of this proxy is giving it back
	freeSince       time.Duration
	highestObserved fencing.Epoch
}

func (r *resource) view(c *Candidacy) view {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := view{
		observation: r.mu.sight, blind: r.mu.sightErr != nil, freeSince: r.mu.freeSince, highestObserved: r.mu.floor,
		held: r.mu.holder != nil && r.mu.holder != c,
	}
	for other := range r.mu.departing {
		v.closing = v.closing || other != c
	}
	return v
}

func (r *resource) countFalseAlarm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.alarmed++
}

func (r *resource) refuseAddress(claim fencing.JoinRequest, other string) error {
	return &fencing.Refusal{
		SQLState: fencing.StateUnfenceable,
		Message: fmt.Sprintf("worker %s is connected from %s already, for resource %s: a worker id must name one process",
			strconv.QuoteToASCII(claim.Worker), other, strconv.QuoteToASCII(r.key.name)),
		Hint: "Set fencepost.worker to an id that differs per process and per life of it, such as host, process id and start time. " +
			"If the process at that address has died, its id is free once its connection ends or its worker timeout is over.",
	}
}

// isState reports whether err carries a refusal with the SQLSTATE.
func isState(err error, state string) bool {
	var refusal *fencing.Refusal
	return errors.As(err, &refusal) && refusal.SQLState == state
}

// poke wakes the reader of a channel of capacity 1.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
