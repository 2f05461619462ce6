package election

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/fencepost/fencepost/election/orders"
	"github.com/fencepost/fencepost/election/patience"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/lockorder"
)

// openTimeout bounds the opening of a database and of a fence, so that a server that
// does not respond cannot hold connections indefinitely.
const openTimeout = 15 * time.Second

// ErrClosed is returned after Close has been called.
var ErrClosed = errors.New("elections are closed")

// Elections runs all candidacies of one proxy.
type Elections struct {
	cfg Config
	log *zap.Logger

	ctx    context.Context // ends with Close; for watches and for opening databases
	cancel context.CancelFunc
	wg     sync.WaitGroup // loops, watches, databases being opened
	opens  singleflight.Group

	extensions patience.Extensions
	catalogs   *fencing.Catalogs

	mu struct {
		lockorder.Mutex[lockorder.Elections]
		closed    bool
		databases map[string]*database
		resources map[resourceKey]*resource
		// highestObserved are the highest observed epochs of resources that were forgotten.
		highestObserved map[resourceKey]observedEpoch
		usage           usage // only of resources that are not configured
		orders          map[string]*orders.Log
		lostOrders      map[resourceKey]fencing.Order // orders that a failover has lost, until another one is given
	}
}

type resourceKey struct{ database, name string }

// observedEpoch is the highest epoch that was observed in a database, by its identity.
type observedEpoch struct {
	database string
	epoch    fencing.Epoch
}

// database is an open database.
type database struct {
	Backend
	unread *faults.Series // failures to read which orders are in force
	live   int            // candidacies whose loop is running, and connections that use the catalog
	// stopOrders ends the goroutine that reads the orders. It is nil while there is none: from
	// the first candidacy on, one runs until closeIdle.
	stopOrders context.CancelFunc
	followed   chan struct{} // closed when the last such goroutine has ended; nil before the first
	unused     *time.Timer   // of closeIdle, since live was last 0; nil if it never was again
}

// addUse counts one more use. Elections.mu is held.
func (d *database) addUse() {
	d.live++
	if d.unused != nil {
		d.unused.Stop()
	}
}

// closeIdleAfter is how long a database must have no candidacy before its connections
// are closed. Workers that connect again within that time find them open. DROP, ALTER …
// RENAME and CREATE DATABASE … TEMPLATE fail while anyone is connected to the database;
// Postgres waits 5 s for connections to close.
const closeIdleAfter = time.Second

var _ fencing.Candidates = (*Elections)(nil)

// New returns an Elections without candidacies. Close stops it.
func New(cfg Config) (*Elections, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elections{cfg: cfg, log: cfg.Logger, ctx: ctx, cancel: cancel}
	e.catalogs = fencing.NewCatalogs(e.openCatalog)
	e.mu.databases = map[string]*database{}
	e.mu.resources = map[resourceKey]*resource{}
	e.mu.highestObserved = map[resourceKey]observedEpoch{}
	e.mu.orders, e.mu.lostOrders = map[string]*orders.Log{}, map[resourceKey]fencing.Order{}
	e.mu.usage = usage{}
	e.wg.Go(e.sample)
	return e, nil
}

// Join implements fencing.Candidates. It opens the database and the fence on first use,
// so it may wait for Postgres, but never for a lease.
func (e *Elections) Join(ctx context.Context, req fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	set, key := e.cfg.Settings(req.Database, req.Resource), resourceKey{req.Database, req.Resource}
	if err := set.admits(req); err != nil {
		return nil, err
	}
	counts := !set.Configured
	if counts {
		if err := e.reserve(req.User, key); err != nil {
			return nil, err
		}
	}
	r, err := e.openForJoin(ctx, key)
	if counts {
		e.endReservation(req.User, key)
	}
	if err != nil {
		return nil, err
	}
	defer e.endJoin(r)
	if err := r.checkRole(ctx, req); err != nil {
		return nil, err
	}
	return r.join(ctx, req, m)
}

// OpenCatalog implements fencing.Candidates.
func (e *Elections) OpenCatalog(ctx context.Context, name string) (c fencing.CatalogReader, leave func(), err error) {
	return e.catalogs.Open(ctx, name)
}

