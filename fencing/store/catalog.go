package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

const (
	// catalogEvery is how often the database is asked whether its catalog has changed.
	// If that takes more than a fiftieth of the time, the database is asked less often,
	// but at least every catalogSeldom.
	catalogEvery  = time.Second
	catalogSeldom = 3 * time.Second
	catalogShare  = 50
	// catalogLeast is the least time between two polls, so that a client that keeps
	// asking for unproven reads does not keep the server busy.
	catalogLeast = 50 * time.Millisecond
	// catalogFresh is how old the last answer may be. Older answers prove nothing.
	catalogFresh = 5 * time.Second
	// catalogWhole is how often everything is read, changed or not, because the
	// fingerprint does not cover built-in functions.
	catalogWhole = time.Minute
	// catalogTimeout bounds one poll.
	catalogTimeout = 10 * time.Second
	// catalogIdle is how long the database is polled after the last use.
	catalogIdle = time.Minute
)

// catalogReader keeps a database's fencing.Catalog fresh. It starts when the catalog is
// first used, and pauses when it has not been used for catalogIdle.
type catalogReader struct {
	store   *Store
	latest  atomic.Pointer[catalogRead]
	asked   atomic.Bool // used since the last poll
	resting atomic.Bool // no polls, since rest, until the catalog is used again
	wake    chan struct{}

	mu struct {
		sync.Mutex
		stop    context.CancelFunc // nil before the first use
		done    chan struct{}
		closed  bool
		waiting []chan struct{} // closed after the next poll that begins
	}
}

// catalogRead is the result of a poll.
type catalogRead struct {
	names       *fencing.Catalog
	fingerprint string
	whole       time.Time // when all of it was last read
	asOf        time.Time
}

func newCatalogReader(s *Store) *catalogReader {
	return &catalogReader{store: s, wake: make(chan struct{}, 1)}
}

// Catalog implements fencing.CatalogReader.
func (s *Store) Catalog() *fencing.Catalog { return s.catalog.get() }

// RefreshCatalog implements fencing.CatalogReader.
func (s *Store) RefreshCatalog(ctx context.Context) { s.catalog.refresh(ctx) }

// Catalog implements fencing.Fence.
func (f *Fence) Catalog() *fencing.Catalog { return f.store.Catalog() }

// RefreshCatalog implements fencing.Fence.
func (f *Fence) RefreshCatalog(ctx context.Context) { f.store.RefreshCatalog(ctx) }

// get returns the catalog if it is fresh, otherwise nil. It makes sure that the catalog
// is being read.
func (c *catalogReader) get() *fencing.Catalog {
	if !c.asked.Load() {
		c.asked.Store(true)
		c.start()
	}
	r := c.latest.Load()
	if r == nil || time.Since(r.asOf) > catalogFresh {
		return nil
	}
	return r.names
}

// refresh returns when a poll that began after this call has ended, or when ctx has
// ended. Concurrent callers share one poll.
func (c *catalogReader) refresh(ctx context.Context) {
	c.asked.Store(true)
	c.start()
	done := make(chan struct{})
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return
	}
	c.mu.waiting = append(c.mu.waiting, done)
	c.mu.Unlock()
	c.rouse()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// rest stops the polls until the catalog is used again. It does not wait for a poll in
// progress: the loop closes the connections that such a poll leaves open.
func (c *catalogReader) rest() {
	c.asked.Store(false)
	c.resting.Store(true)
}

// rouse makes the loop poll now.
func (c *catalogReader) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // already pending
	}
}

// start starts the loop once.
func (c *catalogReader) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	c.mu.stop, c.mu.done = stop, make(chan struct{})
	go c.run(ctx, c.mu.done)
}

// close stops the loop and waits for it.
func (c *catalogReader) close() {
	c.mu.Lock()
	c.mu.closed = true
	stop, done := c.mu.stop, c.mu.done
	waiting := c.mu.waiting
	c.mu.waiting = nil
	c.mu.Unlock()
	for _, w := range waiting {
		close(w)
	}
	if stop != nil {
		stop()
		<-done
	}
}

