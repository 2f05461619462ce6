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
	// catalogEvery is how often the database is asked whether its catalogue
	// changed. It is asked less often if that takes more than a fiftieth of the
	// time, down to catalogSeldom.
	catalogEvery  = time.Second
	catalogSeldom = 3 * time.Second
	catalogShare  = 50
	// catalogLeast is the least time between two looks: who asks for things
	// that are not proven, again and again, must not keep the server busy.
	catalogLeast = 50 * time.Millisecond
	// catalogFresh is how old the last answer may be. Behind it nothing is
	// proven.
	catalogFresh = 5 * time.Second
	// catalogWhole is how often everything is read, changed or not: of built-in
	// functions the fingerprint does not tell.
	catalogWhole = time.Minute
	// catalogTimeout bounds one reading.
	catalogTimeout = 10 * time.Second
	// catalogIdle is how long the database is asked on behalf of nobody.
	catalogIdle = time.Minute
)

// catalogReader keeps a database's fencing.Catalog fresh. It does nothing until
// it is asked for, and nothing more when nobody has asked for a while.
type catalogReader struct {
	store   *Store
	latest  atomic.Pointer[catalogRead]
	asked   atomic.Bool // since the last look
	resting atomic.Bool // nobody uses the database, since rest until it is asked again
	wake    chan struct{}

	mu struct {
		sync.Mutex
		stop    context.CancelFunc // nil before the first question
		done    chan struct{}
		closed  bool
		waiting []chan struct{} // closed behind the next look that begins
	}
}

// catalogRead is what was read, and when the last look at it began.
type catalogRead struct {
	names       *fencing.Catalog
	fingerprint string
	whole       time.Time // when all of it was read
	asOf        time.Time
}

func newCatalogReader(s *Store) *catalogReader {
	return &catalogReader{store: s, wake: make(chan struct{}, 1)}
}

// Catalog implements fencing.Fence.
func (f *Fence) Catalog() *fencing.Catalog { return f.store.catalog.get() }

// RefreshCatalog implements fencing.Fence.
func (f *Fence) RefreshCatalog(ctx context.Context) { f.store.catalog.refresh(ctx) }

// get returns the catalogue if it is fresh, else nil, and sees to it that it is
// read.
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

// refresh returns when a look that began behind this call has ended, or ctx
// has. Those who wait at once share one look.
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

// rest stops the looks until somebody asks again, without waiting for one that is
// under way: the loop closes what that leaves open.
func (c *catalogReader) rest() {
	c.asked.Store(false)
	c.resting.Store(true)
}

// rouse makes the loop look now.
func (c *catalogReader) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // it has been told
	}
}

// start begins the loop, once.
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

// close ends the loop, and waits for it.
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

// run looks at the catalogue until ctx ends.
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
			c.tell(err)
		}
		timer.Reset(min(max(catalogEvery, catalogShare*ended.Sub(began)), catalogSeldom))
	}
}

// tell logs that the catalogue cannot be read, or can be again.
func (c *catalogReader) tell(err error) {
	if err != nil {
		c.store.log.Warn("the catalogue cannot be read: no read is proven harmless until it can", zap.Error(err))
		return
	}
	c.store.log.Info("the catalogue can be read again")
}

// look asks whether the catalogue changed since it was read, and reads it if it
// did.
func (c *catalogReader) look(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	conn, err := c.store.free.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect for the catalogue: %w", err)
	}
	defer conn.Release()
	next := catalogRead{asOf: began}
	if last := c.latest.Load(); last != nil && began.Sub(last.whole) < catalogWhole {
		var now string
		if err := conn.QueryRow(ctx, fingerprintSQL).Scan(&now); err != nil {
			return fmt.Errorf("ask whether the catalogue changed: %w", err)
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

// ReadCatalog reads the catalogue of the database that conn is connected to,
// once. Every role may.
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
		return facts, "", fmt.Errorf("read the catalogue: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it only read
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err != nil {
		return facts, "", fmt.Errorf("read the catalogue: %w", err)
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
		return fencing.Facts{}, "", fmt.Errorf("read the catalogue: %w", err)
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

// scanAll calls row with each row in the variables into.
func scanAll(ctx context.Context, tx pgx.Tx, sql string, into []any, row func()) error {
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, func() error { row(); return nil })
	return err
}
