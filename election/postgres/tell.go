package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/faults"
)

// tellTimeout bounds one attempt to tell. fencepost.lease_notify waits for less.
const tellTimeout = 2 * time.Second

// teller tells those who watch leases that these have changed. It does so apart from the
// transaction that changes a lease: the commits of all transactions of the server that notify
// wait for each other, and so for whatever one of them waits for. Nobody waits for a teller,
// and what it could not tell is forgotten: the others look for themselves.
type teller struct {
	pool  *pgxpool.Pool
	fails *faults.Series
	more  chan struct{} // cap 1; something has changed

	mu      sync.Mutex
	changed map[string]struct{} // resources
}

func newTeller(pool *pgxpool.Pool, log *zap.Logger) *teller {
	return &teller{
		pool: pool, more: make(chan struct{}, 1), changed: map[string]struct{}{},
		fails: faults.NewSeries(log, "could not notify other proxies of a changed lease: they notice when they next look", 0),
	}
}

// tell makes run tell that the lease of a resource has changed. It does not wait.
func (t *teller) tell(resource string) {
	t.mu.Lock()
	t.changed[resource] = struct{}{}
	t.mu.Unlock()
	poke(t.more)
}

// take returns what has changed since it was last called.
func (t *teller) take() (resources []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for resource := range t.changed {
		resources = append(resources, resource)
	}
	clear(t.changed)
	return resources
}

// run tells of one batch of changes after the other, over one connection at a time, until ctx
// ends. What has changed until then, it still tells.
func (t *teller) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-t.more:
		case <-ctx.Done():
		}
		resources := t.take()
		if len(resources) == 0 {
			continue
		}
		if err := notify(context.WithoutCancel(ctx), t.pool, resources...); err != nil {
			t.fails.Failed(zap.Error(err))
		} else {
			t.fails.Passed()
		}
	}
}

// querier is a connection, or a pool of them.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// notify wakes whoever watches these leases; "" stands for all.
func notify(ctx context.Context, conn querier, resources ...string) error {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	var told bool
	return conn.QueryRow(ctx, "SELECT true FROM fencepost.lease_notify($1)", resources).Scan(&told)
}
