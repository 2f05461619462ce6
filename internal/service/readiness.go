package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/service/health"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/migrations"
)

const (
	// readyFor is how long a result of /readyz is reused. The admin address has no
	// authentication, and more frequent requests must not put load on Postgres.
	readyFor = time.Second
	// warnedFor is the same for the warnings, which are read from each database.
	warnedFor = time.Minute
	// partlyFor is the same if a database has not given its warnings.
	partlyFor = 10 * time.Second
	// warningsTimeout bounds the reading of the warnings. Kubernetes' probes have 1 s by default.
	warningsTimeout = 500 * time.Millisecond
	// askedAtOnce is how many databases are asked at one time.
	askedAtOnce = 8
	// readAgainTimeout bounds the question what databases know, when an operator asks, or a load balancer, whose probes
	// may have 1 s.
	readAgainTimeout = 300 * time.Millisecond
)

// remembered is a result that is reused for a while. Only one caller computes it;
// concurrent callers wait for the same result.
type remembered[T any] struct {
	mu    sync.Mutex
	until time.Time
	last  T
}

// get returns the last result, or computes a new one, and for how long it counts, if that is too
// old. The computation does not end with the caller that started it, because others may wait for
// it.
func (r *remembered[T]) get(ctx context.Context, ask func(context.Context) (T, time.Duration)) T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().After(r.until) {
		var counts time.Duration
		r.last, counts = ask(context.WithoutCancel(ctx))
		r.until = time.Now().Add(counts)
	}
	return r.last
}

// databases are the databases that this proxy has opened.
type databases struct {
	mu     sync.Mutex
	open   map[string]*store.Store
	warned map[string]lastWarnings
}

// lastWarnings are those that a database gave last.
type lastWarnings struct {
	list   []string
	known  bool  // it has given them
	failed error // why it has not given them since
}

func (f *databases) add(database string, st *store.Store) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = make(map[string]*store.Store)
	}
	f.open[database] = st
}

// all returns the databases that are open.
func (f *databases) all() map[string]*store.Store {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.open)
}

func (f *databases) remove(database string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, database)
	delete(f.warned, database)
}

// warnings asks each database for its warnings, and says for how long the result counts. Of one that
// does not give them in time, or was not asked because others took the time, the result contains those
// that it gave last, and it is asked again soon.
func (f *databases) warnings(ctx context.Context) (all []string, counts time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, warningsTimeout)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for database, st := range f.all() {
		group.Go(func() error {
			var list []string
			err := st.Pool().AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
				list, err = migrations.Warnings(ctx, conn.Conn())
				return err
			})
			if store.Gone(err) {
				err = nil
			}
			f.warn(database, st, list, err)
			return err
		})
	}
	counts = warnedFor
	if group.Wait() != nil {
		counts = partlyFor
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, database := range slices.Sorted(maps.Keys(f.warned)) {
		of, last := "database "+database, f.warned[database]
		switch {
		case !last.known:
			all = append(all, fmt.Sprintf("%s: its warnings are not known: %v", of, last.failed))
		case last.failed != nil:
			of += ", as last known"
		}
		for _, w := range last.list {
			all = append(all, of+": "+w)
		}
	}
	return all, counts
}

// warn keeps the warnings of a database that is still open. failed is why it has not given them.
func (f *databases) warn(database string, st *store.Store, list []string, failed error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[database] != st {
		return
	}
	if f.warned == nil {
		f.warned = make(map[string]lastWarnings)
	}
	last := lastWarnings{list: list, known: true}
	if failed != nil {
		last = f.warned[database]
		last.failed = failed
	}
	f.warned[database] = last
}

// tryUpstream tries the primary.
func (s *Server) tryUpstream(ctx context.Context) error { return hosts.Try(ctx, s.upstream) }

// reachUpstream tries the primary. If that works, a fault that an earlier try has found is over.
func (s *Server) reachUpstream(ctx context.Context) error {
	err := s.tryUpstream(ctx)
	if err == nil {
		s.faults.Report(faults.InServer, nil)
	}
	return err
}

// resources returns what is known of every resource, by the elections and by the databases. None is led while Postgres
// does not answer.
func (s *Server) resources() []status.Resource {
	all := s.records.Merge(s.elections.Resources())
	return admin.Writable(all, s.faults.Active(), time.Now())
}

