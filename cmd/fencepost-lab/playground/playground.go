package playground

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
	"github.com/fencepost/fencepost/migrations"
)

// Options configures a playground.
type Options struct {
	Listen      string // the address of the page
	PostgresBin string // directory of initdb and postgres; "" searches for one
	Out         io.Writer
	// StartProxy starts a proxy, which its caller stops.
	StartProxy func(ProxyOptions) (Proxy, error)
}

// ProxyOptions says which proxy a playground needs.
type ProxyOptions struct {
	Name                      string
	Upstream                  string // host:port of Postgres
	Password                  string // of the control role
	TTL, WorkerTimeout, Grace time.Duration
	// Anyone means that everybody who asks is awarded a lease. Otherwise the leases are those
	// of the embedded elector.
	Anyone bool
	Log    io.Writer // receives the log, one line of JSON at a time
}

// Proxy is a running proxy.
type Proxy struct {
	Address string       // for workers
	Stop    func() error // ends it, and waits
}

// Times of the playground, short enough to watch and long enough to see.
const (
	ttl           = 4 * time.Second
	workerTimeout = 2 * time.Second
	grace         = 500 * time.Millisecond

	think = 300 * time.Millisecond // of a worker, between reading and writing
	rest  = 500 * time.Millisecond // of a worker, after each row
	again = 6 * time.Second        // after which a node that was refused campaigns again
)

// The role of the workers, and the database. The role is not a superuser, because a superuser could
// disable the fence.
const (
	workerRole = "worker"
	database   = "playground"
)

// environment is what the scenes need. It is discarded at the end.
type environment struct {
	o       Options
	program string // this one, which is the workers too
	dir     string
	pg      *scratch.Postgres
	readers sync.WaitGroup // of the workers' reports
	lab     *Lab
	proxies map[string]Proxy // by name; only deeds start them, one at a time
}

// Run shows the page until ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	program, err := thisProgram()
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen for browsers (choose another address with --listen): %w", err)
	}
	defer ln.Close() // the web server may have closed it
	env, err := startEnvironment(ctx, o, program)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.close()) }()
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var lab sync.WaitGroup
	lab.Go(func() { env.lab.run(working) })
	defer lab.Wait()
	defer stop()
	if err := env.lab.Enter(ctx, sceneLease, ""); err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "The playground is at http://%s/ on a throwaway PostgreSQL %s. Ctrl-C ends it, and discards everything.\n", ln.Addr(), env.pg.Version)
	if host, ok := ln.Addr().(*net.TCPAddr); ok && !host.IP.IsLoopback() {
		fmt.Fprintln(o.Out, "Warning: whoever reaches this address can use the playground.")
	}
	return serve(ctx, ln, env.lab)
}

// thisProgram returns the path by which a child runs this program, also if another file has taken its
// place meanwhile.
func thisProgram() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return path, nil
}

// startEnvironment starts PostgreSQL, and prepares the database. If it fails, it stops whatever it has
// started.
func startEnvironment(ctx context.Context, o Options, program string) (_ *environment, err error) {
	env := &environment{o: o, program: program, proxies: map[string]Proxy{}}
	env.lab = newLab(env)
	if env.dir, err = os.MkdirTemp("", "fencepost-playground-"); err != nil {
		return nil, fmt.Errorf("create a directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, env.close())
		}
	}()
	// The server runs as another user, who must be able to access the directory.
	if err = os.Chmod(env.dir, 0o711); err != nil {
		return nil, fmt.Errorf("set the directory's permissions: %w", err)
	}
	if env.pg, err = scratch.StartPostgres(ctx, env.dir, o.PostgresBin); err != nil {
		return nil, err
	}
	return env, env.prepareDatabase(ctx)
}

// prepareDatabase creates the role of the workers, the database with the fencepost schema, and the
// table that the workers write.
func (env *environment) prepareDatabase(ctx context.Context) error {
	err := env.run(ctx, "postgres",
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", workerRole, env.pg.Password),
		fmt.Sprintf("CREATE DATABASE %s OWNER %s", database, workerRole))
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, env.pg.DSN(scratch.Superuser, database))
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer closeConn(conn)
	if _, err := migrations.Up(ctx, conn, migrations.Options{Control: migrations.DefaultControl, Password: env.pg.Password, LockTimeout: migrations.DefaultLockTimeout}); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return env.run(ctx, database,
		`CREATE TABLE public.notes (resource text NOT NULL, n bigint NOT NULL, worker text NOT NULL, epoch bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`,
		`CREATE INDEX ON public.notes (resource, n)`,
		fmt.Sprintf(`GRANT SELECT, INSERT ON public.notes TO %s`, workerRole))
}

// run runs statements as the superuser, each in its own transaction.
func (env *environment) run(ctx context.Context, db string, statements ...string) error {
	conn, err := pgx.Connect(ctx, env.pg.DSN(scratch.Superuser, db))
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer closeConn(conn)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare the database: %w", err)
		}
	}
	return nil
}

// proxy returns the proxy of that name, and starts it if it does not run.
func (env *environment) proxy(ctx context.Context, name string, anyone bool) (Proxy, error) {
	if p, ok := env.proxies[name]; ok {
		return p, nil
	}
	if err := ctx.Err(); err != nil {
		return Proxy{}, err
	}
	p, err := env.o.StartProxy(ProxyOptions{
		Name: name, Upstream: env.pg.Address, Password: env.pg.Password, TTL: ttl, WorkerTimeout: workerTimeout, Grace: grace,
		Anyone: anyone, Log: &proxyLog{proxy: name, line: env.lab.logged},
	})
	if err != nil {
		return Proxy{}, fmt.Errorf("start %s: %w", name, err)
	}
	env.proxies[name] = p
	return p, nil
}

// workerDSN returns the DSN of a worker, without the password.
func (env *environment) workerDSN(address string) string {
	u := url.URL{Scheme: "postgres", User: url.User(workerRole), Host: address, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// close stops everything and removes the directory. The lab has ended.
func (env *environment) close() error {
	var errs []error
	env.readers.Wait()
	var stopping sync.WaitGroup
	results := make(chan error, len(env.proxies))
	for _, p := range env.proxies {
		stopping.Go(func() { results <- p.Stop() })
	}
	stopping.Wait()
	close(results)
	for err := range results {
		errs = append(errs, err)
	}
	if env.pg != nil {
		errs = append(errs, env.pg.Stop())
	}
	errs = append(errs, os.RemoveAll(env.dir))
	return errors.Join(errs...)
}
