package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/internal/unpinged"
)

const (
	// dialTimeout bounds how long a server takes to be reached, and connectTimeout how long it takes to accept a
	// connection, as a server does to which hundreds of workers connect again at the same time. Whoever waits for less
	// has a context.
	dialTimeout    = 5 * time.Second
	connectTimeout = 15 * time.Second
	// pingTimeout bounds the question whether an idle connection is still there.
	pingTimeout = 2 * time.Second
	// leaveTimeout is how long a connection that was given up keeps its place in its pool while
	// pgx cancels its statement and waits for the server to close it.
	leaveTimeout = time.Second
	// idleTime is how long a pooled connection is kept unused, and idleCheck how often the pools look for such
	// ones. A database whose workers are idle costs few connections, which the polls keep in use. idleCheck is the
	// longer one: between two checks, a pool prefers the connection that was used last, but after each check those that
	// were not used before it (puddle, internal/genstack), so that frequent checks would keep all of them in use.
	idleTime  = 10 * time.Second
	idleCheck = 15 * time.Second
	// closeWait bounds how long the end of a Store waits for a server that does not answer.
	closeWait = time.Second
	// trustedIdle is how long a pooled connection may be idle before it is pinged on
	// its next use. An operator may have ended it, and a client that connects at that
	// moment must not be refused because of that.
	trustedIdle = 20 * time.Millisecond
)

// PoolSize is the maximum size of the pool that Pool returns.
const PoolSize = 8

// Config says how to connect to one database as the control role.
type Config struct {
	// Address is host:port, or the path of a Unix socket: /directory/.s.PGSQL.port. If Primary
	// is set, it may be several, with commas between them.
	Address string
	TLS     *tls.Config // nil: no TLS
	// Primary, if not nil, is asked for each new connection where it leads, and Address and
	// TLS are not used for it.
	Primary  func(ctx context.Context) (Server, error)
	Database string
	User     string
	Password string
	// PresenceID, if not "", is by what other proxies recognise the connections of this one; see
	// Gone. It has at most 32 letters and digits, and no other proxy has had it.
	PresenceID string
	// SchemaVersion is the lowest acceptable version of the schema, 0 for any.
	SchemaVersion int
	// Complete, if not nil, is what Examine asks. It says what the schema lacks of what its migrations have
	// made, and what to do about that; problem is "" if it lacks nothing. migrate is the command that
	// migrates the database. The search_path of conn is that of settings.
	Complete func(ctx context.Context, conn *pgx.Conn, migrate string) (problem, remedy string, err error)
	// OnNotice, if not nil, is called with each NOTICE and WARNING of the server, in the goroutine that uses the
	// connection.
	OnNotice pgconn.NoticeHandler
}

// Store is the control role's access to one database, and to the schema fencepost there. It is safe for concurrent use.
type Store struct {
	cfg  Config
	free *pgxpool.Pool

	pools struct {
		sync.Mutex
		all []*pgxpool.Pool // free, and what else NewPool has returned
	}
}

// Open connects to the database as the control role. The error is a *fencing.Refusal
// (ZF004) if the schema is missing or too old, or if the role lacks a privilege.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s := &Store{cfg: cfg}
	var err error
	if s.free, err = s.NewPool(ctx, PoolSize); err == nil {
		err = s.examine(ctx)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open the fence of database %q: %w", cfg.Database, err)
	}
	return s, nil
}

// Pool returns a pool of connections as the control role, for statements that never
// wait for a fence's lock. Close closes it.
func (s *Store) Pool() *pgxpool.Pool { return s.free }

// NewPool returns another pool, of at most size connections. CloseIdle and Close are about its connections, too.
func (s *Store) NewPool(ctx context.Context, size int) (*pgxpool.Pool, error) {
	pool, err := newPool(ctx, s.cfg, size, s.begin, s.CloseIdle)
	if err != nil {
		return nil, err
	}
	s.pools.Lock()
	defer s.pools.Unlock()
	s.pools.all = append(s.pools.all, pool)
	return pool, nil
}

