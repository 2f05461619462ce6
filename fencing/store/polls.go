package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// pollTimeout bounds one query of a batch.
const pollTimeout = 5 * time.Second

// holder is a transaction that has the lock on a fence's sequence that a grant needs,
// or that waits for it.
type holder struct {
	Fence       int32
	PID         *int32 // nil for a prepared transaction
	Transaction string // virtual transaction id, unique while the transaction lasts
	Gid         string // name of the prepared transaction
	Role        string
	Application string
	State       string
	Super       bool // a superuser's, while the control role is not one
	Control     bool // the control role's: probably another grant
	Holds       bool
	Waits       bool
}

func (h holder) String() string {
	if h.PID == nil {
		return fmt.Sprintf("prepared transaction %q of role %q", h.Gid, h.Role)
	}
	return fmt.Sprintf("backend %d of role %q (application %q, %s)", *h.PID, h.Role, h.Application, h.State)
}

// remedy says what must be done about a holder that the control role cannot end. It
// returns "" for one that the control role can end.
func (h holder) remedy() string {
	switch {
	case h.PID == nil:
		return h.String() + " must be committed or rolled back"
	case h.Super:
		return h.String() + " belongs to a superuser, so the control role cannot end it"
	}
	return ""
}

// conflicting are the lock modes that block ALTER SEQUENCE … RESTART.
const conflicting = "'{RowExclusiveLock,ShareUpdateExclusiveLock,ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}'"

// pollSQL lists the transactions that hold the sequences of the fences $1 or wait for
// one.
const pollSQL = `SELECT s.id, h.pid, h.virtualtransaction, coalesce(max(p.gid), ''), coalesce(max(a.usename::text), max(p.owner::text), ''),
		coalesce(max(a.application_name), ''), coalesce(max(a.state), ''),
		coalesce(bool_or(r.rolsuper), false) AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
		coalesce(bool_or(a.usename = current_user), false), bool_or(h.granted), bool_or(NOT h.granted)
	FROM unnest($1::integer[]) s(id)
	JOIN pg_locks h ON h.locktype = 'relation' AND h.relation = to_regclass('fencepost.epoch_' || s.id)
		AND h.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND h.mode = ANY (` + conflicting + `)
	LEFT JOIN pg_stat_activity a ON a.pid = h.pid
	LEFT JOIN pg_roles r ON r.oid = a.usesysid
	LEFT JOIN pg_locks x ON h.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.virtualtransaction = h.virtualtransaction
	LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
	GROUP BY s.id, h.pid, h.virtualtransaction`

// poll lists the transactions that hold the sequences of these fences or wait for one, by
// fence.
func (s *Store) poll(ctx context.Context, fences []int32) (map[int32][]holder, error) {
	rows, err := s.fences.Query(ctx, pollSQL, fences)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[holder])
	if err != nil {
		return nil, err
	}
	holders := make(map[int32][]holder)
	for _, h := range found {
		holders[h.Fence] = append(holders[h.Fence], h)
	}
	return holders, nil
}

// batches runs one query at a time, on behalf of all who ask it about their fences. Requests
// that arrive while it runs are batched into the next one.
type batches[T any] struct {
	life    context.Context // ends with the Store
	query   func(ctx context.Context, fences []int32) (map[int32]T, error)
	running sync.Mutex // held during a query
	runs    sync.WaitGroup

	mu   sync.Mutex
	next *batch[T] // collects requests; nil if there were none since the last query began
}

// batch is one query.
type batch[T any] struct {
	fences  []int32
	done    chan struct{} // closed when answers and err are set
	answers map[int32]T
	err     error
}

// ask returns the answer for one fence, of a query that begins after the call. If ctx ends, the
// query goes on, on behalf of others.
func (b *batches[T]) ask(ctx context.Context, fence int32) (answer T, err error) {
	b.mu.Lock()
	k := b.next
	if k == nil {
		k = &batch[T]{done: make(chan struct{})}
		b.next = k
		b.runs.Go(func() { b.run(k) })
	}
	k.fences = append(k.fences, fence)
	b.mu.Unlock()
	select {
	case <-k.done:
		return k.answers[fence], k.err
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// run asks for all collected requests once the previous query has ended.
func (b *batches[T]) run(k *batch[T]) {
	defer close(k.done)
	b.running.Lock()
	defer b.running.Unlock()
	b.mu.Lock()
	b.next = nil
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.life, pollTimeout)
	defer cancel()
	k.answers, k.err = b.query(ctx, k.fences)
}
