package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

const (
	// pollEvery is how often the database is asked whether its catalog has changed.
	// If that takes more than a fiftieth of the time, the database is asked less often,
	// but at least every pollSeldom.
	pollEvery  = time.Second
	pollSeldom = 3 * time.Second
	pollShare  = 50
	// pollLeast is the least time between two polls, so that a client that keeps
	// asking for unproven reads does not keep the server busy.
	pollLeast = 50 * time.Millisecond
	// fresh is how old the last answer may be. Older answers prove nothing.
	fresh = 5 * time.Second
	// wholeEvery is how often everything is read, changed or not, because the
	// fingerprint does not cover built-in functions.
	wholeEvery = time.Minute
	// pollTimeout bounds one poll.
	pollTimeout = 10 * time.Second
	// idle is how long the database is polled after the last use.
	idle = time.Minute
)

// Reader keeps a database's fencing.Catalog fresh. It starts when the catalog is first used, and pauses when it has not
// been used for idle. It is safe for concurrent use.
type Reader struct {
	pool    *pgxpool.Pool
	release func() // closes connections that a poll has left open
	log     *zap.Logger

	latest  atomic.Pointer[read]
	asked   atomic.Bool // used since the last poll
	resting atomic.Bool // no polls, since Rest, until the catalog is used again
	wake    chan struct{}

	mu struct {
		sync.Mutex
		stop    context.CancelFunc // nil before the first use
		done    chan struct{}
		closed  bool
		waiting []chan struct{} // closed after the next poll that begins
	}
}

// read is the result of a poll.
type read struct {
	names       *fencing.Catalog
	fingerprint string
	whole       time.Time // when all of it was last read
	asOf        time.Time
}

// NewReader returns a Reader that uses connections of the pool, as any role. While it rests, it calls release after a
// poll that was in progress. Close must be called before the pool is closed.
func NewReader(pool *pgxpool.Pool, release func(), log *zap.Logger) *Reader {
	return &Reader{pool: pool, release: release, log: log, wake: make(chan struct{}, 1)}
}

// Catalog implements fencing.CatalogReader. It makes sure that the catalog is being read.
func (c *Reader) Catalog() *fencing.Catalog {
	if !c.asked.Load() {
		c.asked.Store(true)
		c.start()
	}
	r := c.latest.Load()
	if r == nil || time.Since(r.asOf) > fresh {
		return nil
	}
	return r.names
}

// RefreshCatalog implements fencing.CatalogReader. It returns when a poll that began after this call has ended, or when
// ctx has ended. Concurrent callers share one poll.
func (c *Reader) RefreshCatalog(ctx context.Context) {
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

// Rest stops the polls until the catalog is used again. It does not wait for a poll in
// progress: the loop closes the connections that such a poll leaves open.
func (c *Reader) Rest() {
	c.asked.Store(false)
	c.resting.Store(true)
}

// rouse makes the loop poll now.
func (c *Reader) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // already pending
	}
}

// start starts the loop once.
func (c *Reader) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	c.mu.stop, c.mu.done = stop, make(chan struct{})
	go c.run(ctx, c.mu.done)
}

// Close stops the loop and waits for it.
func (c *Reader) Close() {
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
func (c *Reader) run(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing, lastAsked, ended := false, time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			if early := pollLeast - time.Since(ended); early > 0 {
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
		if len(waiting) == 0 && (c.resting.Load() || began.Sub(lastAsked) > idle) {
			timer.Reset(pollEvery)
			continue
		}
		err := c.look(ctx, began)
		ended = time.Now()
		for _, w := range waiting {
			close(w)
		}
		if c.resting.Load() {
			c.release()
		}
		if (err != nil) != failing && ctx.Err() == nil {
			failing = err != nil
			c.logState(err)
		}
		timer.Reset(min(max(pollEvery, pollShare*ended.Sub(began)), pollSeldom))
	}
}

// logState logs that the catalog cannot be read, or that it can be read again.
func (c *Reader) logState(err error) {
	if err != nil {
		c.log.Warn("cannot read the catalog: no read is proven harmless until it can be read", zap.Error(err))
		return
	}
	c.log.Info("the catalog can be read again")
}

// look asks whether the catalog has changed since it was last read, and reads it if so.
func (c *Reader) look(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("get a connection to read the catalog: %w", err)
	}
	defer conn.Release()
	next := read{asOf: began}
	if last := c.latest.Load(); last != nil && began.Sub(last.whole) < wholeEvery {
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

// Read reads the catalog of the database that conn is connected to, once. Every
// role may do so.
func Read(ctx context.Context, conn *pgx.Conn) (*fencing.Catalog, error) {
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
	rows, _ := tx.Query(ctx, sql)
	_, err := pgx.ForEachRow(rows, into, func() error { row(); return nil })
	return err
}
