package election

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/offer"
	"github.com/fencepost/fencepost/election/own"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	// noteTimeout bounds a statement that only says how a hand-over goes, or what came before a grant. No one waits
	// for it. If it is lost, an operator sees a wrong time, or none.
	noteTimeout = 10 * time.Second
	// leaveTimeout bounds the statement that says that no one campaigns here any more, for which a
	// proxy that ends waits. Without it, the candidacies of this proxy are shown until they age out.
	leaveTimeout = 500 * time.Millisecond
)

// Handovers is what a database knows of hand-overs, and of who may be chosen.
type Handovers interface {
	// Offers returns the offers that are in force.
	Offers(ctx context.Context) ([]fencing.Offer, error)
	// Record makes the database know that these candidacies campaign through this proxy, and no
	// others. It is called about once a second, and calls candidates when it has finished what it was called for before.
	Record(ctx context.Context, candidates func() []fencing.Candidate) error
	// Elsewhere returns the incarnations that campaign for this worker through other proxies.
	Elsewhere(ctx context.Context, resource, worker string) (incarnations []string, err error)
	// Stopped notes when the leader was stopped for this order.
	Stopped(ctx context.Context, order int64, at time.Time) error
	// Taken notes when the chosen worker could write.
	Taken(ctx context.Context, order int64, at time.Time) error
	// Granted notes that a worker was granted an epoch through this proxy, how the term before had ended, and for how
	// long no worker had been confirmed as the leader; 0 if that is not known.
	Granted(ctx context.Context, resource string, epoch fencing.Epoch, ended fencing.Ending, gap time.Duration) error
}

// errOffered is the result of a grant that the fence refuses because the resource is offered to another
// worker.
var errOffered = errors.New("the resource is offered to another worker")

// offered is what a resource knows of an offer.
type offered struct {
	offer offer.Offer
	under fencing.Epoch // the recorded epoch when it was made
	read  time.Duration // when the reading was begun of which this is known
}

// offerLocked returns the offer, unless a grant has ended it. r.mu is held.
func (r *resource) offerLocked() offer.Offer {
	if r.mu.record.Epoch > r.mu.under || r.tokenProvider != nil {
		return offer.Offer{}
	}
	return r.mu.offer
}

// setOffer makes the resource know the offer that is in force, nil for none. read is when it was asked for: an answer
// that arrives after that to a later question is ignored.
func (r *resource) setOffer(o *fencing.Offer, read time.Duration) {
	now := offered{read: read}
	if o != nil {
		now.offer = offer.Offer{Order: o.Order, Worker: o.Worker, Begins: read + o.Begins, Until: read + o.Left}
		now.under = o.Epoch
	}
	r.mu.Lock()
	late := read < r.mu.offered.read
	changed := !late && r.mu.offer.Order != now.offer.Order
	switch {
	case changed:
		r.mu.offered = now
	case !late: // the times of the first reading count, because all readings show the same offer
		r.mu.offered.read = read
	}
	r.mu.Unlock()
	if !changed {
		return
	}
	if o != nil {
		r.log.Info("the resource is offered to one worker", zap.String("to", o.Worker), zap.Int64("order", o.Order), zap.Duration("begins_in", o.Begins), zap.Duration("left", o.Left))
	}
	r.pokeAll()
}

// readOffers makes the resources of a database know the offers that are in force.
func (e *Elections) readOffers(ctx context.Context, database string, from Handovers) error {
	ctx, cancel := context.WithTimeout(ctx, 5*orderPoll)
	defer cancel()
	read := e.cfg.Now()
	all, err := from.Offers(ctx)
	if err != nil {
		return err
	}
	in := make(map[string]*fencing.Offer, len(all))
	for i := range all {
		in[all[i].Resource] = &all[i]
	}
	for _, r := range e.resourcesOf(database) {
		r.setOffer(in[r.key.name], read)
	}
	return nil
}