// resourcesNow is resources for an operator who asks. What a database without a worker here knows is asked for rarely
// otherwise.
func (s *Server) resourcesNow() []status.Resource {
	s.reread.get(context.Background(), s.readAgain)
	return s.resources()
}

// readAgain asks the databases whose resources are paused without a worker here, because only they know when that is
// over, and those that were not asked for longer than health asks the others, unless Postgres does not answer. What one
// does not say in time stays as it was last known.
func (s *Server) readAgain(ctx context.Context) (none struct{}, counts time.Duration) {
	if slices.ContainsFunc(s.faults.Active(), func(f faults.Active) bool { return f.Where == faults.InServer }) {
		return none, readyFor
	}
	ctx, cancel := context.WithTimeout(ctx, readAgainTimeout)
	defer cancel()
	due := s.records.ReadBefore(time.Now().Add(-health.Every))
	for _, r := range s.resources() {
		if r.State == status.Paused && len(r.Candidacies) == 0 && !slices.Contains(due, r.Database) {
			due = append(due, r.Database)
		}
	}
	faulty := s.faults.Places()
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for _, database := range due {
		if slices.Contains(faulty, faults.InDatabase(database)) {
			continue
		}
		group.Go(func() error { return s.health.Record(ctx, database) })
	}
	_ = group.Wait() // the looks of health report what keeps a database from answering
	return none, readyFor
}

// newHealth returns what looks for faults while s runs.
func (s *Server) newHealth() *health.Checker {
	return health.New(health.Config{
		Faults:   s.faults,
		Upstream: s.tryUpstream,
		Control:  hosts.Store(*s.current(), s.upstream, ""),
		Home:     hosts.Home(s.current()), Named: s.current().Control.ProbeDatabase != "",
		Open:      s.fences.all,
		Leases:    s.tryLeases,
		Watched:   func() error { return s.leases.Healthy() },
		Resources: s.elections.Resources,
		Record:    s.records.Read,
		Dropped: func(database string) {
			s.elections.Dropped(database)
			s.records.Forget(database)
		},
	})
}

// tryLeases tries what the elections need of the lease service.
func (s *Server) tryLeases(ctx context.Context) error {
	if err := s.leases.Check(ctx, s.current().TTLs()); err != nil {
		return err
	}
	return s.leases.Healthy()
}

// readiness tests whether Postgres is reachable. A problem with the election is
// reported but does not make the proxy unready, and neither does any other fault, except
// that Postgres lets nobody log in, and that the control role has not been able to log in since
// the start.
func (s *Server) readiness(ctx context.Context) admin.Readiness {
	err := s.reached.get(ctx, func(ctx context.Context) (error, time.Duration) { return s.reachUpstream(ctx), readyFor })
	r := admin.Readiness{Upstream: "ok", Election: "ok", Draining: s.draining.Load(), Faults: s.faults.Active(), RestartPending: s.settings.Pending()}
	if at, ok := s.settings.Last(); !ok {
		at = at.UTC().Truncate(time.Millisecond)
		r.ReloadFailed = &at
	}
	if err != nil {
		r.Upstream = err.Error()
	} else {
		r.Warnings = s.warned.get(ctx, s.fences.warnings)
	}
	r.Hosts = s.upstream.Statuses()
	r.Warnings = append(s.upstream.Warnings(), r.Warnings...)
	if err := s.leases.Healthy(); err != nil {
		r.Election = err.Error()
	}
	for _, res := range s.elections.Resources() {
		if problem := electionProblem(res); problem != "" {
			r.Election = fmt.Sprintf("resource %s of database %s: %s", res.Resource, res.Database, problem)
		}
	}
	r.Ready = err == nil && !r.Draining
	for _, f := range r.Faults {
		switch {
		case f.Kind == faults.Upstream && (f.Where == faults.InControl || f.Where == faults.InServer):
			r.Ready = false
			if err == nil {
				r.Upstream = f.Problem
			}
		case f.Kind == faults.ControlLogin && !s.health.LoggedIn():
			r.Ready = false
		}
	}
	return r
}

// electionProblem says what is wrong with the election of a resource, "" if nothing is known
// to be.
func electionProblem(r status.Resource) string {
	if r.WatchError != nil {
		return r.WatchError.Error()
	}
	for _, c := range r.Candidacies {
		if c.Status.Lapsed {
			return fmt.Sprintf("the lease of worker %s is not confirmed", c.Worker)
		}
	}
	return ""
}
