package fence

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// pollTimeout bounds one query of a batch.
const pollTimeout = 5 * time.Second

// holder is a transaction that blocks a grant.
type holder struct {
	Grant       int32  // the backend of the grant
	Transaction string // unique while the transaction lasts
	PID         *int32 // nil for a prepared transaction
	Gid         string // name of the prepared transaction
	Role        string
	Application string
	State       string
	Super       bool // a superuser's, while the control role is not one
	Control     bool // the control role's: probably another grant
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

// What a grant depends on reads functions in place of the views over them (pg_stat_activity, pg_locks,
// pg_prepared_xacts, pg_roles), and fencepost.here() in place of pg_database: every role can lock a relation of the
// catalog, by a CREATE RULE that waits for the role's own reader and fails then, and keep all others from reading it.
// Only superusers may change a system catalog, so has_table_privilege shows who is one.

// transactionsSQL lists the transactions of the database, with the columns of a holder from the second on, and the id
// of those that are prepared.
const transactionsSQL = `SELECT concat(a.pid, ' ', a.backend_start, ' ', a.xact_start) AS transaction, a.pid, '' AS gid, coalesce(pg_get_userbyid(a.usesysid)::text, '') AS role,
		coalesce(a.application_name, '') AS application, coalesce(a.state, '') AS state,
		coalesce(has_table_privilege(a.usesysid, 'pg_authid'::regclass, 'UPDATE'), false) AND NOT has_table_privilege('pg_authid'::regclass, 'UPDATE') AS super,
		coalesce(pg_get_userbyid(a.usesysid) = current_user, false) AS control, NULL::xid AS xid, a.backend_start
	FROM pg_stat_get_activity(NULL) a
	UNION ALL SELECT concat('prepared ', p.transaction), NULL, p.gid, pg_get_userbyid(p.ownerid)::text, '', '', false, false, p.transaction, NULL
	FROM pg_prepared_xact() p WHERE p.dbid = (SELECT fencepost.here())`

// blockersOf lists the transactions that block the backends w.pid of a relation, for the root of each. A prepared
// transaction appears as process 0, and the waiting backend's own lock request says which one it is.
func blockersOf(waiting string) string {
	return `SELECT DISTINCT w.root, t.transaction, t.pid, t.gid, t.role, t.application, t.state, t.super, t.control
	FROM (` + waiting + `) w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b(pid)
	LEFT JOIN pg_lock_status() l ON b.pid = 0 AND l.pid = w.pid AND l.locktype = 'transactionid' AND NOT l.granted
	JOIN (` + transactionsSQL + `) t ON t.pid = b.pid OR t.xid = l.transactionid`
}

// pollSQL lists the transactions that block the backends $1.
var pollSQL = blockersOf(`SELECT g.pid AS root, g.pid FROM unnest($1::integer[]) g(pid)`)

// lingerSQL lists the transactions that block those of the backends $2 that are registered at the fence $1, without
// those of registered backends.
var lingerSQL = blockersOf(`SELECT r.fence AS root, r.pid FROM fencepost.running r
		JOIN pg_stat_get_activity(NULL) a ON a.pid = r.pid AND a.backend_start = r.backend_start AND a.datid = (SELECT fencepost.here())
		WHERE r.fence = $1 AND r.pid = ANY ($2)`) + `
	WHERE t.pid IS NULL OR NOT EXISTS (SELECT FROM fencepost.running r WHERE r.fence = $1 AND r.pid = t.pid AND r.backend_start = t.backend_start)`

// leftSQL lists those of the transactions $1 that have not ended, and superusers' backends that are registered at the
// fence $2.
const leftSQL = `SELECT 0, t.transaction, t.pid, t.gid, t.role, t.application, t.state, t.super, t.control
	FROM (` + transactionsSQL + `) t WHERE t.transaction = ANY ($1)
		OR t.super AND EXISTS (SELECT FROM fencepost.running r WHERE r.fence = $2 AND r.pid = t.pid AND r.backend_start = t.backend_start)`

// poll lists the transactions that block these backends, by backend.
func (d *Database) poll(ctx context.Context, grants []int32) (map[int32][]holder, error) {
	found, err := d.holders(ctx, pollSQL, grants)
	holders := make(map[int32][]holder)
	for _, h := range found {
		holders[h.Grant] = append(holders[h.Grant], h)
	}
	return holders, err
}

func (d *Database) holders(ctx context.Context, sql string, args ...any) ([]holder, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	rows, _ := d.fences.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[holder])
}

// batches runs one query at a time, on behalf of all who ask it, each about one number. Requests
// that arrive while it runs are batched into the next one.
type batches[T any] struct {
	life    context.Context // ends with the Store
	query   func(ctx context.Context, about []int32) (map[int32]T, error)
	running sync.Mutex // held during a query
	runs    sync.WaitGroup

	mu   sync.Mutex
	next *batch[T] // collects requests; nil if there were none since the last query began
}

// batch is one query.
type batch[T any] struct {
	about   []int32
	done    chan struct{} // closed when answers and err are set
	answers map[int32]T
	err     error
}

// ask returns the answer about one number, of a query that begins after the call. If ctx ends, the
// query continues, on behalf of others.
func (b *batches[T]) ask(ctx context.Context, about int32) (answer T, err error) {
	b.mu.Lock()
	k := b.next
	if k == nil {
		k = &batch[T]{done: make(chan struct{})}
		b.next = k
		b.runs.Go(func() { b.run(k) })
	}
	k.about = append(k.about, about)
	b.mu.Unlock()
	select {
	case <-k.done:
		return k.answers[about], k.err
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
	k.answers, k.err = b.query(ctx, k.about)
}
