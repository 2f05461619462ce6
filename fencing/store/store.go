package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/catalog"
	"github.com/fencepost/fencepost/internal/unpinged"
)

// Defaults of Config.
const (
	DefaultGrace    = 2 * time.Second
	DefaultPatience = 5 * time.Second
)

const (
	// dialTimeout bounds how long a server takes to be reached, and connectTimeout how long it takes to accept a
	// connection, as a server does to which hundreds of workers connect again at the same time. Whoever waits for less has
	// a context.
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
	// maxReads bounds the connections that read a fence under its row's lock, or register backends.
	// None waits for longer than quickLock.
	maxReads = 4
	// watchConnections are left to those who watch over grants: one polls for all of
	// them, the other terminates backends.
	watchConnections = 2
)

// PoolSize is the maximum size of the pool that Pool returns, and of the pool for
// grants. If more resources are granted at once, the surplus grants wait without a
// connection.
const PoolSize = 8

// Connections is how many connections of the control role a Store may open. One is for Elsewhere, and one listens; Answers does not log in.
const Connections = 2*PoolSize + maxReads + watchConnections + 2

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
	// Grace is how long a transaction of an old epoch, or a registered backend, may
	// block a grant before it is terminated.
	Grace time.Duration
	// Patience is how long a terminated backend may take to disappear.
	Patience time.Duration
	// Blocked, if not nil, is called when the takeover of a resource starts or stops
	// waiting for transactions that the control role cannot end, with one line for each
	// of them. It is called again when they change, and with an empty list when nothing
	// blocks the takeover any more. It must not block.
	Blocked func(resource string, by []string)
	// Awaited, if not nil, is called about once a second while a grant or an order waits for backends that it ends, with
	// these, and with none when it has returned. It must not block.
	Awaited func(resource string, backends []fencing.Awaited)
	// Draining, if not nil, is called when a grant that this Store has asked for waits for backends that are registered
	// under the epoch or an older one. It must not block.
	Draining func(resource string, e fencing.Epoch)
	// PresenceID, if not "", is by what other proxies recognise the connections of this one; see
	// Gone. It has at most 32 letters and digits, and no other proxy has had it.
	PresenceID string
	// SchemaVersion is the lowest acceptable version of the schema, 0 for any.
	SchemaVersion int
	// Complete, if not nil, is what Examine asks. It says what the schema lacks of what its migrations have
	// made, and what to do about that; problem is "" if it lacks nothing. migrate is the command that
	// migrates the database. The search_path of conn is that of settings.
	Complete func(ctx context.Context, conn *pgx.Conn, migrate string) (problem, remedy string, err error)
	Logger   *zap.Logger
}