// isOfferedToOther is called for a grant that an order forbids. It reports whether that order offers
// the resource to another worker, which this proxy may not have read yet.
func (r *resource) isOfferedToOther(ctx context.Context, c *Candidacy) bool {
	if r.handovers == nil {
		return false
	}
	if err := r.e.readOffers(ctx, r.key.database, r.handovers); err != nil {
		c.noted("read the offers", err)
		return false
	}
	return r.currentOffer().Excludes(c.worker, r.e.cfg.Now())
}

// handOverLocked releases the lease for the worker that it is offered to. Transactions of registered backends
// continue; the grant to that worker waits for them. Others wait at the proxy, as they do whenever a
// lease is not confirmed.
func (c *Candidacy) handOverLocked() {
	o := c.seen.offer
	c.log.Info("handing over", zap.Int64("epoch", int64(c.epoch)), zap.String("to", o.Worker), zap.Int64("order", o.Order))
	c.releaseLocked(c.held.lease, elector.ReasonLeft)
	c.r.noteOffer(o.Order, Handovers.Stopped)
}

// noteGrantLocked notes that c was granted an epoch that is new to this proxy, and, if the resource was offered to its
// worker, that the offer was taken.
func (r *resource) noteGrantLocked(c *Candidacy, g granting) {
	if o := r.mu.offer; o.Order != 0 && o.Worker == c.worker && g.before.Epoch <= r.mu.under && g.epoch > r.mu.under {
		r.noteOffer(o.Order, Handovers.Taken)
	}
	gap := time.Duration(0)
	if g.held.lastLed != 0 {
		gap, _ = g.held.takeover(r.e.cfg.Now())
	}
	r.note("cannot note a grant", func(ctx context.Context, to Handovers) error {
		return to.Granted(ctx, r.key.name, g.epoch, g.held.lastEnded, gap)
	})
}

// noteOffer notes what has happened now to an offer.
func (r *resource) noteOffer(order int64, what func(Handovers, context.Context, int64, time.Time) error) {
	at := time.Now()
	r.note("cannot note how the hand-over goes", func(ctx context.Context, to Handovers) error { return what(to, ctx, order, at) })
}

// note writes something to the database, and logs failed if it cannot. No one waits for it. It is called for a
// candidacy, which Close waits for first.
func (r *resource) note(failed string, what func(context.Context, Handovers) error) {
	if r.handovers == nil {
		return
	}
	r.e.wg.Go(func() {
		ctx, cancel := context.WithTimeout(r.e.ctx, noteTimeout)
		defer cancel()
		if err := what(ctx, r.handovers); err != nil && r.e.ctx.Err() == nil {
			r.log.Warn(failed, zap.Error(err))
		}
	})
}

// candidates returns the candidacies that campaign for the resources of a database. Of those of a resource that share a
// token, and so an incarnation, there is one: one that leads, if any does, and otherwise that of the first worker by
// name.
func (e *Elections) candidates(database string) func() []fencing.Candidate {
	return func() (all []fencing.Candidate) {
		for _, r := range e.resourcesOf(database) {
			all = append(all, r.candidates()...)
		}
		return all
	}
}

func (r *resource) candidates() []fencing.Candidate {
	r.mu.Lock()
	defer r.mu.Unlock()
	byIncarnation := map[string]fencing.Candidate{}
	for _, c := range r.mu.loops {
		if !c.campaigns() {
			continue
		}
		one := fencing.Candidate{
			Resource: r.key.name, Worker: c.worker, Incarnation: c.shownIncarnation(), Silent: c.liveness.unresponsive, State: c.campaign(r.mu.observation.State),
		}
		other, shared := byIncarnation[one.Incarnation]
		leads, led := one.State == fencing.CandidateLeading, other.State == fencing.CandidateLeading
		if !shared || leads && !led || leads == led && one.Worker < other.Worker {
			byIncarnation[one.Incarnation] = one
		}
	}
	return slices.Collect(maps.Values(byIncarnation))
}

