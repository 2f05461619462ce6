package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/migrations"
	"github.com/fencepost/fencepost/upstream"
)

const (
	// lookTimeout bounds the look at one database.
	lookTimeout = 20 * time.Second
	// leaseTimeout bounds the look at the lease service.
	leaseTimeout = 10 * time.Second
	// mostDatabases bounds how many databases are searched for a schema.
	mostDatabases = 16
	// home is the database in which the control role logs in if none is named.
	home = "postgres"
)

// Sources are where Look gathers its facts.
type Sources struct {
	// Settings are looked at, and Control and Leases are used, unless Settings is nil.
	Settings *config.Config
	Control  store.Config // its Database is replaced
	// Hosts are the servers of upstream.address if it has several, after a look at each.
	Hosts []upstream.HostStatus
	// Leases tries what an election needs of the lease service.
	Leases func(ctx context.Context) error
	// Risks says what can cost leaders their leases although the lease service works. It may be nil.
	Risks func(ctx context.Context) ([]elector.Risk, error)
	// Position says how far the lease service has counted its awards, for the database of conn.
	Position func(ctx context.Context, conn *pgx.Conn) (elector.Position, error)
	// Databases are looked at as the control role. If there are none, those that have the
	// schema are.
	Databases []string
	// Operator, if not nil, connects to the one database that is looked at instead, usually
	// as a superuser, who sees more.
	Operator func(ctx context.Context) (*pgx.Conn, error)
}

// Look gathers the facts. What cannot be looked at is in Failures of the result.
func Look(ctx context.Context, s Sources) Facts {
	f := Facts{Settings: s.Settings, Hosts: s.Hosts}
	if s.Settings != nil {
		f.leases(ctx, s.Leases)
		f.risks(ctx, s.Risks)
	}
	switch {
	case s.Operator != nil:
		f.asOperator(ctx, s)
	default:
		f.asControl(ctx, s)
	}
	return f
}

// asOperator looks at one database on the operator's connection.
func (f *Facts) asOperator(ctx context.Context, s Sources) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	conn, err := s.Operator(ctx)
	if err != nil {
		f.Failures = append(f.Failures, err.Error())
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET search_path = pg_catalog, pg_temp"); err != nil { // names are shown with their schemas
		f.Failures = append(f.Failures, fmt.Sprintf("prepare the session: %v", err))
		return
	}
	f.at(ctx, s, conn)
	if s.Settings == nil {
		f.Notes = append(f.Notes, "The configuration, the login of the control role and the lease service were not looked at: give --config too.")
		return
	}
	f.Login = login(store.Look(ctx, in(s.Control, conn.Config().Database), func(*pgx.Conn) error { return nil }))
}

// asControl looks at the databases as the control role.
func (f *Facts) asControl(ctx context.Context, s Sources) {
	named := s.Databases
	if probe := s.Settings.Control.ProbeDatabase; len(named) == 0 && probe != "" {
		named = []string{probe}
	}
	search := len(named) == 0
	if search {
		all, err := databases(ctx, s.Control)
		if err != nil {
			f.Login = login(err)
			return
		}
		if len(all) > mostDatabases {
			all = all[:mostDatabases]
			f.Notes = append(f.Notes, fmt.Sprintf("Only %d databases were searched for the schema fencepost: name the others with --database.", mostDatabases))
		}
		named = all
	}
	for _, name := range named {
		err := f.one(ctx, s, name, search)
		switch {
		case err == nil:
		case store.Gone(err):
			f.Failures = append(f.Failures, fmt.Sprintf("database %s does not exist", name))
		case search && store.Refused(err): // another's database
		case search:
			f.Failures = append(f.Failures, err.Error())
		default:
			f.Login = login(err)
		}
	}
	if search && len(f.Databases) == 0 && len(f.Failures) == 0 {
		f.NoFence = named
	}
}

func databases(ctx context.Context, control store.Config) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return store.Databases(ctx, in(control, home), mostDatabases+1)
}

// one looks at a database as the control role. Its error says that it cannot log in.
func (f *Facts) one(ctx context.Context, s Sources, name string, search bool) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return store.Look(ctx, in(s.Control, name), func(conn *pgx.Conn) error {
		if search {
			state, err := migrations.Status(ctx, conn)
			if err == nil && state.Version == 0 {
				return nil
			}
		}
		f.at(ctx, s, conn)
		return nil
	})
}

// at looks at the server, the first time, and at the database that conn is connected to.
func (f *Facts) at(ctx context.Context, s Sources, conn *pgx.Conn) {
	name := conn.Config().Database
	if f.Postgres == nil {
		p, notes, err := server(ctx, conn)
		f.Notes = append(f.Notes, notes...)
		if err != nil {
			f.Failures = append(f.Failures, "look at Postgres: "+err.Error())
		} else {
			f.Postgres = &p
		}
	}
	d, err := database(ctx, conn)
	if err != nil {
		f.Failures = append(f.Failures, fmt.Sprintf("look at database %s (the control role or a superuser may): %v", name, err))
		return
	}
	f.awards(ctx, s, conn, &d)
	f.stamps(ctx, conn, d.Guards)
	f.Databases = append(f.Databases, d)
}

// namedUsers returns the roles that the configuration names as those of workers.
func namedUsers(c *config.Config) (users []string) {
	if c == nil {
		return nil
	}
	for _, r := range c.Resources {
		users = append(users, r.Users...)
	}
	return users
}

// leases tries the lease service.
func (f *Facts) leases(ctx context.Context, try func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := try(ctx)
	var denied *elector.DeniedError
	switch {
	case err == nil:
	case errors.As(err, &denied):
		f.Leases = &faults.Fault{Kind: denied.Kind, Problem: err.Error(), Remedy: denied.Remedy}
	default:
		f.Leases = &faults.Fault{Kind: faults.LeaseService, Problem: err.Error(),
			Remedy: elector.RemedyOf(err, "Make sure that the lease service runs, that it has a leader, and that Fencepost can reach it (settings election.*).")}
	}
}

func in(c store.Config, database string) store.Config {
	c.Database = database
	return c
}

// login returns the fault of a login, nil if there is none.
func login(err error) *faults.Fault {
	if err == nil {
		return nil
	}
	f := store.FaultOf(err)
	if f.Kind == faults.Upstream && f.Remedy == "" {
		f.Remedy = "Make sure that Postgres runs, and that upstream.address and upstream.tls are right."
	}
	return f
}
