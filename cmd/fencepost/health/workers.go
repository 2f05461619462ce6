package health

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	// refusedFor is how long the role of a refused connection is looked at, unless it may connect again
	// before, or is refused again.
	refusedFor = 10 * time.Minute
	// maxRefused bounds how many such roles are remembered.
	maxRefused = 1000
)

// refusedRole is the role of a connection that was refused.
type refusedRole struct {
	database string
	store.WorkerRole
}

// refusals are the roles of connections that were refused because their checks could not be prepared. Such
// a worker has no candidacy that lasts.
type refusals struct {
	mu    sync.Mutex
	until map[refusedRole]time.Time
}

func (r *refusals) add(role refusedRole, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = make(map[refusedRole]time.Time)
	}
	if _, known := r.until[role]; known || len(r.until) < maxRefused {
		r.until[role] = now.Add(refusedFor)
	}
}

// current returns the roles that are to be looked at, and forgets the others.
func (r *refusals) current(now time.Time) []refusedRole {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.until, func(_ refusedRole, until time.Time) bool { return now.After(until) })
	return slices.Collect(maps.Keys(r.until))
}

// databases returns the databases of the roles that are to be looked at, except those whose names cannot be parameters.
func (r *refusals) databases(now time.Time) (names []string) {
	for _, role := range r.current(now) {
		if utf8.ValidString(role.database) && !slices.Contains(names, role.database) {
			names = append(names, role.database)
		}
	}
	return names
}

// passed forgets the roles of a database that were added before this time.
func (r *refusals) passed(database string, before time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.until, func(role refusedRole, until time.Time) bool {
		return role.database == database && !until.After(before.Add(refusedFor))
	})
}

// Unprepared is told of each connection that is refused because its check could not be prepared. It does
// not block.
func (c *Checker) Unprepared(database, user, resource string) {
	c.refused.add(refusedRole{database, store.WorkerRole{Role: user, Resource: resource}}, time.Now())
	c.Suspect()
}

// lookAtWorkers looks whether the roles of the workers may run the check: of those that are connected, and of
// those that were refused.
func (c *Checker) lookAtWorkers(ctx context.Context) {
	began := time.Now()
	workers := map[string]map[store.WorkerRole]struct{}{} // by database
	add := func(database string, w store.WorkerRole) {
		if !utf8.ValidString(database) || !utf8.ValidString(w.Role) { // it cannot be a parameter
			return
		}
		if workers[database] == nil {
			workers[database] = map[store.WorkerRole]struct{}{}
		}
		workers[database][w] = struct{}{}
	}
	for _, r := range c.cfg.Resources() {
		for _, w := range r.Candidacies {
			add(r.Database, store.WorkerRole{Role: w.User, Resource: r.Resource})
		}
	}
	for _, r := range c.refused.current(began) {
		add(r.database, r.WorkerRole)
	}
	for _, where := range c.cfg.Faults.Places() {
		if database, ok := faults.WorkersOf(where); ok && len(workers[database]) == 0 {
			c.report(ctx, where, nil)
		}
	}
	open := c.cfg.Open()
	for database, roles := range workers {
		var fault *faults.Fault
		err := c.bounded(ctx, func(ctx context.Context) (err error) {
			list := slices.Collect(maps.Keys(roles))
			if st := open[database]; st != nil {
				fault, err = st.LookAtWorkers(ctx, list)
			} else {
				fault, err = store.ProbeWorkers(ctx, c.control(database), list)
			}
			return err
		})
		switch {
		case err == nil && fault == nil:
			c.refused.passed(database, began)
			fallthrough
		case err == nil, store.Gone(err):
			c.report(ctx, faults.InWorkers(database), fault)
		} // any other error is the database's, which lookAtDatabases reports
	}
}
