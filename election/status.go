package election

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// ResourceStatus is what this proxy knows about one resource.
type ResourceStatus struct {
	Database string
	Resource string
	// Record is the highest known grant: leader, epoch, and since when.
	Record fencing.Record
	// LeaseState is what the lease service shows.
	LeaseState elector.State
	// State says whether anyone leads, since StateSince, which is zero if that is not
	// known. Reason says why the state is Unknown or Blocked, and in some cases why it is
	// Electing. Callers may add one to others.
	State      State
	StateSince time.Time
	Reason     error
	// Local means that a candidacy of this proxy leads.
	Local bool
	// Proxy is the proxy through which the worker that was granted the epoch is connected, as the database says; "" if
	// that is not known. Elections leaves it to its caller.
	Proxy string
	// AsOf is when the database has said who leads, if this proxy knows the state from there alone; otherwise it is zero.
	// Elections leaves it to its caller.
	AsOf time.Time
	// LeaseLeft is how much longer the leader's lease is confirmed; 0 if that is not known.
	LeaseLeft time.Duration
	// Holds means that a candidacy of this proxy holds the lease for its epoch, and Margin
	// is how much longer that lease is trusted without a renewal.
	Holds  bool
	Margin time.Duration
	// Leaderless is how long no worker has been known to be able to write: since the lease
	// was free or no longer confirmed, and until an epoch is granted. It is 0 while someone
	// leads, and while no one is meant to (State.Rests).
	Leaderless time.Duration
	// FalseAlarms counts the workers that became active again, before anyone else was
	// granted an epoch, after their lease was released as unresponsive.
	FalseAlarms int
	// Unusable is why no candidacy can begin, because of the fence, or why none can write, because the
	// fence is not the one that it was; nil if one can, as far as the last connection and the last
	// reading of the fence have shown.
	Unusable error
	// LostOrder, if not nil, is an operator's order that this proxy has seen, and that a
	// failover or a restore has lost.
	LostOrder *fencing.Order
	// WatchError says why the lease service cannot be watched at the moment.
	WatchError error
	// Offered is the worker to whom an operator hands the resource over, "" for nobody; nobody else
	// leads until OfferedUntil, unless that worker takes the lead before.
	Offered      string
	OfferedUntil time.Time
	// Orders are those of operators that keep workers from leading now, in words, as of when the database was last asked,
	// at OrdersAsked; that is zero if it was not.
	Orders      []string
	OrdersAsked time.Time
	Candidacies []CandidacyStatus
}

// CandidacyStatus is the state of one candidacy of this proxy.
type CandidacyStatus struct {
	User         string
	Worker       string
	Incarnation  string
	Status       fencing.Status
	Members      int
	Unresponsive bool
	Retained     bool
	Observes     bool // none of its connections campaigns
	Campaigns    bool // it asks for the lease, or has it; not if its worker is superseded
	// WorkerTimeout is how long this worker may currently be inactive, 0 for unlimited: its
	// timeout, or less if it has promised heartbeats. FalseAlarms counts the
	// false alarms that have extended it. The count and the extension end an hour after
	// the last one.
	WorkerTimeout time.Duration
	FalseAlarms   int
	// Heartbeat is how often this worker has promised to send something, 0 if it has
	// promised nothing.
	Heartbeat time.Duration
	// Silence is for how long this worker has been inactive, as of the last look; 0 while WorkerTimeout is unlimited.
	Silence time.Duration
	// LongestSilence is how long this worker was inactive at most since the candidacy began; 0
	// while WorkerTimeout is unlimited.
	LongestSilence time.Duration
}

// Resources returns what is known about every resource that has candidacies here, or
// had some recently, ordered by database and name. It sends no requests.
func (e *Elections) Resources() []ResourceStatus {
	resources := e.all()
	all := make([]ResourceStatus, 0, len(resources))
	for _, r := range resources {
		all = append(all, r.status())
	}
	slices.SortFunc(all, func(a, b ResourceStatus) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

// LedByTokens reports whether the workers of a resource that is known here are elected elsewhere, as was
// configured when it was first used here.
func (e *Elections) LedByTokens(database, resource string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.mu.resources[resourceKey{database, resource}]
	return r != nil && r.tokenProvider != nil
}

// all returns all resources.
func (e *Elections) all() []*resource {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.mu.resources))
}

func (r *resource) status() ResourceStatus {
	o, lost := r.e.lostOrder(r.key)
	r.mu.Lock()
	st := r.summaryLocked()
	for c := range r.mu.loops {
		st.Candidacies = append(st.Candidacies, c.statusLocked())
	}
	r.mu.Unlock()
	if lost {
		st.LostOrder = &o
	}
	slices.SortFunc(st.Candidacies, func(a, b CandidacyStatus) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.User, b.User), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return st
}

// summaryLocked returns the status without the candidacies.
func (r *resource) summaryLocked() ResourceStatus {
	now, clock := r.e.cfg.Now(), time.Now()
	state := r.stateLocked(now)
	unusable := r.mu.unusable
	if r.lostLocked() {
		unusable = r.mu.lost
	}
	st := ResourceStatus{
		Database: r.key.database, Resource: r.key.name, Record: r.mu.record, State: state.state, Reason: state.why,
		LeaseState: r.mu.observation.State, FalseAlarms: r.mu.falseAlarms, WatchError: r.mu.watchErr, Unusable: unusable, Orders: r.mu.inForce.Orders,
		Local: r.leaderLocked() == leaderHere,
	}
	if state.since != 0 {
		st.StateSince = clock.Add(state.since - now)
	}
	if r.mu.asked != 0 {
		st.OrdersAsked = clock.Add(r.mu.asked - now)
	}
	if state.until != 0 {
		st.LeaseLeft = max(0, state.until-now)
	}
	if o := r.offerLocked(); o.IsActive(now) {
		st.Offered, st.OfferedUntil = o.Worker, clock.Add(o.Until-now)
	}
	if r.mu.holder != nil {
		st.LeaseState = elector.Held
		if term := r.mu.holder.termLocked(); term.Epoch != 0 {
			st.Holds, st.Margin = true, max(0, term.TrustedUntil-now)
		}
	}
	if state.state.NeedsNoLeader() {
		r.mu.noLeaderNeededUntil = now
	} else if since := cmp.Or(r.mu.wantedSince(), state.since); state.state.LacksLeader() && since != 0 {
		st.Leaderless = max(now-since, time.Millisecond) // 0 would mean that someone leads
	}
	return st
}

func (c *Candidacy) statusLocked() CandidacyStatus {
	now := c.r.e.cfg.Now()
	return CandidacyStatus{
		User: c.user, Worker: c.worker, Incarnation: c.incarnation, Status: *c.current.Load(),
		Members: len(c.members), Unresponsive: c.liveness.unresponsive, Retained: c.retained != 0, Observes: c.campaigners == 0, Campaigns: c.campaigns(),
		WorkerTimeout: c.allowedSilence(now), FalseAlarms: c.extension(now).Alarms,
		Silence: c.liveness.quiet, LongestSilence: c.liveness.longest, Heartbeat: c.heartbeat(),
	}
}
