package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/lockorder"
)

// resource is one resource of one database, with its candidacies at this proxy and what
// the lease service and the fence last showed of it.
type resource struct {
	e   *Elections
	key resourceKey
	services
	open    func(context.Context) (Fence, error)
	log     *zap.Logger
	turn    chan struct{} // cap 1; held by the candidacy that asks for the lease
	watcher watcher
	joining int // calls of Join in progress; guarded by Elections.mu

	// mu also guards the states of the candidacies.
	mu struct {
		lockorder.Mutex[lockorder.Resource]
		roster
		leaseWatch
		fenceAccess
		grants
		status.History
		knowledge
		offered
		falseAlarms int
		// supersededSelf holds the worker ids of which one candidacy has superseded
		// another: those of two users, at two proxies, or of two tokens. The ledger does not distinguish them.
		supersededSelf map[string]struct{}
		unreached      bool // the database does not answer
		ordersSeen
	}
}

// services are those that a resource uses in addition to its fence.
type services struct {
	provider      elector.Provider
	tokenProvider elector.TokenProvider // provider, if workers bring tokens; nil otherwise
	presence      Presence              // nil: nothing is known of other proxies
	handovers     Handovers             // nil: there are none
	together      bool                  // the leases of a proxy are renewed at the same time
}

// newResource returns a resource whose fence was opened by open. open is called again
// if that fence cannot be used.
func newResource(e *Elections, key resourceKey, p elector.Provider, f Fence, open func(context.Context) (Fence, error)) *resource {
	r := &resource{
		e: e, key: key, services: services{provider: p}, open: open,
		turn: make(chan struct{}, 1),
		log:  e.log.With(zap.String("database", key.database), zap.String("resource", key.name)),
	}
	r.watcher.init(r.log)
	r.mu.fence = f
	r.mu.updated = make(chan struct{})
	r.mu.roster = newRoster()
	r.mu.supersededSelf = map[string]struct{}{}
	r.tokenProvider, _ = p.(elector.TokenProvider)
	if g, ok := p.(elector.Gatherer); ok {
		r.together = g.RenewsTogether()
	}
	return r
}

// presenceID returns that of this proxy, "" if it has none.
func (r *resource) presenceID() string {
	if r.presence == nil {
		return ""
	}
	return r.presence.PresenceID()
}

// settings returns the settings of a candidacy that begins now.
func (r *resource) settings() Settings {
	set := r.e.cfg.Settings(r.key.database, r.key.name)
	if r.tokenProvider != nil { // who has been elected elsewhere leads, however silent
		set.WorkerTimeout, set.MaxWorkerTimeout, set.Linger = 0, 0, 0
	}
	return set
}

// checkRole returns an error if the role of req must not be a worker's.
func (r *resource) checkRole(ctx context.Context, req fencing.JoinRequest) error {
	r.mu.Lock()
	fence := r.mu.fence
	r.mu.Unlock()
	return fence.CheckRole(ctx, req.User, req.Backend)
}

// join makes m a member of the live candidacy that req names, or starts one. If the fence
// turns out to be gone, it tries again with what is there now.
func (r *resource) join(ctx context.Context, req fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	c, err := r.tryJoin(ctx, req, m)
	for attempts := 0; isGone(err) && attempts < maxReplaced; attempts++ {
		c, err = r.tryJoin(ctx, req, m)
	}
	return c, err
}

// isGone reports whether err says that a fence is gone: with its database, or with its
// resource.
func isGone(err error) bool {
	return errors.Is(err, fencing.ErrReplaced) || errors.Is(err, fencing.ErrRemoved)
}

// maxReplaced is how often a joining connection may find that the fence is gone: by the
// candidacy that it joins, and by the fence that it opens.
const maxReplaced = 3

func (r *resource) tryJoin(ctx context.Context, req fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	req.Client = req.Client.Unmap()
	if err := r.admitToken(&req); err != nil {
		return nil, err
	}
	r.mu.Lock()
	c, err := r.joinLiveLocked(req, m)
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if c == nil {
		if c, err = r.beginCandidacy(ctx, req, m); err != nil {
			return nil, err
		}
		return c, nil
	}
	if !req.Registers || !c.isAnnounced() {
		if err := c.verify(ctx); err != nil {
			c.Leave(m, true)
			return nil, err
		}
	}
	if c.Status().Role == fencing.Superseded { // verify found that out
		c.Leave(m, true)
		return r.tryJoin(ctx, req, m)
	}
	if err := c.examineShared(ctx); err != nil {
		c.Leave(m, true)
		return nil, err
	}
	return c, nil
}