func (c Config) withDefaults() Config {
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	if c.Patience <= 0 {
		c.Patience = DefaultPatience
	}
	if c.Blocked == nil {
		c.Blocked = func(string, []string) {}
	}
	if c.Awaited == nil {
		c.Awaited = func(string, []fencing.Awaited) {}
	}
	if c.Draining == nil {
		c.Draining = func(string, fencing.Epoch) {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Store is the fence of one database. It is safe for concurrent use.
type Store struct {
	cfg    Config
	log    *zap.Logger
	free   *pgxpool.Pool // never waits for a fence's lock
	fences *pgxpool.Pool // for what waits for locks of fences, and for the watches of grants

	end       context.CancelFunc // ends what batches ask
	turns     *turns             // bounds the grants
	reads     chan struct{}      // has room for maxReads
	polls     *batches[[]holder] // of the watches
	confirms  *batches[grantID]  // of what Record has read
	confirmed confirmedGrants

	reports     reports        // of what blocks grants
	registering sync.WaitGroup // of the fences' arrivals

	catalog *catalog.Reader
	roles   *roles
}

// Open connects to the database as the control role. The error is a *fencing.Refusal
// (ZF004) if the schema is missing or too old, or if the role lacks a privilege.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	s := &Store{cfg: cfg, log: cfg.Logger.With(zap.String("database", cfg.Database))}
	s.roles = &roles{store: s, until: map[string]time.Time{}}
	s.turns, s.reads = &turns{free: PoolSize}, make(chan struct{}, maxReads)
	life, end := context.WithCancel(context.Background())
	s.end = end
	s.polls, s.confirms = &batches[[]holder]{life: life, query: s.poll}, &batches[grantID]{life: life, query: s.confirm}
	var err error
	for _, p := range []struct {
		pool **pgxpool.Pool
		size int
	}{{&s.free, PoolSize}, {&s.fences, PoolSize + maxReads + watchConnections}} {
		if *p.pool, err = newPool(ctx, cfg, p.size, s.begin, s.closeConnections); err != nil {
			closePools(s.free)
			return nil, fmt.Errorf("open the fence of database %q: %w", cfg.Database, err)
		}
	}
	s.catalog = catalog.NewReader(s.free, s.closeConnections, s.log)
	if err := s.examine(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("open the fence of database %q: %w", cfg.Database, err)
	}
	return s, nil
}

// Pool returns a pool of connections as the control role, for statements that never
// wait for a fence's lock. Close closes it.
func (s *Store) Pool() *pgxpool.Pool { return s.free }

// Catalog implements fencing.CatalogReader.
func (s *Store) Catalog() *fencing.Catalog { return s.catalog.Catalog() }

// RefreshCatalog implements fencing.CatalogReader.
func (s *Store) RefreshCatalog(ctx context.Context) { s.catalog.RefreshCatalog(ctx) }

// read runs f once it may use one of the connections that may wait for a fence's lock, up to quickLock.
func (s *Store) read(ctx context.Context, f func() error) error {
	select {
	case s.reads <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.reads }()
	return f()
}

// CloseIdle closes the idle connections at once, and those in use when they are
// returned. New ones are opened on demand, and the catalog is read again when it is next
// used.
func (s *Store) CloseIdle() {
	s.catalog.Rest()
	s.closeConnections()
}

func (s *Store) closeConnections() {
	for _, pool := range []*pgxpool.Pool{s.fences, s.free} {
		pool.Reset()
	}
}

// Close closes all connections, after waiting for those in use, for at most closeWait.
func (s *Store) Close() {
	s.end()
	s.polls.runs.Wait()
	s.confirms.runs.Wait()
	s.registering.Wait()
	s.catalog.Close()
	closePools(s.fences, s.free)
}

// closePools closes those of the pools that are not nil. After closeWait it returns, and what
// is left closes by itself.
func closePools(pools ...*pgxpool.Pool) {
	var closing sync.WaitGroup
	for _, pool := range pools {
		if pool != nil {
			closing.Go(pool.Close)
		}
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

// awaitCleanup waits until a connection that was given up is closed, for at most leaveTimeout, and aborts it then. It reports
// whether the server has closed it in time.
func awaitCleanup(c *pgx.Conn) bool {
	timer := time.NewTimer(leaveTimeout)
	defer timer.Stop()
	select {
	case <-c.PgConn().CleanupDone():
		return true
	case <-timer.C:
		abort(c.PgConn().Conn())
		return false
	}
}

// settings are what the statements of a Store rely on. A connection begins with them, which counts
// more than what ALTER ROLE and ALTER DATABASE say. What is not here a function sets itself where it
// matters (synchronous_commit, by fencepost.secure), cannot be set without superuser rights
// (session_replication_role), or does not exist in every version (see finish).
var settings = map[string]string{
	"application_name": application,
	// The WARNING that no standby has confirmed a commit must arrive: see unconfirmed. And an
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

// TextSettings are what SQL of Fencepost means by a string, and how it reads values as text: the names of relations as they
// are recorded (guarded_tables), and what functions build with format. The owner of a database can set them otherwise, for
// superusers too, so each connection that runs such SQL begins with them.
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
	c.OnNotice = keepNotice
}

// begin finishes a connection on which the schema will be used, and makes sure that it is still Fencepost's: since Open,
// the database may have been dropped and recreated by someone else, with a schema of his.
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
