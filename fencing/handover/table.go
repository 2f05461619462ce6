package handover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/fencing"
)

// beat is how often, at least, a proxy says that it is alive. The database takes one that has
// not been seen for 15 s to be gone.
const beat = 5 * time.Second

// Table is one database, as one proxy uses it. It is safe for concurrent use.
type Table struct {
	pool *pgxpool.Pool
	name string // of the proxy
	id   string // its presence id
	// noting lets one grant at a time be noted, so that many takeovers at once leave the connections to those who wait
	// for them.
	noting chan struct{}

	recording chan struct{} // cap 1; held by whoever uses what follows

	recorded map[candidacy]fencing.Candidate // what the database has; nil if that is not known
	revision int64                           // the last one, if recorded is not nil
	written  time.Time                       // when the proxy last said that it is alive
}

// candidacy is what distinguishes the candidacies of a proxy.
type candidacy struct{ resource, incarnation string }

func of(c fencing.Candidate) candidacy { return candidacy{c.Resource, c.Incarnation} }

// New returns the table of a database for the proxy of this name. id is its presence id, by which others know whether it
// is connected; a proxy that starts again has another one, because it campaigns for no one. The pool's role must own the
// schema fencepost.
func New(pool *pgxpool.Pool, proxy, id string) *Table {
	return &Table{pool: pool, name: proxy, id: id, noting: make(chan struct{}, 1), recording: make(chan struct{}, 1)}
}

// Record makes the database know that these candidacies campaign through this proxy, and no others. It calls candidates
// when no earlier call is under way, which might know less and come later, and waits for that no longer than ctx.
// It sends nothing if nothing has changed and the proxy has been seen lately. If no one campaigns, the
// proxy is forgotten.
func (t *Table) Record(ctx context.Context, candidates func() []fencing.Candidate) error {
	select {
	case t.recording <- struct{}{}:
		defer func() { <-t.recording }()
	case <-ctx.Done():
		return fmt.Errorf("record who campaigns: %w", ctx.Err())
	}
	all := candidates()
	if len(all) == 0 {
		return t.forget(ctx)
	}
	changed, gone := changes(t.recorded, all)
	whole := t.recorded == nil
	if !whole && len(changed)+len(gone) == 0 && time.Since(t.written) < beat {
		return nil
	}
	revision, err := t.write(ctx, whole, changed, gone)
	if errors.Is(err, errRevision) { // the database has lost the last batch
		revision, err = t.write(ctx, true, all, nil)
	}
	if err != nil {
		t.recorded = nil // the outcome is unknown
		return fmt.Errorf("record who campaigns: %w", err)
	}
	t.recorded, t.revision, t.written = make(map[candidacy]fencing.Candidate, len(all)), revision, time.Now()
	for _, c := range all {
		t.recorded[of(c)] = c
	}
	return nil
}

// changes returns the candidacies that the database lacks, or has otherwise, and those that it should no longer have.
func changes(recorded map[candidacy]fencing.Candidate, all []fencing.Candidate) (changed []fencing.Candidate, gone []candidacy) {
	there := make(map[candidacy]struct{}, len(all))
	for _, c := range all {
		there[of(c)] = struct{}{}
		if was, ok := recorded[of(c)]; !ok || was != c {
			changed = append(changed, c)
		}
	}
	for one := range recorded {
		if _, ok := there[one]; !ok {
			gone = append(gone, one)
		}
	}
	return changed, gone
}

// errRevision means that the database does not have the state that the changes rest on.
var errRevision = errors.New("the recorded candidacies are not those of the last batch")

func (t *Table) write(ctx context.Context, whole bool, changed []fencing.Candidate, gone []candidacy) (int64, error) {
	incarnations, resources := make([]string, 0, len(changed)), make([]string, 0, len(changed))
	workers, silences, states := make([]string, 0, len(changed)), make([]bool, 0, len(changed)), make([]string, 0, len(changed))
	for _, c := range changed {
		incarnations, resources = append(incarnations, c.Incarnation), append(resources, c.Resource)
		workers, silences, states = append(workers, c.Worker), append(silences, c.Silent), append(states, string(c.State))
	}
	goneResources, goneIncarnations := make([]string, 0, len(gone)), make([]string, 0, len(gone))
	for _, one := range gone {
		goneResources, goneIncarnations = append(goneResources, one.resource), append(goneIncarnations, one.incarnation)
	}
	var revision *int64
	err := t.pool.QueryRow(ctx, "SELECT fencepost.note_candidates($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
		t.id, t.name, t.revision, whole, incarnations, resources, workers, silences, states, goneResources, goneIncarnations).Scan(&revision)
	switch {
	case err != nil:
		return 0, err
	case revision == nil:
		return 0, errRevision
	}
	return *revision, nil
}

