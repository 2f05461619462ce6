// Package health looks, from the start of a proxy on and then every few seconds, whether
// the proxy can do its work: whether Postgres answers and lets the control role log in,
// whether the fences can be used, and whether the lease service grants what an election
// needs. What it finds is in a faults.Register.
package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	// Every is the longest time between two looks.
	Every = 5 * time.Second
	// soonest is the shortest time between two looks, which someone asked for.
	soonest = time.Second
	// leaseEvery is how often the lease service is tried while nothing is known to be wrong
	// with it, because that costs it writes. What goes wrong in the elections, or in what watches the lease
	// service, makes for an earlier look.
	leaseEvery = time.Minute
	// lookTimeout bounds each part of a look.
	lookTimeout = 5 * time.Second
	// surveyed bounds how many databases are examined at the start.
	surveyed = 16
	// recordEvery is how often a database without workers is asked what it knows of its resources, which costs a
	// connection, and mostRecords how many are asked in one look.
	recordEvery = 30 * time.Second
	mostRecords = 16
)

// The places of faults that only this package reports.
const (
	placeSchema   = "databases"
	placeLeases   = "lease service"
	resourcePlace = "resource "
)

// Config is what a Checker looks at. All functions must return when their context ends.
type Config struct {
	Faults *faults.Register
	// Upstream connects to Postgres.
	Upstream func(ctx context.Context) error
	// Control is how to connect as the control role; its Database is replaced.
	Control store.Config
	// Home is the database in which the control role logs in while no other is in use.
	// If Named, it was configured, and must have a fence.
	Home  string
	Named bool
	// Open returns the open databases, which workers have named.
	Open func() map[string]*store.Store
	// Leases tries what an election needs of the lease service.
	Leases func(ctx context.Context) error
	// Watched says what is wrong with the lease service, as far as that is known without asking it.
	Watched   func() error
	Resources func() []status.Resource
	// Dropped is called, again and again, for each database of a resource that the server does
	// not have any more.
	Dropped func(database string)
	// Record reads what a database knows of its resources.
	Record func(ctx context.Context, database string, conn *pgx.Conn) error
}

// Checker looks after one proxy. Its fields, except for cfg, belong to the goroutine that runs Run.
type Checker struct {
	cfg  Config
	wake chan struct{} // cap 1; an early look is wanted

	surveyDone bool
	fenced     map[string]time.Time // databases that have the schema, by when they are to be asked for their resources
	leasesAt   time.Time            // when the lease service was last tried
	loggedIn   chan struct{}
	looked     chan struct{}
	shut       bool // Postgres lets no one log in, as far as the last login has shown
}

// New returns a Checker, which Run starts.
func New(cfg Config) *Checker {
	return &Checker{cfg: cfg, wake: make(chan struct{}, 1), loggedIn: make(chan struct{}), looked: make(chan struct{}), fenced: map[string]time.Time{}}
}

// Observe is called with the events of the elections. It does not block.
func (c *Checker) Observe(e election.Event) {
	if e.Kind == election.EventFailed {
		c.Suspect()
	}
}

// Suspect asks for an early look. It does not block.
func (c *Checker) Suspect() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// LoggedIn reports whether the control role has logged in since the start.
func (c *Checker) LoggedIn() bool {
	select {
	case <-c.loggedIn:
		return true
	default:
		return false
	}
}

// Looked is closed when everything has been looked at once.
func (c *Checker) Looked() <-chan struct{} { return c.looked }