// CloseIdle closes the idle connections at once, and those in use when they are
// returned. New ones are opened on demand.
func (s *Store) CloseIdle() {
	for _, pool := range s.allPools() {
		pool.Reset()
	}
}

// Close closes all connections, after waiting for those in use, for at most closeWait.
func (s *Store) Close() { closePools(s.allPools()...) }

func (s *Store) allPools() []*pgxpool.Pool {
	s.pools.Lock()
	defer s.pools.Unlock()
	return slices.Clone(s.pools.all)
}

// closePools closes the pools. After closeWait it returns, and what is left closes by itself.
func closePools(pools ...*pgxpool.Pool) {
	var closing sync.WaitGroup
	for _, pool := range pools {
		closing.Go(pool.Close)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		closing.Wait()
	}()
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	}
}

// anywhere is the address of a configuration that login and direct complete.
const anywhere = "postgres://localhost:5432/postgres?sslmode=disable"

// newPool returns a pool whose connections depend neither on the environment nor on
// defaults of the role or the database. Each begins with begin. When one has turned out to be dead, dead is called:
// what has cut it, without either side noticing, has probably cut others, too.
func newPool(ctx context.Context, cfg Config, size int, begin func(context.Context, *pgx.Conn) error, dead func()) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(anywhere)
	if err != nil {
		return nil, fmt.Errorf("build the connection configuration: %w", err)
	}
	cfg.login(pc.ConnConfig)
	pc.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		server, err := cfg.server(ctx)
		if err != nil {
			return err
		}
		return server.direct(c)
	}
	pc.MaxConns, pc.MinConns, pc.MaxConnIdleTime, pc.HealthCheckPeriod = int32(size), 0, idleTime, idleCheck
	pc.PingTimeout = pingTimeout
	pc.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { // the pool's context ends with the pool only
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		return begin(ctx, c)
	}
	pc.ShouldPing = func(ctx context.Context, p pgxpool.ShouldPingParams) bool {
		return p.IdleDuration > trustedIdle && !unpinged.Marked(ctx)
	}
	pc.BeforeClose = func(c *pgx.Conn) {
		if c.IsClosed() && !awaitCleanup(c) {
			dead()
		}
	}
	return pgxpool.NewWithConfig(ctx, pc)
}

// awaitCleanup waits until a connection that was given up is closed, for at most leaveTimeout, and aborts it then. It
// reports whether the server has closed it in time.
func awaitCleanup(c *pgx.Conn) bool {
	timer := time.NewTimer(leaveTimeout)
	defer timer.Stop()
	select {
	case <-c.PgConn().CleanupDone():
		return true
	case <-timer.C:
		Abort(c.PgConn().Conn())
		return false
	}
}

// settings are what the statements of a Store rely on. A connection begins with them, which counts
// more than what ALTER ROLE and ALTER DATABASE say. What is not here a function sets itself where it
// matters (synchronous_commit, by fencepost.secure), cannot be set without superuser rights
// (session_replication_role), or does not exist in every version (see finish).
var settings = map[string]string{
	"application_name": application,
	// The WARNING that no standby has confirmed a commit must arrive. And an
	// error, which may be a refusal, must not end the connection.
	"client_min_messages": "warning",
	"exit_on_error":       "off",
	"role":                "none", // whoever owns the database could set another one for its sessions
	// Nothing but what is built in has an unqualified name, and a transaction may write, sees
	// what was committed before each statement, and starts at once.
	"search_path":                    "pg_catalog,pg_temp",
	"default_transaction_isolation":  "read committed",
	"default_transaction_read_only":  "off",
	"default_transaction_deferrable": "off",
	// A grant waits for as long as Fencepost says: functions set lock_timeout, contexts end
	// statements.
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	"idle_session_timeout":                "0",
	// Policies that hide rows do not count for the owner of a table. If someone forces one on
	// the fence's tables, statements fail: a fence that seems to be empty would be recreated.
	"row_security": "off",
	// Compiling a short statement takes far longer than running it, where a low jit_above_cost asks for that.
	"jit": "off",
	// A server that is gone is noticed.
	"tcp_keepalives_idle":     "10",
	"tcp_keepalives_interval": "3",
	"tcp_keepalives_count":    "3",
}