// openCatalog opens the catalog of a database that has a fence. The database counts as used
// until leave.
func (e *Elections) openCatalog(ctx context.Context, name string) (_ fencing.CatalogReader, leave func(), _ error) {
	b, err := openOnce(ctx, e, fmt.Sprintf("catalog %q", name), func(ctx context.Context) (Backend, error) { return e.database(ctx, name) })
	if err != nil {
		return nil, nil, err
	}
	if b.Catalog == nil {
		b.Catalog = noCatalog{}
	}
	if !e.useDatabase(name) {
		return nil, nil, ErrClosed
	}
	return b.Catalog, sync.OnceFunc(func() { e.candidacyEnded(name) }), nil
}

// noCatalog proves nothing.
type noCatalog struct{}

func (noCatalog) Catalog() *fencing.Catalog      { return nil }
func (noCatalog) RefreshCatalog(context.Context) {}

// Close ends all candidacies, releases their leases and waits for both. When ctx ends,
// it stops waiting for the lease service, and the remaining leases expire with their
// TTL.
func (e *Elections) Close(ctx context.Context) error {
	e.mu.Lock()
	e.mu.closed = true
	var all []*Candidacy
	for _, r := range e.mu.resources {
		all = append(all, r.all()...)
	}
	e.mu.Unlock()
	for _, c := range all {
		c.end()
	}
	var err error
	for _, c := range all {
		select {
		case <-c.done:
		case <-ctx.Done():
			err = fmt.Errorf("release leases: %w", ctx.Err())
			c.abandon()
			<-c.done
		}
	}
	e.cancel()
	e.wg.Wait()
	return errors.Join(err, e.closeBackends())
}

// closeBackends closes all databases at the same time, because each may wait for a server
// that does not answer.
func (e *Elections) closeBackends() error {
	e.mu.Lock()
	open := maps.Clone(e.mu.databases)
	clear(e.mu.databases)
	e.mu.Unlock()
	failed := make(chan error, 2*len(open))
	var closing sync.WaitGroup
	for name, b := range open {
		closing.Go(func() {
			if err := b.Provider.Close(); err != nil {
				failed <- fmt.Errorf("close the lease provider of database %s: %w", name, err)
			}
			if b.Tokens != nil {
				if err := b.Tokens.Close(); err != nil {
					failed <- fmt.Errorf("close the tokens of database %s: %w", name, err)
				}
			}
			if b.Close != nil {
				b.Close()
			}
		})
	}
	closing.Wait()
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// resource returns the resource, and opens its database and fence on first use.
func (e *Elections) resource(ctx context.Context, key resourceKey) (*resource, error) {
	if r, err := e.known(key); r != nil || err != nil {
		return r, err
	}
	return openOnce(ctx, e, fmt.Sprintf("%q/%q", key.database, key.name), func(ctx context.Context) (*resource, error) { return e.openResource(ctx, key) })
}

// openOnce calls open in a goroutine that Close waits for, once for all who ask for the same at the same time, and
// returns its result, or ctx's error if ctx ends before that.
func openOnce[T any](ctx context.Context, e *Elections, what string, open func(context.Context) (T, error)) (result T, err error) {
	opened := e.opens.DoChan(what, func() (any, error) {
		if !e.begin() {
			return nil, ErrClosed
		}
		defer e.wg.Done()
		ctx, cancel := context.WithTimeout(e.ctx, openTimeout)
		defer cancel()
		return open(ctx)
	})
	select {
	case got := <-opened:
		if got.Err == nil {
			result = got.Val.(T)
		}
		return result, got.Err
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

func (e *Elections) known(key resourceKey) (*resource, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return nil, ErrClosed
	}
	return e.mu.resources[key], nil
}

// begin registers a goroutine that Close waits for. It reports false once Close has
// been called.
func (e *Elections) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return false
	}
	e.wg.Add(1)
	return true
}