// joinLiveLocked returns nil if there is no live candidacy for req. r.mu is held.
func (r *resource) joinLiveLocked(req fencing.JoinRequest, m fencing.Member) (*Candidacy, error) {
	for _, c := range r.mu.byWorker[req.Worker] {
		if c.conflictsWith(req) {
			return nil, r.refuseAddress(req, fencing.ClientName(c.client))
		}
	}
	for _, c := range r.mu.byWorker[req.Worker] {
		if c.admitLocked(req, m) {
			return c, nil
		}
	}
	return nil, nil
}

// beginCandidacy starts a candidacy, unless another connection of the same worker was
// faster.
func (r *resource) beginCandidacy(ctx context.Context, req fencing.JoinRequest, m fencing.Member) (*Candidacy, error) {
	fence, past, err := r.examine(ctx, req)
	r.mu.Lock()
	r.mu.unusable = nil
	if isState(err, fencing.StateNoFence) {
		r.mu.unusable = faultOf(err)
	}
	r.mu.Unlock()
	if err != nil {
		if isState(err, fencing.StateNoFence) {
			r.reopenLater()
		}
		return nil, err
	}
	if !r.e.begin() {
		return nil, ErrClosed
	}
	r.mu.Lock()
	if c, err := r.joinLiveLocked(req, m); c != nil || err != nil {
		if c != nil && past.before {
			c.before.Store(true)
		}
		r.mu.Unlock()
		r.e.wg.Done()
		return c, err
	}
	c := newCandidacy(r, fence, req, past)
	r.enrolLocked(c, req, m)
	r.mu.Unlock()
	r.e.candidacyBegan(r.key.database)
	poke(r.watcher.arrival)
	go c.run()
	if _, err := r.e.known(r.key); err != nil { // Close may have missed c
		c.end()
	}
	return c, nil
}

// enrolLocked adds c, with m as its first member. If m was one of an earlier candidacy, by the token that
// its worker had before, it leaves that, because c is to supersede it. r.mu is held.
func (r *resource) enrolLocked(c *Candidacy, req fencing.JoinRequest, m fencing.Member) {
	c.admitLocked(req, m)
	for _, former := range r.mu.byWorker[req.Worker] {
		former.leaveLocked(m, true)
	}
	r.mu.add(c)
}

// all returns every candidacy whose loop is running.
func (r *resource) all() []*Candidacy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.loops)
}

// loopEnded is the last thing that a candidacy's loop calls.
func (r *resource) loopEnded(c *Candidacy) {
	r.mu.Lock()
	r.mu.ended(c)
	r.mu.remove(c)
	if len(r.mu.loops) == 0 {
		r.watcher.wake() // the watch may pause
	}
	r.departedLocked(c)
	r.vacatedLocked(c)
	r.mu.Unlock()
	r.e.candidacyEnded(r.key.database)
	r.e.wg.Done()
}

// departedLocked records that c is no longer about to release the lease.
func (r *resource) departedLocked(c *Candidacy) {
	if _, was := r.mu.departing[c]; was {
		delete(r.mu.departing, c)
		r.pokeAllLocked()
	}
}

// vacatedLocked records that c holds no lease any more.
func (r *resource) vacatedLocked(c *Candidacy) {
	if !r.mu.vacate(c) {
		return
	}
	if !r.followLocked(r.e.cfg.Now()).Leads() && c.lastLed != 0 {
		r.mu.EndedLeading(c.lastLed, c.lastEnded)
	}
	r.watcher.wake() // the watch may have seen the next holder while this candidacy held the lease
	r.pokeAllLocked()
}

// isTaken reports whether another candidacy is known to hold the lease: one of this
// proxy, or the one that was last observed unless someone waits for the result. A lease that is
// offered to another worker is as good as taken.
func (r *resource) isTaken(c *Candidacy, asked bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.heldByOther(c) || r.offerLocked().Excludes(c.worker, r.e.cfg.Now()) {
		return true
	}
	seen := r.mu.observation.State == elector.Held && r.mu.observation.Incarnation != c.incarnation && r.mu.watchErr == nil
	return seen && !asked
}

func (r *resource) pokeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pokeAllLocked()
}

func (r *resource) pokeAllLocked() {
	for _, c := range r.mu.loops {
		poke(c.poke)
	}
}

func (r *resource) refuseAddress(req fencing.JoinRequest, other string) error {
	return &fencing.Refusal{
		SQLState: fencing.StateUnfenceable,
		Message: fmt.Sprintf("worker %s is already connected from %s for resource %s: a worker id must name one process",
			strconv.QuoteToASCII(req.Worker), other, strconv.QuoteToASCII(r.key.name)),
		Hint: "Set fencepost.worker to an id that is unique to each process and each start of it, such as host, process id and start time. " +
			"If the process at that address has died, its id becomes free when its connection ends or its worker timeout has passed.",
	}
}

// isState reports whether err carries a refusal with the SQLSTATE.
func isState(err error, state string) bool {
	var refusal *fencing.Refusal
	return errors.As(err, &refusal) && refusal.SQLState == state
}

// poke wakes the reader of a channel with capacity 1.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
