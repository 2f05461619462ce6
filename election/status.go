package election

import (
	"cmp"
	"slices"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// ResourceStatus is what this proxy knows about one resource.
type ResourceStatus struct {
	Database string
	Resource string
	// Record is the highest known grant: leader, epoch, and since when.
	Record fencing.Record
	// LeaseState is what the lease service shows.
	LeaseState LeaseState
	// Local means that a candidacy of this proxy leads. LeaseLeft is how much longer its
	// lease is trusted.
	Local     bool
	LeaseLeft time.Duration
	// Leaderless is how long no worker has been able to write: since the lease was free or
	// no longer confirmed, and until an epoch is granted. It is 0 while somebody leads, and
	// where this proxy has no candidacy, and so does not know.
	Leaderless time.Duration
	// FalseAlarms counts the workers that became active again after their lease was
	// released as unresponsive.
	FalseAlarms int
	// WatchError says why the lease service cannot be watched at the moment.
	WatchError  error
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
	// WorkerTimeout is how long this worker may currently be inactive, 0 for unlimited.
	// FalseAlarms counts its false positives of the last 24 hours, which have extended
	// the timeout.
	WorkerTimeout time.Duration
	FalseAlarms   int
}

// Resources returns what is known about every resource that has candidacies here, or
// had some recently, ordered by database and name. It sends no requests.
func (e *Elections) Resources() []ResourceStatus {
	e.mu.Lock()
	resources := make([]*resource, 0, len(e.mu.resources))
	for _, r := range e.mu.resources {
		resources = append(resources, r)
	}
	e.mu.Unlock()
	all := make([]ResourceStatus, 0, len(resources))
	for _, r := range resources {
		all = append(all, r.status())
	}
	slices.SortFunc(all, func(a, b ResourceStatus) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

func (r *resource) status() ResourceStatus {
	now := r.e.cfg.Now()
	r.mu.Lock()
	st := ResourceStatus{
		Database: r.key.database, Resource: r.key.name, Record: r.mu.record,
		LeaseState: r.mu.observation.State, FalseAlarms: r.mu.falseAlarms, WatchError: r.mu.watchErr,
	}
	holder, since := r.mu.holder, r.mu.leaderlessSince
	st.Local = r.leaderLocked() == leaderHere
	r.mu.Unlock()
	if holder != nil {
		st.LeaseState = Held
	}
	if st.Local {
		st.LeaseLeft = max(0, holder.Term().TrustedUntil-now)
	}
	if since != 0 {
		st.Leaderless = now - since
	}
	for _, c := range r.all() {
		st.Candidacies = append(st.Candidacies, c.status())
	}
	slices.SortFunc(st.Candidacies, func(a, b CandidacyStatus) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.User, b.User), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return st
}

func (c *Candidacy) status() CandidacyStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CandidacyStatus{
		User: c.user, Worker: c.worker, Incarnation: c.incarnation, Status: *c.current.Load(),
		Members: len(c.mu.members), Unresponsive: c.mu.liveness.unresponsive, Retained: c.mu.retained != 0, Observes: c.mu.campaigners() == 0,
		WorkerTimeout: c.effective(c.mu.timeout(c.r.set.WorkerTimeout)), FalseAlarms: c.extension().alarms,
	}
}
