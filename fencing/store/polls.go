package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// pollTimeout bounds one poll.
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

// polls queries the server on behalf of all waiting grants of a database. Requests that
// arrive during a poll are batched into the next one.
type polls struct {
	store   *Store
	running sync.Mutex // held during a poll

	mu   sync.Mutex
	next *poll // collects requests; nil if there were none since the last poll began
}

// poll is one query to the server.
type poll struct {
	fences  []int32
	done    chan struct{} // closed when holders and err are set
	holders map[int32][]holder
	err     error
}

// at returns which transactions hold a fence's sequence or wait for it, as of a moment
// after the call.
func (l *polls) at(ctx context.Context, fence int32) ([]holder, error) {
	l.mu.Lock()
	k := l.next
	mine := k == nil
	if mine {
		k = &poll{done: make(chan struct{})}
		l.next = k
	}
	k.fences = append(k.fences, fence)
	l.mu.Unlock()
	if mine {
		l.run(ctx, k)
	}
	select {
	case <-k.done:
		return k.holders[fence], k.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// run polls for all collected requests once the previous poll has ended.
func (l *polls) run(ctx context.Context, k *poll) {
	defer close(k.done)
	l.running.Lock()
	defer l.running.Unlock()
	l.mu.Lock()
	l.next = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollTimeout) // shared with other callers
	defer cancel()
	rows, err := l.store.watches.Query(ctx, pollSQL, k.fences)
	if err != nil {
		k.err = err
		return
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[holder])
	if err != nil {
		k.err = err
		return
	}
	k.holders = make(map[int32][]holder)
	for _, h := range found {
		k.holders[h.Fence] = append(k.holders[h.Fence], h)
	}
}