// TextSettings are what SQL of Fencepost means by a string, and how it reads values as text: the names of relations as
// they are recorded (guarded_tables), and what functions build with format. The owner of a database can set them
// otherwise, for superusers too, so each connection that runs such SQL begins with them.
var TextSettings = map[string]string{
	"client_encoding":             "UTF8",
	"standard_conforming_strings": "on",
	"quote_all_identifiers":       "off",
	"DateStyle":                   "ISO, MDY",
	"TimeZone":                    "UTC", // transactions are distinguished by times as text
	"IntervalStyle":               "postgres",
	"bytea_output":                "hex",
}

// login sets everything about a connection of the control role except where it leads.
func (cfg *Config) login(c *pgx.ConnConfig) {
	c.Database, c.User, c.Password = cfg.Database, cfg.User, cfg.Password
	c.Fallbacks, c.ConnectTimeout = nil, connectTimeout
	c.DialFunc = (&net.Dialer{Timeout: dialTimeout}).DialContext
	c.RuntimeParams = maps.Clone(settings)
	maps.Copy(c.RuntimeParams, TextSettings)
	if cfg.PresenceID != "" {
		c.RuntimeParams["application_name"] = applicationOf(cfg.PresenceID)
	}
	c.OnNotice = cfg.OnNotice
}

// connection returns how to connect now, to where the server is.
func (cfg *Config) connection(ctx context.Context) (*pgx.ConnConfig, error) {
	server, err := cfg.server(ctx)
	if err != nil {
		return nil, err
	}
	c, err := pgx.ParseConfig(anywhere)
	if err != nil {
		return nil, fmt.Errorf("build the connection configuration: %w", err)
	}
	cfg.login(c)
	return c, server.direct(c)
}

// begin finishes a connection on which the schema will be used, and makes sure that it is still Fencepost's: since
// Open, the database may have been dropped and recreated by someone else, with a schema of his.
func (s *Store) begin(ctx context.Context, conn *pgx.Conn) error {
	if err := finish(ctx, conn); err != nil {
		return err
	}
	return s.checkOwner(ctx, conn) // if there is none, the connection is not kept either: someone else may make one
}

// finish applies settings that not every server supports, and makes sure that the server is
// Postgres itself, and not too old.
func finish(ctx context.Context, conn *pgx.Conn) error {
	if err := tooOld(conn.PgConn()); err != nil {
		return err
	}
	var pid uint32
	// Only PostgreSQL 17 and later have transaction_timeout; earlier versions reject the name.
	// Nothing is prepared, because a pooler may pass on the connection of someone else.
	err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid(), CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
		THEN pg_catalog.set_config('transaction_timeout', '0', false) END`, pgx.QueryExecModeSimpleProtocol).Scan(&pid, nil)
	if err != nil {
		return fmt.Errorf("disable transaction_timeout: %w", err)
	}
	if pid != conn.PgConn().PID() {
		return pooler(nil)
	}
	// A grant whose proxy has died must leave the queue. On some platforms the server
	// cannot check its client while it waits; there the lock_timeout that
	// fencepost.grant sets ends its wait.
	_, err = conn.Exec(ctx, "SELECT pg_catalog.set_config('client_connection_check_interval', '500ms', false)")
	var pg *pgconn.PgError
	if err != nil && !errors.As(err, &pg) {
		return fmt.Errorf("set client_connection_check_interval: %w", err)
	}
	return nil
}
