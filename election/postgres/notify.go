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

// notifyTimeout bounds one notification. fencepost.lease_notify waits for less.
const notifyTimeout = 2 * time.Second

// notifier notifies those who watch leases that these have changed. It does so outside the
// transaction that changes a lease: the commits of all transactions of the server that notify
// wait for each other, and so for whatever one of them waits for. No one waits for a notifier,
// and what it could not send is forgotten: the others look for themselves.
type notifier struct {
	pool     *pgxpool.Pool
	failures *faults.Series
	more     chan struct{} // cap 1; something has changed

	mu      sync.Mutex
	changed map[string]struct{} // resources
}

func newNotifier(pool *pgxpool.Pool, log *zap.Logger) *notifier {
	return &notifier{
		pool: pool, more: make(chan struct{}, 1), changed: map[string]struct{}{},
		failures: faults.NewSeries(log, "could not notify other proxies of a changed lease: they notice when they next look", 0),
	}
}

// add makes run notify that the lease of a resource has changed. It does not wait.
func (t *notifier) add(resource string) {
	t.mu.Lock()
	t.changed[resource] = struct{}{}
	t.mu.Unlock()
	poke(t.more)
}

// take returns what has changed since it was last called.
func (t *notifier) take() (resources []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for resource := range t.changed {
		resources = append(resources, resource)
	}
	clear(t.changed)
	return resources
}

// run sends one batch of changes after the other, over one connection at a time, until ctx
// ends. It still sends what has changed until then.
func (t *notifier) run(ctx context.Context) {
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
			t.failures.Failed(zap.Error(err))
		} else {
			t.failures.Passed()
		}
	}
}

// querier is a connection, or a pool of them.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// notify wakes whoever watches these leases; "" means all.
func notify(ctx context.Context, conn querier, resources ...string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	var done bool
	return conn.QueryRow(ctx, "SELECT true FROM fencepost.lease_notify($1)", resources).Scan(&done)
}
