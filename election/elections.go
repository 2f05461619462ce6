package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/fencepost/fencepost/fencing"
)

// openTimeout bounds the opening of a database and of a fence, so that a
// server that does not answer cannot hold connections for ever.
const openTimeout = 15 * time.Second

// ErrClosed is returned once Close was called.
var ErrClosed = errors.New("elections are closed")

// Elections keeps all candidacies of one proxy.
type Elections struct {
	cfg Config
	log *zap.Logger

	ctx    context.Context // ends with Close; for watches and openings
	cancel context.CancelFunc
	wg     sync.WaitGroup // loops, watches, openings
	opens  singleflight.Group

	lessons lessons

	// mu comes before resource.mu, which comes before Candidacy.mu.
	mu struct {
		sync.Mutex
		closed    bool
		databases map[string]*database
		resources map[resourceKey]*resource
		// floors are the highest epochs seen of resources that were forgotten.
		floors map[resourceKey]fencing.Epoch
	}
}

type resourceKey struct{ database, name string }

// database is one that was opened.
type database struct {
	Backend
	live int // candidacies whose loop runs
}

// closeIdleAfter is how long a database is without a candidacy before its connections
// are closed. Who drops, renames or copies a database is refused while others are
// connected to it; Postgres waits 5 s for them to go.
const closeIdleAfter = time.Second

var _ fencing.Candidates = (*Elections)(nil)

// New returns an Elections without candidacies. Close ends it.
func New(cfg Config) (*Elections, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elections{cfg: cfg, log: cfg.Logger, ctx: ctx, cancel: cancel}
	e.mu.databases = map[string]*database{}
	e.mu.resources = map[resourceKey]*resource{}
	e.mu.floors = map[resourceKey]fencing.Epoch{}
	return e, nil
}

// Join implements fencing.Candidates. It opens the database and the fence if
// this is their first use, so it may wait for Postgres, but never for a lease.
func (e *Elections) Join(ctx context.Context, claim fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	if err := e.cfg.Settings(claim.Database, claim.Resource).admits(claim); err != nil {
		return nil, err
	}
	r, err := e.enter(ctx, resourceKey{claim.Database, claim.Resource})
	if err != nil {
		return nil, err
	}
	defer e.left(r)
	return r.join(ctx, claim, m)
}

// Close ends all candidacies, releases their leases and waits until that is
// done; when ctx ends it stops waiting for the lease service, and the leases
// end with their TTL.
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

func (e *Elections) closeBackends() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for name, b := range e.mu.databases {
		if err := b.Provider.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the lease provider of database %s: %w", name, err))
		}
		if b.Close != nil {
			b.Close()
		}
	}
	clear(e.mu.databases)
	return errors.Join(errs...)
}

// resource returns the resource, and opens its database and fence at first use.
func (e *Elections) resource(ctx context.Context, key resourceKey) (*resource, error) {
	if r, err := e.known(key); r != nil || err != nil {
		return r, err
	}
	opened := e.opens.DoChan(fmt.Sprintf("%q/%q", key.database, key.name), func() (any, error) { return e.openResource(key) })
	select {
	case got := <-opened:
		if got.Err != nil {
			return nil, got.Err
		}
		return got.Val.(*resource), nil
	case <-ctx.Done():
		return nil, ctx.Err()
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

// begin counts a goroutine that Close is to wait for. It reports false once
// Close was called.
func (e *Elections) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return false
	}
	e.wg.Add(1)
	return true
}

func (e *Elections) openResource(key resourceKey) (*resource, error) {
	if !e.begin() {
		return nil, ErrClosed
	}
	defer e.wg.Done()
	if r, err := e.known(key); r != nil || err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(e.ctx, openTimeout)
	defer cancel()
	b, err := e.database(ctx, key.database)
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context) (Fence, error) { return b.Fence(ctx, key.name) }
	fence, err := open(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the fence of resource %q: %w", key.name, err)
	}
	set := e.cfg.Settings(key.database, key.name)
	if err := set.Validate(); err != nil {
		return nil, fmt.Errorf("settings of resource %q: %w", key.name, err)
	}
	r := newResource(e, key, set, b.Provider, fence, open)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return nil, ErrClosed
	}
	r.mu.floor = e.mu.floors[key]
	delete(e.mu.floors, key)
	e.mu.resources[key] = r
	e.wg.Add(1)
	go r.watch()
	return r, nil
}

// database returns the backend of a database, opened at first use. Two
// resources may open the same database at once, so it has its own flight.
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
		e.mu.databases[name] = &database{Backend: b} // closed by Close, which waits for us
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

// began and ended count the candidacies of a database.
func (e *Elections) began(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.databases[name].live++
}

func (e *Elections) ended(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.mu.databases[name]
	if d.live--; d.live == 0 && d.CloseIdle != nil && !e.mu.closed {
		time.AfterFunc(closeIdleAfter, func() { e.rest(name, d) })
	}
}

// rest lets a database rest that is still without a candidacy. One that begins
// meanwhile finds its connections closed, and opens others; and as the database
// may be another by then, it opens its fence anew.
func (e *Elections) rest(name string, d *database) {
	if !e.begin() {
		return
	}
	defer e.wg.Done()
	e.mu.Lock()
	idle := d.live == 0
	for key, r := range e.mu.resources {
		if idle && key.database == name {
			r.doubtFence()
		}
	}
	e.mu.Unlock()
	if idle {
		d.CloseIdle()
	}
}