func (e *Elections) openResource(ctx context.Context, key resourceKey) (*resource, error) {
	if r, err := e.known(key); r != nil || err != nil {
		return r, err
	}
	b, err := e.database(ctx, key.database)
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context) (Fence, error) { return b.Fence(ctx, key.name) }
	fence, err := open(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the fence of resource %q: %w", key.name, err)
	}
	if err := e.cfg.Settings(key.database, key.name).Validate(); err != nil {
		return nil, fmt.Errorf("settings of resource %q: %w", key.name, err)
	}
	provider := b.Provider
	if e.cfg.Settings(key.database, key.name).Tokens {
		provider = b.Tokens
	}
	r := newResource(e, key, provider, fence, open)
	r.handovers = b.Handovers
	if r.tokenProvider == nil {
		r.presence = b.Presence
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return nil, ErrClosed
	}
	if seen := e.mu.highestObserved[key]; seen.database == fence.Database() {
		r.mu.highestObserved = seen.epoch
	}
	delete(e.mu.highestObserved, key)
	e.mu.resources[key] = r
	e.wg.Add(1)
	go r.watch()
	return r, nil
}

// database returns the backend of a database, opened on first use. Two resources may
// open the same database at once, so it has a singleflight key of its own.
func (e *Elections) database(ctx context.Context, name string) (Backend, error) {
	if b, ok := e.opened(name); ok {
		return b, nil
	}
	got, err, _ := e.opens.Do(fmt.Sprintf("%q", name), func() (any, error) {
		if b, ok := e.opened(name); ok {
			return b, nil
		}
		b, err := e.cfg.Open(ctx, name)
		if err != nil {
			return Backend{}, fmt.Errorf("open database %q: %w", name, err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		unread := faults.NewSeries(e.log.With(zap.String("database", name)), "cannot read which orders are in force", 0)
		e.mu.databases[name] = &database{Backend: b, unread: unread} // closed by Close, which waits for this goroutine
		return b, nil
	})
	if err != nil {
		return Backend{}, err
	}
	return got.(Backend), nil
}

func (e *Elections) opened(name string) (b Backend, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.mu.databases[name]; d != nil {
		return d.Backend, true
	}
	return Backend{}, false
}

// candidacyBegan and candidacyEnded count the candidacies of a database. While there are any, its orders are
// followed.
func (e *Elections) candidacyBegan(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.mu.databases[name]
	d.addUse()
	if d.Orders != nil && d.stopOrders == nil {
		for key, r := range e.mu.resources {
			if key.database == name {
				r.reached()
			}
		}
		ctx, cancel := context.WithCancel(e.ctx)
		before, ended := d.followed, make(chan struct{})
		d.stopOrders, d.followed = cancel, ended
		e.wg.Go(func() {
			defer close(ended)
			e.followOrders(ctx, name, d.Backend, before)
		})
	}
}

// useDatabase is candidacyBegan for a connection without a candidacy, for which Close does not
// wait. It reports false after Close.
func (e *Elections) useDatabase(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.mu.databases[name]
	if d == nil || e.mu.closed {
		return false
	}
	d.addUse()
	return true
}

func (e *Elections) candidacyEnded(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.mu.databases[name]
	if d == nil {
		return // closed
	}
	d.live--
	if d.live == 0 && !e.mu.closed {
		d.unused = time.AfterFunc(closeIdleAfter, func() { e.closeIdle(name, d) })
	}
}

// closeIfIdle closes the connections of a database that has no candidacy.
func (e *Elections) closeIfIdle(name string) {
	e.mu.Lock()
	d := e.mu.databases[name]
	e.mu.Unlock()
	if d != nil {
		e.closeIdle(name, d)
	}
}

// closeIdle closes the connections of a database that still has no candidacy, and stops
// reading its orders. A candidacy that starts at the same time finds its connections closed
// and opens new ones. It also reopens its fence, because the database may have been replaced.
func (e *Elections) closeIdle(name string, d *database) {
	if !e.begin() {
		return
	}
	defer e.wg.Done()
	e.mu.Lock()
	idle := d.live == 0
	for key, r := range e.mu.resources {
		if idle && key.database == name {
			r.reopenLater()
		}
	}
	if idle && d.stopOrders != nil {
		d.stopOrders()
		d.stopOrders = nil
	}
	e.mu.Unlock()
	if idle && d.CloseIdle != nil {
		d.CloseIdle()
	}
}
