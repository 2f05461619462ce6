package fence

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/catalog"
	"github.com/fencepost/fencepost/fencing/store"
)

// Defaults of Config.
const (
	DefaultGrace    = 2 * time.Second
	DefaultPatience = 5 * time.Second
)

const (
	// maxGrants bounds the grants that wait in the server at once. If more resources are granted at once, the surplus
	// grants wait without a connection.
	maxGrants = store.PoolSize
	// maxReads bounds the connections that read a fence under its row's lock, or register backends.
	// None waits for longer than quickLock.
	maxReads = 4
	// watchConnections are left to those who watch over grants: one polls for all of
	// them, the other terminates backends.
	watchConnections = 2
)

// Connections is how many connections of the control role a Database may open. One is for Elsewhere, and one listens;
// Answers does not log in.
const Connections = store.PoolSize + maxGrants + maxReads + watchConnections + 2

// Config says how to use the fences of one database.
type Config struct {
	store.Config // but for OnNotice, which Open sets
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
	// Awaited, if not nil, is called about once a second while a grant or an order waits for backends that it ends,
	// with these, and with none when it has returned. It must not block.
	Awaited func(resource string, backends []fencing.Awaited)
	// Draining, if not nil, is called when a grant that this Database has asked for waits for registered backends. It
	// must not block.
	Draining func(fencing.Drain)
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
		c.Draining = func(fencing.Drain) {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.OnNotice = keepNotice
	return c
}

// Database is the fences of one database. It is safe for concurrent use.
type Database struct {
	*store.Store
	cfg     Config
	log     *zap.Logger
	fences  *pgxpool.Pool // for what waits for locks of fences, and for the watches of grants
	catalog *catalog.Reader

	end       context.CancelFunc // ends what batches ask
	turns     *turns             // bounds the grants
	reads     chan struct{}      // has room for maxReads
	polls     *batches[[]holder] // of the watches
	confirms  *batches[grantID]  // of what Record has read
	confirmed confirmedGrants

	reports     *reports // of what blocks grants
	roles       *roles
	registering sync.WaitGroup // of the fences' arrivals
}

// Open connects to the database as the control role. Its errors are those of store.Open.
func Open(ctx context.Context, cfg Config) (*Database, error) {
	cfg = cfg.withDefaults()
	st, err := store.Open(ctx, cfg.Config)
	if err != nil {
		return nil, err
	}
	fences, err := st.NewPool(ctx, maxGrants+maxReads+watchConnections)
	if err != nil {
		st.Close()
		return nil, fmt.Errorf("open the fences of database %q: %w", cfg.Database, err)
	}
	log := cfg.Logger.With(zap.String("database", cfg.Database))
	life, end := context.WithCancel(context.Background())
	d := &Database{
		Store: st, cfg: cfg, log: log, fences: fences, catalog: catalog.NewReader(st.Pool(), st.CloseIdle, log),
		end: end, turns: &turns{free: maxGrants}, reads: make(chan struct{}, maxReads),
		confirmed: confirmedGrants{known: map[int32]grantID{}}, reports: newReports(),
	}
	d.roles = &roles{db: d, until: map[string]time.Time{}}
	d.polls, d.confirms = &batches[[]holder]{life: life, query: d.poll}, &batches[grantID]{life: life, query: d.confirm}
	return d, nil
}

// Catalog implements fencing.CatalogReader.
func (d *Database) Catalog() *fencing.Catalog { return d.catalog.Catalog() }

// RefreshCatalog implements fencing.CatalogReader.
func (d *Database) RefreshCatalog(ctx context.Context) { d.catalog.RefreshCatalog(ctx) }

// CloseIdle is that of the Store. The catalog is read again when it is next used.
func (d *Database) CloseIdle() {
	d.catalog.Rest()
	d.Store.CloseIdle()
}

// Close closes all connections, after waiting for what uses them, as that of the Store does.
func (d *Database) Close() {
	d.end()
	d.polls.runs.Wait()
	d.confirms.runs.Wait()
	d.registering.Wait()
	d.catalog.Close()
	d.Store.Close()
}

// Name returns the name of the database.
func (d *Database) Name() string { return d.cfg.Database }

// read runs f once it may use one of the connections that may wait for a fence's lock, up to quickLock.
func (d *Database) read(ctx context.Context, f func() error) error {
	select {
	case d.reads <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-d.reads }()
	return f()
}

// Status is one resource's state as the database knows it.
type Status struct {
	Resource string
	fencing.Record
}

// Status lists all resources of the database, ordered by name.
func (d *Database) Status(ctx context.Context) ([]Status, error) {
	rows, _ := d.Pool().Query(ctx, `SELECT f.epoch, coalesce(f.worker, ''), coalesce(f.incarnation, ''), coalesce(f.source, ''),
		f.source_generation, f.source_index, f.granted_at, f.resource,
		coalesce((SELECT g.tables FROM fencepost.guarded g WHERE g.fence = f.id), 0) FROM fencepost.fence f ORDER BY f.resource`)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Status, error) {
		var st Status
		err := scanRecord(row, &st.Record, &st.Resource, &st.Guards)
		return st, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the fences of database %q: %w", d.cfg.Database, d.Explain(err))
	}
	return list, nil
}

// Fences returns the fences of the database.
func (d *Database) Fences(ctx context.Context) (fencing.Fences, error) {
	has := fencing.Fences{ByResource: make(map[string]fencing.FenceRow)}
	rows, _ := d.Pool().Query(ctx, `SELECT i.id::text, coalesce(f.resource, ''), coalesce(f.id, 0), coalesce(f.epoch, 0)
		FROM fencepost.identity i LEFT JOIN fencepost.fence f ON true`)
	var resource string
	var row fencing.FenceRow
	_, err := pgx.ForEachRow(rows, []any{&has.Database, &resource, &row.ID, &row.Epoch}, func() error { has.ByResource[resource] = row; return nil })
	if err != nil {
		return fencing.Fences{}, fmt.Errorf("read the fences of database %q: %w", d.cfg.Database, d.Explain(err))
	}
	return has, nil
}

// Known reports whether the resource already has a fence, and which other resources
// have one, without those in except.
func (d *Database) Known(ctx context.Context, resource string, except []string) (known bool, others []string, err error) {
	err = d.Pool().QueryRow(ctx, `SELECT coalesce(bool_or(f.resource = $1), false),
		array_agg(f.resource ORDER BY f.resource) FILTER (WHERE f.resource <> $1 AND f.resource <> ALL (coalesce($2::text[], '{}'))) FROM fencepost.fence f`,
		resource, except).Scan(&known, &others)
	if err != nil {
		return false, nil, fmt.Errorf("read the resources of the database: %w", d.Explain(err))
	}
	return known, others, nil
}
