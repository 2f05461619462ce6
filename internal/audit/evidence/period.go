package evidence

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// mostTerms, mostRefusals and mostOrders bound what In returns.
	mostTerms    = 10_000
	mostRefusals = 1000
	mostOrders   = 1000
)

// Period is what a database records of a resource in a time, the newest of each first. Its JSON is a contract.
type Period struct {
	Terms    []Term    `json:"terms"`
	Refusals []Refusal `json:"refusals"` // by the minute
	Orders   []Order   `json:"orders"`
	// Cut means that there are more: older ones.
	Cut bool `json:"cut,omitempty"`
}

// Order is what an operator has ordered. Its JSON is a contract.
type Order struct {
	ID      int64      `json:"id"`
	Kind    string     `json:"kind"`
	Worker  string     `json:"worker,omitempty"`
	Until   *time.Time `json:"until,omitempty"`
	Epoch   int64      `json:"epoch,omitempty"` // that it gave to no one
	AskedBy string     `json:"asked_by"`
	Role    string     `json:"role"`
	Reason  string     `json:"reason,omitempty"`
	AskedAt time.Time  `json:"asked_at"`
}

const periodTerms = `SELECT t.resource, t.epoch, t.worker, t.granted_at, t.ended, t.source, CASE t.source WHEN 'token' THEN t.source_index ELSE 0 END
	FROM (SELECT f.resource, g.epoch, coalesce(g.worker, '') AS worker, g.granted_at, pg_catalog.lead(g.granted_at) OVER (ORDER BY g.epoch) AS ended, g.source, g.source_index
		FROM fencepost.grants g JOIN fencepost.fence f ON f.id = g.id WHERE f.resource = $1) t
	WHERE t.granted_at <= $3 AND (t.ended IS NULL OR t.ended >= $2) ORDER BY t.epoch DESC LIMIT $4`

const periodRefusals = `SELECT coalesce(nullif(r.database, pg_catalog.current_database()), ''), r.resource, r.worker, r.kind, r.write, r.sqlstate, r.fingerprint, r.count, r.first_at, r.last_at,
		r.epoch, r.current_epoch, r.current_worker, r.login_role, r.client, r.proxy, r.statement
	FROM fencepost.rejections r WHERE ($1 = '' OR r.resource = $1) AND r.minute > $2::timestamptz - interval '1 min' AND r.minute <= $3
	ORDER BY r.minute DESC, r.last_at DESC LIMIT $4`

const periodOrders = `SELECT o.id, o.kind, coalesce(o.worker, ''), o.until, coalesce(o.epoch, 0), o.asked_by, o.role::text, o.reason, o.asked_at
	FROM fencepost.orders o WHERE (o.resource IS NULL OR o.resource = $1) AND o.asked_at BETWEEN $2 AND $3 ORDER BY o.id DESC LIMIT $4`

// In returns what the database that conn is connected to, as the control role, records of a resource from since until
// until.
func In(ctx context.Context, conn *pgx.Conn, resource string, since, until time.Time) (p Period, err error) {
	if p.Terms, err = newest(ctx, conn, &p.Cut, mostTerms, periodTerms, resource, since, until, func(row pgx.CollectableRow) (t Term, err error) {
		return t, row.Scan(&t.Resource, &t.Epoch, &t.Worker, &t.From, &t.To, &t.Source, &t.Token)
	}); err != nil {
		return p, err
	}
	if p.Refusals, err = refusalsIn(ctx, conn, &p.Cut, mostRefusals, resource, since, until); err != nil {
		return p, err
	}
	p.Orders, err = newest(ctx, conn, &p.Cut, mostOrders, periodOrders, resource, since, until, func(row pgx.CollectableRow) (o Order, err error) {
		return o, row.Scan(&o.ID, &o.Kind, &o.Worker, &o.Until, &o.Epoch, &o.AskedBy, &o.Role, &o.Reason, &o.AskedAt)
	})
	return p, err
}

// Latest returns the newest refusals of all resources of the database that conn is connected to, no more than most.
func Latest(ctx context.Context, conn *pgx.Conn, most int) ([]Refusal, error) {
	var cut bool
	return refusalsIn(ctx, conn, &cut, most, "", time.Unix(0, 0), time.Now().Add(time.Hour)) // the clock of a proxy may be ahead
}

func refusalsIn(ctx context.Context, conn *pgx.Conn, cut *bool, most int, resource string, since, until time.Time) ([]Refusal, error) {
	return newest(ctx, conn, cut, most, periodRefusals, resource, since, until, func(row pgx.CollectableRow) (r Refusal, err error) {
		return r, row.Scan(&r.Database, &r.Resource, &r.Worker, &r.Kind, &r.Write, &r.SQLState, &r.Fingerprint, &r.Count, &r.First, &r.Last,
			&r.Epoch, &r.CurrentEpoch, &r.CurrentWorker, &r.User, &r.Client, &r.Proxy, &r.Statement)
	})
}

// newest runs a query that returns the newest first, and no more rows than its last parameter says. It sets cut if
// there are more than most.
func newest[T any](ctx context.Context, conn *pgx.Conn, cut *bool, most int, sql, resource string, since, until time.Time, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := conn.Query(ctx, sql, resource, since, until, most+1)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, scan)
	if len(all) > most {
		*cut, all = true, all[:most]
	}
	return all, err
}
