package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
	"github.com/fencepost/fencepost/internal/admin"
)

// The role of the workers, and the application's database. The role is not a superuser, because a
// superuser could disable the fence.
const (
	workerRole = "shop"
	database   = "shop"
)

// environment is everything that a run needs. It is discarded at the end.
type environment struct {
	o      Options
	dir    string
	pg     *scratch.Postgres
	leases *leaseService // nil with the embedded elector
	fence  *scratch.Process
	listen string // where Fencepost listens for Postgres clients
	log    *fenceLog
	db     *pgx.Conn
}

// Times of the demo, kept short so that nobody has to wait. Consul itself may keep a
// session for up to twice its TTL.
const (
	leaseTTL      = "2s"
	workerTimeout = "1200ms"
	grace         = "500ms"
)

// startEnvironment starts PostgreSQL and, if requested, a lease service, migrates the database
// and starts Fencepost. If it fails, it stops whatever it has started.
func startEnvironment(ctx context.Context, o Options, report *reporter) (_ *environment, err error) {
	env := &environment{o: o}
	if env.dir, err = os.MkdirTemp("", "fencepost-demo-"); err != nil {
		return nil, fmt.Errorf("create a directory: %w", err)
	}
	defer func() {
		if err != nil {
			env.o.Keep = true // the logs show why
			err = errors.Join(err, env.close())
		}
	}()
	// The server runs as another user, who must be able to access the directory.
	if err = os.Chmod(env.dir, 0o711); err != nil {
		return nil, fmt.Errorf("set the directory's permissions: %w", err)
	}
	report.title("Fencepost: what happens when a leader freezes in the middle of a charge")
	if env.pg, err = scratch.StartPostgres(ctx, env.dir, o.PostgresBin); err != nil {
		return nil, err
	}
	report.setup("PostgreSQL %s, a throwaway server at %s", env.pg.Version, env.pg.Address)
	o.upstream, o.password = env.pg.Address, env.pg.Password
	if env.leases, err = startElector(ctx, env.dir, o); err != nil {
		return nil, err
	}
	if env.leases != nil {
		report.setup("%s", env.leases.what)
	}
	if err = env.prepareDatabase(ctx); err != nil {
		return nil, err
	}
	report.setup("fencepost migrate: the schema fencepost is in the database %s", database)
	if err = env.startFencepost(ctx); err != nil {
		return nil, err
	}
	report.setup("fencepost serve at %s, leases from %s", env.listen, o.Election)
	return env, nil
}

// prepareDatabase creates the roles, the database with the fencepost schema, and the
// application's tables.
func (env *environment) prepareDatabase(ctx context.Context) error {
	admin, err := pgx.Connect(ctx, env.pg.DSN(scratch.Superuser, "postgres"))
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer admin.Close(ctx)
	for _, sql := range []string{
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", workerRole, env.pg.Password),
		fmt.Sprintf("CREATE DATABASE %s OWNER %s", database, workerRole),
	} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare the database: %w", err)
		}
	}
	if err := env.migrate(ctx); err != nil {
		return err
	}
	if env.db, err = pgx.Connect(ctx, env.pg.DSN(workerRole, database)); err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	_, err = env.db.Exec(ctx, `
		CREATE TABLE invoices (id int PRIMARY KEY, state text NOT NULL DEFAULT 'open');
		CREATE TABLE charges (invoice int NOT NULL, worker text NOT NULL, at timestamptz NOT NULL DEFAULT now())`)
	if err != nil {
		return fmt.Errorf("create the application's tables: %w", err)
	}
	return nil
}

// migrate runs fencepost migrate, which also creates the control role.
func (env *environment) migrate(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, env.o.Program, "migrate")
	cmd.Env = append(os.Environ(), "FENCEPOST_DSN="+env.pg.DSN(scratch.Superuser, database), "FENCEPOST_CONTROL_PASSWORD="+env.pg.Password)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run fencepost migrate: %w\n%s", err, out)
	}
	return nil
}

// startFencepost writes a configuration and runs fencepost serve with it.
func (env *environment) startFencepost(ctx context.Context) error {
	var adminAddress string
	var err error
	if env.listen, err = scratch.FreeAddress(); err != nil {
		return err
	}
	if adminAddress, err = scratch.FreeAddress(); err != nil {
		return err
	}
	config := fmt.Sprintf("listen: %s\nadmin: %s\nupstream:\n  address: %s\nelection:\n  provider: %s\n",
		env.listen, adminAddress, env.pg.Address, env.o.Election)
	if env.leases != nil {
		config += env.leases.config
	}
	config += fmt.Sprintf("lease:\n  ttl: %s\n  worker_timeout: %s\n  grace: %s\n", leaseTTL, workerTimeout, grace)
	path := filepath.Join(env.dir, "fencepost.yml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	env.log = &fenceLog{path: filepath.Join(env.dir, "fencepost.log")}
	log, err := os.Create(env.log.path)
	if err != nil {
		return fmt.Errorf("create Fencepost's log: %w", err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(env.o.Program, "serve", "--config", path)
	cmd.Env = append(os.Environ(), "FENCEPOST_CONTROL_PASSWORD="+env.pg.Password)
	cmd.Stdout, cmd.Stderr = log, log
	if env.fence, err = scratch.Start("Fencepost", cmd); err != nil {
		return err
	}
	err = scratch.WaitFor(ctx, env.fence, 20*time.Second, func() error { return ready(ctx, adminAddress) })
	if err != nil {
		return fmt.Errorf("wait for Fencepost: %w\n%s", err, scratch.Tail(env.log.path, 10))
	}
	return nil
}

// ready returns nil if Fencepost is ready.
func ready(ctx context.Context, address string) error {
	var r admin.Readiness
	err := (&admin.Client{Address: address}).Ask(ctx, http.MethodGet, "/readyz", &r, http.StatusOK, http.StatusServiceUnavailable)
	if err == nil && !r.Ready {
		err = fmt.Errorf("not ready: upstream %s, election %s", r.Upstream, r.Election)
	}
	return err
}

// leaseDSN returns the DSN of a worker: Postgres' own DSN with Fencepost's address and
// the resource.
func (env *environment) leaseDSN() string {
	return scratch.DSN(env.listen, workerRole, env.pg.Password, database, url.Values{
		"fencepost.resource": {"billing"}, "sslmode": {"disable"},
	})
}

// close stops everything in reverse order, and removes the directory unless it is to be
// kept.
func (env *environment) close() error {
	var errs []error
	if env.db != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		errs = append(errs, env.db.Close(ctx))
		cancel()
	}
	if env.fence != nil {
		errs = append(errs, env.fence.Stop(syscall.SIGTERM))
	}
	if env.leases != nil {
		errs = append(errs, env.leases.stop())
	}
	if env.pg != nil {
		errs = append(errs, env.pg.Stop())
	}
	if env.o.Keep {
		fmt.Fprintf(env.o.Out, "logs and data are kept in %s\n", env.dir)
	} else {
		errs = append(errs, os.RemoveAll(env.dir))
	}
	return errors.Join(errs...)
}