// Run looks until ctx ends.
func (c *Checker) Run(ctx context.Context) {
	first := sync.OnceFunc(func() { close(c.looked) })
	for suspected := true; ctx.Err() == nil; {
		c.look(ctx, suspected)
		first()
		pause := time.NewTimer(soonest)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		rest := Every - soonest
		if c.shut { // the proxy is not ready meanwhile
			rest = 0
		}
		pause.Reset(rest)
		select {
		case <-c.wake:
			suspected = true
		case <-pause.C:
			suspected = false
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// look looks at everything once. suspected says that something has failed since the last
// look, or that this is the first.
func (c *Checker) look(ctx context.Context, suspected bool) {
	if err := c.bounded(ctx, c.cfg.Upstream); err != nil {
		c.report(ctx, faults.InServer, store.FaultOf(err))
	} else {
		c.report(ctx, faults.InServer, nil)
		c.lookAtDatabases(ctx)
	}
	c.lookAtLeases(ctx, suspected)
	c.lookAtResources(ctx)
}

// bounded calls try for at most lookTimeout.
func (c *Checker) bounded(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return try(ctx)
}

// report records what was found in a place, unless the look was ended.
func (c *Checker) report(ctx context.Context, where string, f *faults.Fault) {
	if ctx.Err() == nil {
		c.cfg.Faults.Report(where, f)
	}
}

// control returns how to connect to a database as the control role.
func (c *Checker) control(database string) store.Config {
	cfg := c.cfg.Control
	cfg.Database = database
	return cfg
}

// lookAtDatabases logs in as the control role, and examines the databases that workers
// use, and those that had a fault.
func (c *Checker) lookAtDatabases(ctx context.Context) {
	used := c.used()
	looked := map[string]bool{}
	idle := map[string]bool{} // databases of resources without workers
	for _, r := range c.cfg.Resources() {
		switch st := used[r.Database]; {
		case looked[r.Database]:
		case st != nil:
			looked[r.Database] = true
			c.examined(ctx, r.Database, c.bounded(ctx, st.Examine))
		case utf8.ValidString(r.Database): // otherwise it cannot be a parameter
			idle[r.Database] = true
		}
	}
	var doubtful []string
	for _, where := range c.cfg.Faults.Places() {
		if name, ok := faults.DatabaseOf(where); ok {
			doubtful = append(doubtful, name)
		}
	}
	for _, name := range doubtful {
		if !looked[name] {
			looked[name] = true
			c.examined(ctx, name, c.Probe(ctx, name))
		}
	}
	maps.DeleteFunc(idle, func(name string, _ bool) bool { return looked[name] })
	if c.login(ctx, slices.Sorted(maps.Keys(looked)), slices.Sorted(maps.Keys(idle))) && !c.surveyDone {
		c.surveyDone = c.survey(ctx)
	}
	c.record(ctx, used)
}

// used returns the databases that workers use. The pools of others are empty, and stay so: an open connection would keep
// an administrator from dropping or copying the database.
func (c *Checker) used() map[string]*store.Store {
	open, used := c.cfg.Open(), map[string]*store.Store{}
	for _, r := range c.cfg.Resources() {
		if st := open[r.Database]; st != nil && len(r.Candidacies) > 0 {
			used[r.Database] = st
		}
	}
	return used
}

// record asks the databases what they know of their resources: those that workers use in each look, unless that would
// take a fiftieth of the time, and others from time to time. What keeps one from answering is reported by the other looks
// at it, and what it has said before stays.
func (c *Checker) record(ctx context.Context, used map[string]*store.Store) {
	for name := range c.cfg.Open() {
		if _, ok := c.fenced[name]; !ok {
			c.fenced[name] = time.Time{}
		}
	}
	faulty := c.cfg.Faults.Places()
	due := slices.DeleteFunc(slices.Collect(maps.Keys(c.fenced)), func(name string) bool {
		return time.Now().Before(c.fenced[name]) || slices.Contains(faulty, faults.InDatabase(name))
	})
	slices.SortFunc(due, func(a, b string) int { return c.fenced[a].Compare(c.fenced[b]) })
	for _, name := range due[:min(len(due), mostRecords)] {
		began, pause := time.Now(), time.Duration(0)
		if used[name] == nil {
			pause = recordEvery
		}
		err := c.bounded(ctx, func(ctx context.Context) error { return c.Record(ctx, name) })
		c.fenced[name] = time.Now().Add(max(pause, min(50*time.Since(began), time.Minute)))
		if store.Gone(err) {
			delete(c.fenced, name)
			c.cfg.Dropped(name)
		}
	}
}

// Record asks a database what it knows of its resources now. Any goroutine may call it.
func (c *Checker) Record(ctx context.Context, database string) error {
	if st := c.used()[database]; st != nil {
		return st.Pool().AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return c.cfg.Record(ctx, database, conn.Conn()) })
	}
	return store.Look(ctx, c.control(database), func(conn *pgx.Conn) error { return c.cfg.Record(ctx, database, conn) })
}

// Probe logs in to a database and examines it. Any goroutine may call it.
func (c *Checker) Probe(ctx context.Context, database string) error {
	return c.bounded(ctx, func(ctx context.Context) error { return store.Probe(ctx, c.control(database)) })
}

// Examined records that a database could not be opened because of err, or that it could.
func (c *Checker) Examined(database string, err error) {
	c.examined(context.Background(), database, err)
}

func (c *Checker) examined(ctx context.Context, database string, err error) {
	switch {
	case store.Gone(err): // no one can name a database that does not exist
		c.cfg.Dropped(database)
		fallthrough
	case err == nil:
		c.report(ctx, faults.InDatabase(database), nil)
	case !errors.Is(err, context.Canceled):
		c.report(ctx, faults.InDatabase(database), store.FaultOf(err))
	}
}

// lookAtLeases tries the lease service.
func (c *Checker) lookAtLeases(ctx context.Context, suspected bool) {
	faulty := slices.Contains(c.cfg.Faults.Places(), placeLeases)
	if !suspected && !faulty && c.cfg.Watched() == nil && time.Since(c.leasesAt) < leaseEvery {
		return
	}
	c.leasesAt = time.Now()
	err := c.bounded(ctx, c.cfg.Leases)
	var denied *elector.DeniedError
	switch {
	case err == nil:
		c.report(ctx, placeLeases, nil)
	case errors.As(err, &denied):
		problem := err.Error()
		if denied.Answer != "" {
			problem = "the lease service refuses Fencepost: " + problem
		}
		c.report(ctx, placeLeases, &faults.Fault{Kind: denied.Kind, Problem: problem, Remedy: denied.Remedy})
	default:
		c.report(ctx, placeLeases, &faults.Fault{Kind: faults.LeaseService, Problem: err.Error(),
			Remedy: elector.RemedyOf(err, "Make sure that the lease service runs and that Fencepost can reach it (settings election.*).")})
	}
}

// lookAtResources looks for workers whose fence cannot be used.
func (c *Checker) lookAtResources(ctx context.Context) {
	found := map[string]*faults.Fault{}
	for _, r := range c.cfg.Resources() {
		why := r.Unusable
		for _, w := range r.Candidacies {
			if w.Status.Fault != nil {
				why = w.Status.Fault
			}
		}
		if why != nil {
			found[fmt.Sprintf("%s%s of %s", resourcePlace, r.Resource, faults.InDatabase(r.Database))] = store.FaultOf(why)
		}
	}
	for _, where := range c.cfg.Faults.Places() {
		if strings.HasPrefix(where, resourcePlace) && found[where] == nil {
			c.report(ctx, where, nil)
		}
	}
	for where, f := range found {
		c.report(ctx, where, f)
	}
}
