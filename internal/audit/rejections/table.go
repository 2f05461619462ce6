// Package rejections counts what the proxy refuses and discards, in the table
// fencepost.rejections of the database concerned.
//
// The audit log has each rejection; the table is a summary that fencepost audit shows. So nothing
// ever waits for it: rejections are added up in memory, within limits, and written every few
// seconds on a connection of its own, which is closed afterwards. No one else's work shares
// it, and it does not keep a database from being dropped. What finds no room, or cannot be written,
// is counted (Unrecorded).
package rejections

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/evidence"
	"github.com/fencepost/fencepost/fencing/owner"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/faults"
)

const (
	// Every is the time between two batches of a database.
	Every = 10 * time.Second
	// pruneEvery is the time between two deletions of old rows.
	pruneEvery = time.Hour
	// longestPause is the longest time after which a database is tried again that failed.
	longestPause = 5 * time.Minute
	// visitTimeout bounds the work in one database at a time.
	visitTimeout = 5 * time.Second
	// mostVisits is how many databases are visited at a time.
	mostVisits = 8
)

// Reason says why rejections are in the audit log only. It is the value of a metric's label.
type Reason string

const (
	// Full: there were too many different ones.
	Full Reason = "full"
	// NoTable: the database has no table for them.
	NoTable Reason = "no_table"
	// Uncertain: the connection broke during the commit, so they may be in the table.
	Uncertain Reason = "uncertain"
	// Ended: the proxy ended before the database took them.
	Ended Reason = "ended"
)

// Reasons are all reasons.
func Reasons() []Reason { return []Reason{Full, NoTable, Uncertain, Ended} }

// Settings say what is wanted.
type Settings struct {
	Record bool
	Keep   time.Duration // for how long rows are kept; 0: for ever
}

// Config says what a Table works with. No field may be nil. Functions that take a context return when
// it ends.
type Config struct {
	Settings func() Settings // in effect now
	// Connect calls do with a new connection of the control role to a database, and closes it.
	Connect func(ctx context.Context, database string, do func(*pgx.Conn) error) error
	// Gone reports whether an error of Connect says that there is no such database.
	Gone func(error) bool
	// Open returns the databases in use. Old rows are deleted in them.
	Open func() []string
	// Unrecorded is called with rejections that are in the audit log only. It does not block.
	Unrecorded func(why Reason, rejections int64)
	Log        *zap.Logger
}

// Table records rejections. Run must be called, and Close at the end.
type Table struct {
	cfg  Config
	life context.Context // ends with Close
	end  context.CancelFunc
	turn chan struct{} // cap 1; held by the visits

	mu      sync.Mutex
	pending *pending
	known   map[string]*database // whose visits are remembered
}

// database is what is remembered of a database.
type database struct {
	prune  time.Time     // when old rows are to be deleted
	pause  time.Duration // after the last failure; 0 if the last visit succeeded
	again  time.Time     // when that pause ends
	faults *faults.Series
}

// visited notes the result of a visit. After each failure, the database is left alone for longer.
func (d *database) visited(now time.Time, pruned bool, err error) {
	if err != nil {
		d.pause = min(max(2*d.pause, Every), longestPause)
		d.again = now.Add(d.pause)
		return
	}
	d.pause, d.again = 0, time.Time{}
	if pruned {
		d.prune = now.Add(pruneEvery)
	}
}