// forget makes the database forget the proxy, if it may know it. A database that is being restored may have no
// foreign keys yet, and could not add that of the candidates if it forgot the proxy alone.
func (t *Table) forget(ctx context.Context) error {
	if t.recorded == nil && t.written.IsZero() {
		return nil
	}
	if _, err := t.pool.Exec(ctx, "WITH own AS (DELETE FROM fencepost.candidates c WHERE c.proxy = $1) DELETE FROM fencepost.proxies p WHERE p.id = $1", t.id); err != nil {
		t.recorded = nil
		return fmt.Errorf("forget who campaigned: %w", err)
	}
	t.recorded, t.written = nil, time.Time{}
	return nil
}

// Offers returns the offers that are in force.
func (t *Table) Offers(ctx context.Context) ([]fencing.Offer, error) {
	rows, err := t.pool.Query(ctx, `SELECT o.order_id, f.resource, o.worker, o.epoch, o.begins - c.clock, o.until - c.clock
		FROM fencepost.offers o JOIN fencepost.fence f ON f.id = o.fence AND f.epoch = o.epoch, (SELECT clock_timestamp()) c (clock) WHERE o.until > c.clock`)
	if err != nil {
		return nil, fmt.Errorf("read the offers: %w", err)
	}
	offers, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o fencing.Offer, err error) {
		err = row.Scan(&o.Order, &o.Resource, &o.Worker, &o.Epoch, &o.Begins, &o.Left)
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the offers: %w", err)
	}
	return offers, nil
}

// Elsewhere returns the incarnations that campaign for a worker through other proxies that are alive.
func (t *Table) Elsewhere(ctx context.Context, resource, worker string) ([]string, error) {
	rows, err := t.pool.Query(ctx, "SELECT c.incarnation FROM fencepost.campaigning($1) c WHERE c.worker = $2 AND c.proxy <> $3", resource, worker, t.id)
	if err != nil {
		return nil, fmt.Errorf("read who campaigns: %w", err)
	}
	incarnations, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read who campaigns: %w", err)
	}
	return incarnations, nil
}

// Stopped notes when the leader was stopped for this order.
func (t *Table) Stopped(ctx context.Context, order int64, at time.Time) error {
	return t.note(ctx, "SELECT fencepost.note_offer($1, $2, NULL)", order, at)
}

// Taken notes when the chosen worker could write.
func (t *Table) Taken(ctx context.Context, order int64, at time.Time) error {
	return t.note(ctx, "SELECT fencepost.note_offer($1, NULL, $2)", order, at)
}

// Granted notes that a worker was granted an epoch through this proxy, how the term before had ended, and how long no
// worker had been confirmed as the leader; 0 if that is not known.
func (t *Table) Granted(ctx context.Context, resource string, epoch fencing.Epoch, ended fencing.Ending, gap time.Duration) error {
	select {
	case t.noting <- struct{}{}:
		defer func() { <-t.noting }()
	case <-ctx.Done():
		return fmt.Errorf("note a grant: %w", ctx.Err())
	}
	_, err := t.pool.Exec(ctx, "SELECT fencepost.note_grant($1, $2, $3, $4, nullif($5, '0'::interval))", resource, int64(epoch), t.name, string(ended), gap)
	if err != nil {
		return fmt.Errorf("note a grant: %w", err)
	}
	return nil
}

// note says how long ago something happened, because the database has another clock. That is counted when a connection
// is free, for which it may have to wait.
func (t *Table) note(ctx context.Context, sql string, order int64, at time.Time) error {
	err := t.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := c.Exec(ctx, sql, order, time.Since(at))
		return err
	})
	if err != nil {
		return fmt.Errorf("note how the hand-over goes: %w", err)
	}
	return nil
}
