package fence

import (
	"slices"
	"sync"
	"time"
)

// reports are the last reports about each resource. They outlive a grant, because one that
// was given up is followed by another one. A report about which no one has looked for reportLifetime is dropped:
// what it names may be gone.
type reports struct {
	mu sync.Mutex
	by map[string][]string // by resource
	// blocking are the transactions that blocked the last grant which was given up, by resource.
	blocking map[string][]string
	watchers map[string]*watchers // by resource
}

func newReports() *reports {
	return &reports{by: map[string][]string{}, blocking: map[string][]string{}, watchers: map[string]*watchers{}}
}

// watchers is who looks at what blocks a resource.
type watchers struct {
	n    int         // grants, and calls of AwaitUnblocked
	drop *time.Timer // drops the report, nil while someone looks
}

// reportLifetime is longer than the pause between two attempts of a grant whose lease is kept.
const reportLifetime = 5 * time.Second

// startWatch records that someone looks at what blocks the resource, until done is called.
func (r *reports) startWatch(resource string, notify func(resource string, by []string)) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.watchers[resource]
	if l == nil {
		l = &watchers{}
		r.watchers[resource] = l
	}
	l.n++
	if l.drop != nil {
		l.drop.Stop()
		l.drop = nil
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if l.n--; l.n > 0 {
			return
		}
		if len(r.by[resource]) == 0 {
			delete(r.watchers, resource)
			return
		}
		var drop *time.Timer
		drop = time.AfterFunc(reportLifetime, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if l.drop != drop {
				return // someone has looked since
			}
			delete(r.watchers, resource)
			delete(r.blocking, resource)
			r.changeLocked(resource, nil, notify)
		})
		l.drop = drop
	}
}

// standbys means the synchronous standbys in a list of transactions.
const standbys = "standbys"

// keep records which transactions blocked a grant that was given up.
func (r *reports) keep(resource string, transactions []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocking[resource] = transactions
}

// kept returns what keep has recorded, and forgets it.
func (r *reports) kept(resource string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	transactions := r.blocking[resource]
	delete(r.blocking, resource)
	return transactions
}

// of returns the last report about a resource.
func (r *reports) of(resource string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[resource]
}

// change records a report, and calls notify and returns true if it differs from the last one.
func (r *reports) change(resource string, by []string, notify func(resource string, by []string)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changeLocked(resource, by, notify)
}

// changeLocked is change. r.mu is held, so that the calls of notify are in order.
func (r *reports) changeLocked(resource string, by []string, notify func(resource string, by []string)) bool {
	if slices.Equal(by, r.by[resource]) {
		return false
	}
	if r.by[resource] = by; len(by) == 0 {
		delete(r.by, resource)
	}
	notify(resource, by)
	return true
}

// BlockedBy returns what the last grant on the resource waits for, or was given up for, and cannot
// end; nothing if that is not so, or if no one looks any more.
func (f *Fence) BlockedBy() []string { return f.db.reports.of(f.resource) }