// run polls the catalog until ctx ends.
func (c *catalogReader) run(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing, lastAsked, ended := false, time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			if early := catalogLeast - time.Since(ended); early > 0 {
				timer.Reset(early)
				continue
			}
		case <-timer.C:
		}
		began := time.Now()
		if c.asked.Swap(false) {
			lastAsked = began
			c.resting.Store(false)
		}
		c.mu.Lock()
		waiting := c.mu.waiting
		c.mu.waiting = nil
		c.mu.Unlock()
		if len(waiting) == 0 && (c.resting.Load() || began.Sub(lastAsked) > catalogIdle) {
			timer.Reset(catalogEvery)
			continue
		}
		err := c.look(ctx, began)
		ended = time.Now()
		for _, w := range waiting {
			close(w)
		}
		if c.resting.Load() {
			c.store.closeConnections()
		}
		if (err != nil) != failing && ctx.Err() == nil {
			failing = err != nil
			c.logState(err)
		}
		timer.Reset(min(max(catalogEvery, catalogShare*ended.Sub(began)), catalogSeldom))
	}
}

// logState logs that the catalog cannot be read, or that it can be read again.
func (c *catalogReader) logState(err error) {
	if err != nil {
		c.store.log.Warn("cannot read the catalog: no read is proven harmless until it can be read", zap.Error(err))
		return
	}
	c.store.log.Info("the catalog can be read again")
}

// look asks whether the catalog has changed since it was last read, and reads it if so.
func (c *catalogReader) look(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	conn, err := c.store.free.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("get a connection to read the catalog: %w", err)
	}
	defer conn.Release()
	next := catalogRead{asOf: began}
	if last := c.latest.Load(); last != nil && began.Sub(last.whole) < catalogWhole {
		var now string
		if err := conn.QueryRow(ctx, fingerprintSQL).Scan(&now); err != nil {
			return fmt.Errorf("poll the catalog for changes: %w", err)
		}
		if now == last.fingerprint {
			next.names, next.fingerprint, next.whole = last.names, now, last.whole
			c.latest.Store(&next)
			return nil
		}
	}
	facts, fingerprint, err := readFacts(ctx, conn.Conn())
	if err != nil {
		return err
	}
	next.names, next.fingerprint, next.whole = fencing.NewCatalog(facts), fingerprint, began
	c.latest.Store(&next)
	return nil
}

// ReadCatalog reads the catalog of the database that conn is connected to, once. Every
// role may do so.
func ReadCatalog(ctx context.Context, conn *pgx.Conn) (*fencing.Catalog, error) {
	facts, _, err := readFacts(ctx, conn)
	if err != nil {
		return nil, err
	}
	return fencing.NewCatalog(facts), nil
}

// readFacts reads everything in one snapshot.
func readFacts(ctx context.Context, conn *pgx.Conn) (facts fencing.Facts, fingerprint string, err error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return facts, "", fmt.Errorf("read the catalog: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // it only reads
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err != nil {
		return facts, "", fmt.Errorf("read the catalog: %w", err)
	}
	facts = fencing.Facts{
		Relations: map[string]string{}, UserRelations: map[string]bool{},
		Functions: map[string]string{}, Volatile: map[string]bool{}, Attributes: map[string]bool{},
		Operators: map[string]string{}, Types: map[string]string{},
	}
	var name, why string
	var first, second bool
	err = errors.Join(
		scanOne(ctx, tx, fingerprintSQL, &fingerprint),
		scanOne(ctx, tx, nothingSQL, &facts.Nothing),
		scanAll(ctx, tx, relationsSQL, []any{&name, &why, &first}, func() {
			facts.Relations[name] = why
			setIf(facts.UserRelations, name, first)
		}),
		scanAll(ctx, tx, functionsSQL, []any{&name, &why, &first, &second}, func() {
			facts.Functions[name] = why
			setIf(facts.Volatile, name, first)
			setIf(facts.Attributes, name, second)
		}),
		scanAll(ctx, tx, operatorsSQL, []any{&name, &why}, func() { facts.Operators[name] = why }),
		scanAll(ctx, tx, typesSQL, []any{&name, &why, &first}, func() {
			facts.Types[name] = why
			setIf(facts.Attributes, name, first)
		}),
	)
	if err != nil {
		return fencing.Facts{}, "", fmt.Errorf("read the catalog: %w", err)
	}
	return facts, fingerprint, nil
}

func setIf(m map[string]bool, name string, holds bool) {
	if holds {
		m[name] = true
	}
}

func scanOne(ctx context.Context, tx pgx.Tx, sql string, into any) error {
	return tx.QueryRow(ctx, sql).Scan(into)
}

// scanAll scans each row into the variables in into and calls row after each.
func scanAll(ctx context.Context, tx pgx.Tx, sql string, into []any, row func()) error {
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, func() error { row(); return nil })
	return err
}