// campaign returns what the candidacy does for the lead, while the lease is in this state.
func (s *state) campaign(observed elector.State) fencing.CandidateState {
	switch {
	case s.phase == leading && s.fault == nil, s.move.as != "":
		return fencing.CandidateLeading
	case s.barred != nil:
		return fencing.CandidateBarred
	case s.eligible() && (observed != elector.Unresponsive || s.waiters > 0 || s.asked()):
		return fencing.CandidateWaiting
	case s.liveness.unresponsive && s.heartbeat() > 0:
		return fencing.CandidateFrozen
	default:
		return fencing.CandidateIdle
	}
}

// campaigns reports whether a connection of the candidacy campaigns, and may still lead, or will when it was passed on.
func (s *state) campaigns() bool { return s.move.as != "" || s.lives() && s.campaigners > 0 }

// handoverPoll is what the goroutine that follows the orders of a database needs for its hand-overs.
type handoverPoll struct {
	database           string
	from               Handovers // nil: there are none
	due                bool      // the offers are to be read
	unread, unrecorded *faults.Series
	unmoved            *faults.Series
}

func (e *Elections) newHandoverPoll(database string, from Handovers) *handoverPoll {
	log := e.log.With(zap.String("database", database))
	return &handoverPoll{
		database: database, from: from, due: true,
		unread:     faults.NewSeries(log, "cannot read the offers of operators", 0),
		unrecorded: faults.NewSeries(log, "cannot record who campaigns", 0),
		unmoved:    faults.NewSeries(log, "cannot read who campaigns through other proxies", 0),
	}
}

// followHandovers reads the offers if there are new orders, and records who campaigns.
func (e *Elections) followHandovers(ctx context.Context, f *handoverPoll, ordered bool) {
	if f.from == nil {
		return
	}
	f.due = f.due || ordered
	if f.due {
		err := e.readOffers(ctx, f.database, f.from)
		if f.due = err != nil; !f.due {
			f.unread.Passed()
		} else if ctx.Err() == nil {
			f.unread.Failed(zap.Error(err))
		}
	}
	e.recordCandidates(ctx, f, 5*orderPoll)
	e.followMoved(ctx, f)
}

// followMoved gives up the leases that are kept for workers that have left in order, and that now campaign
// through another proxy.
func (e *Elections) followMoved(ctx context.Context, f *handoverPoll) {
	for _, r := range e.resourcesOf(f.database) {
		for _, c := range r.all() {
			if !c.isRetained() {
				continue
			}
			limited, cancel := context.WithTimeout(ctx, 5*orderPoll)
			all, err := f.from.Elsewhere(limited, r.key.name, c.worker)
			cancel()
			if err != nil {
				if ctx.Err() == nil {
					f.unmoved.Failed(zap.Error(err))
				}
				return
			}
			f.unmoved.Passed()
			if slices.ContainsFunc(all, c.isSameWorker) {
				c.movedElsewhere()
			}
		}
	}
}

// isRetained reports whether the candidacy is kept although its last member has left.
func (c *Candidacy) isRetained() bool {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.retained != 0 && !c.nameless
}

// isSameWorker reports whether an incarnation is that of another candidacy of the same worker and role.
func (c *Candidacy) isSameWorker(incarnation string) bool {
	_, mine := own.PresenceID(incarnation, c.user, c.worker)
	return mine && incarnation != c.Incarnation()
}

// movedElsewhere ends the retention, because the worker campaigns through another proxy.
func (c *Candidacy) movedElsewhere() {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.log.Info("the worker has come back through another proxy: its lease is not kept here any longer")
	c.endRetentionLocked()
}

func (e *Elections) recordCandidates(ctx context.Context, f *handoverPoll, limit time.Duration) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch err := f.from.Record(limited, e.candidates(f.database)); {
	case err == nil:
		f.unrecorded.Passed()
	case ctx.Err() == nil:
		f.unrecorded.Failed(zap.Error(err))
	}
}

// leaveHandovers is the last thing that is done for a database that has no candidacy any more.
func (e *Elections) leaveHandovers(f *handoverPoll) {
	if f.from != nil {
		e.recordCandidates(context.Background(), f, leaveTimeout)
	}
}