// New returns a Table that records nothing until Run is called.
func New(cfg Config) *Table {
	t := &Table{cfg: cfg, turn: make(chan struct{}, 1), pending: newPending(), known: map[string]*database{}}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// Record counts a rejection. a describes its statement. It does not wait for a database. What was
// observed in shadow was neither refused nor discarded, and is not counted.
func (t *Table) Record(r fencing.Rejection, a sqltext.Audit) {
	if r.Shadow || !t.cfg.Settings().Record {
		return
	}
	t.mu.Lock()
	counted := t.pending.add(r, a)
	t.mu.Unlock()
	if !counted {
		t.cfg.Unrecorded(Full, 1)
	}
}

// Run writes every few seconds what was counted, until ctx ends or Close is called.
func (t *Table) Run(ctx context.Context) { t.run(ctx, Every) }

func (t *Table) run(ctx context.Context, every time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.visitAll(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Close writes what was counted since. When ctx ends, it gives up. Nothing may be recorded any more.
func (t *Table) Close(ctx context.Context) {
	t.end()
	t.visitAll(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	var lost int64
	for _, name := range t.pending.databases() {
		lost += t.pending.take(name).count()
	}
	if lost > 0 {
		t.cfg.Unrecorded(Ended, lost)
		t.cfg.Log.Warn("the last refusals are in the audit log only, because their database did not take them", zap.Int64("refusals", lost))
	}
}

// visitAll visits each database for which there is something to do.
func (t *Table) visitAll(ctx context.Context) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return
	}
	var visits errgroup.Group
	visits.SetLimit(mostVisits)
	for name, prune := range t.due(time.Now()) {
		visits.Go(func() error {
			t.visit(ctx, name, prune)
			return nil
		})
	}
	_ = visits.Wait() // no visit returns an error
}

// due returns the databases for which there is something to do now, and whether that includes the
// deletion of old rows. At the end, nothing is deleted, and each database is tried once more.
func (t *Table) due(now time.Time) map[string]bool {
	open, settings, ending := t.cfg.Open(), t.cfg.Settings(), t.life.Err() != nil
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending.expire(now)
	due, pending := map[string]bool{}, t.pending.databases()
	for _, name := range append(open, pending...) {
		d := t.known[name]
		if d == nil {
			log := t.cfg.Log.With(zap.String("database", name))
			d = &database{faults: faults.NewSeries(log, "refusals are not recorded in the database", math.MaxInt64)}
			t.known[name] = d
		}
		pauses := !ending && now.Before(d.again)
		prune := !ending && settings.Record && settings.Keep > 0 && !now.Before(d.prune)
		if !pauses && (prune || slices.Contains(pending, name)) {
			due[name] = prune
		}
	}
	return due
}

// visit writes what was counted in a database, and deletes old rows.
func (t *Table) visit(ctx context.Context, name string, prune bool) {
	ctx, cancel := context.WithTimeout(ctx, visitTimeout)
	defer cancel()
	t.mu.Lock()
	of, rows := t.known[name], t.pending.take(name)
	t.mu.Unlock()
	left := rows
	err := t.cfg.Connect(ctx, name, func(conn *pgx.Conn) error {
		if len(rows) > 0 {
			if err := evidence.Record(ctx, conn, rows.rows()); err != nil {
				return err
			}
			left = nil
		}
		if !prune {
			return nil
		}
		_, err := evidence.PruneRejections(ctx, conn, t.cfg.Settings().Keep)
		return err
	})
	t.mu.Lock()
	of.visited(time.Now(), prune, err)
	t.mu.Unlock()
	t.settle(name, of, left, err)
}

// settle accounts for what a visit could not write.
func (t *Table) settle(name string, of *database, left batch, err error) {
	var foreign *owner.ForeignError
	switch {
	case err == nil:
		of.faults.Passed()
		return
	case t.cfg.Gone(err):
		t.mu.Lock()
		delete(t.known, name)
		t.mu.Unlock()
		t.lose(NoTable, left.count())
		return
	case errors.Is(err, evidence.ErrNoTable):
		t.lose(NoTable, left.count())
		of.faults.Failed(zap.Error(err), zap.String("remedy", "Run fencepost migrate --dsn DSN for this database. Until then its refusals are in the audit log only."))
		return
	case errors.As(err, &foreign):
		t.lose(NoTable, left.count())
		of.faults.Failed(zap.String("error", foreign.Problem()), zap.String("remedy", foreign.Remedy()))
		return
	case errors.Is(err, evidence.ErrUncertain):
		t.lose(Uncertain, left.count())
	default:
		t.mu.Lock()
		lost := t.pending.giveBack(left)
		t.mu.Unlock()
		t.lose(Full, lost)
	}
	if t.life.Err() == nil { // otherwise Close says what is left
		of.faults.Failed(zap.Error(err), zap.String("remedy", "They are tried again. The audit log has each of them."))
	}
}

// lose counts what is in the audit log only.
func (t *Table) lose(why Reason, rejections int64) {
	if rejections > 0 {
		t.cfg.Unrecorded(why, rejections)
	}
}
