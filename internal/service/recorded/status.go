// Package recorded reads what a database records of its resources, for the command status.
package recorded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/owner"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/lockwait"
)

// mostProxies is how many proxies are kept of a database.
const mostProxies = 200

// patience is how long Status waits for the synchronous standbys.
const patience = time.Second

// Row is what a database knows of one resource.
type Row struct {
	Database, Resource string
	State              status.State
	StateSince         *time.Time // nil: not known
	Worker             string     // that was granted Epoch, at GrantedAt
	Proxy              string     // through which that worker is connected, "" if it is not
	Epoch              int64      // 0: no one ever led
	GrantedAt          *time.Time
	LeaseLeft          *time.Duration // of a lease that is in the database
	Guards             int            // how many tables it guards
	Blocked            []string       // what has locked the row of the fence, blocks every takeover, and cannot be ended by one
	Orders             []string       // those in force, in words
	Waiting            []string       // the workers that campaign and were not granted Epoch
	SaysLed            bool           // the proxy of Worker says that it leads
	// Uncertain means that it is led only if the synchronous standbys have the grant, and that its proxy
	// has not said that they do.
	Uncertain bool
}

// blockersSQL is what has locked the row of a fence and blocks every takeover: a clause WITH, and a column.
type blockersSQL struct{ with, column string }

// named are the prepared transactions, and those of superusers. Whose backend has locked a row any role may see; what
// it does, only some may. It reads pg_database, which any role can lock away, so what must not wait uses unnamed in its
// place. The clause is there for the planner, which would otherwise expect so much that it compiles the query for
// seconds.
var named = blockersSQL{
	with: `WITH superusers AS MATERIALIZED (
		SELECT a.pid, pg_catalog.pg_get_userbyid(a.usesysid) AS role, a.application_name, a.state, l.transactionid
		FROM pg_catalog.pg_stat_get_activity(NULL) a JOIN pg_catalog.pg_lock_status() l ON l.pid = a.pid AND l.locktype = 'transactionid' AND l.granted
		JOIN pg_catalog.pg_namespace n ON n.nspname = 'fencepost' AND NOT pg_catalog.has_table_privilege(n.nspowner, 'pg_catalog.pg_authid', 'UPDATE')
		WHERE pg_catalog.has_table_privilege(a.usesysid, 'pg_catalog.pg_authid', 'UPDATE'))`,
	column: `ARRAY(SELECT format('prepared transaction %L of role %I must be committed or rolled back', p.gid, pg_catalog.pg_get_userbyid(p.ownerid))
		FROM pg_catalog.pg_prepared_xact() p
		WHERE p.dbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()) AND ` + lockwait.HasLocked("p.transaction", "s.lockers") + `
		UNION SELECT format('backend %s of role %I (application %I, %s) belongs to a superuser, so the control role cannot end it', u.pid, u.role,
			u.application_name, coalesce(u.state, 'this role may not see what it does'))
		FROM superusers u WHERE ` + lockwait.HasLocked("u.transactionid", "s.lockers") + ` ORDER BY 1)`,
}

var unnamed = blockersSQL{column: `'{}'::text[]`}

// read reads the view of the status. where follows FROM.
func read(ctx context.Context, conn *pgx.Conn, blockers blockersSQL, where string, args ...any) ([]Row, error) {
	rows, err := conn.Query(ctx, blockers.with+` SELECT pg_catalog.current_database()::text, s.resource, s.state, s.state_since, coalesce(s.worker, ''), coalesce(s.proxy, ''), s.epoch,
		s.granted_at, s.confirmed_until - pg_catalog.clock_timestamp(), s.guarded_tables, `+blockers.column+`, s.orders, s.waiting, s.says_led,
		s.state = 'led' AND NOT s.says_led AND pg_catalog.current_setting('synchronous_standby_names') <> ''
		FROM fencepost.status s`+where, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Row, err error) {
		var state string
		err = row.Scan(&r.Database, &r.Resource, &state, &r.StateSince, &r.Worker, &r.Proxy, &r.Epoch, &r.GrantedAt, &r.LeaseLeft, &r.Guards, &r.Blocked, &r.Orders, &r.Waiting, &r.SaysLed, &r.Uncertain)
		if r.State = status.StateOf(state); r.State == status.Electing && len(r.Blocked) > 0 {
			r.State = status.Blocked
		}
		return r, err
	})
}

// readProxies reads which proxies have said that they are alive, the newest first.
func readProxies(ctx context.Context, conn *pgx.Conn) ([]admin.OtherProxy, error) {
	rows, err := conn.Query(ctx, `SELECT x.name, x.seen, extract(epoch FROM pg_catalog.clock_timestamp() - x.seen)::float8,
			pg_catalog.count(k.worker) FILTER (WHERE k.state = 'leading'), pg_catalog.count(k.worker)
		FROM fencepost.proxies x LEFT JOIN fencepost.candidates k ON k.proxy = x.id GROUP BY x.id ORDER BY x.seen DESC LIMIT $1`, mostProxies)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p admin.OtherProxy, err error) {
		err = row.Scan(&p.Name, &p.Seen, &p.Age, &p.Leading, &p.Workers)
		p.Seen = p.Seen.UTC()
		return p, err
	})
}

// Resource is what a database knows of one resource. What only a proxy knows is not set.
type Resource struct {
	admin.ResourceView
	Lost []string // tables that are recorded as guarded, and are not, if the role may see them
}

// Status reads the resources of the database to which conn is connected, ordered by name. Where a worker leads and
// there are synchronous standbys, and its proxy has not said that they have its grant, it waits up to a second for
// them, because a grant that they have not confirmed makes no leader.
func Status(ctx context.Context, conn *pgx.Conn) ([]Resource, error) {
	if _, err := owner.Of(ctx, conn); err != nil {
		return nil, err
	}
	var rows []Row
	waits := lockwait.New(func(string) {})
	err := waits.During(ctx, conn, func() (err error) {
		rows, err = read(ctx, conn, named, " ORDER BY s.resource")
		return err
	})
	if err != nil {
		return nil, unread(err, waits.Last())
	}
	var uncertain error
	if slices.ContainsFunc(rows, func(r Row) bool { return r.Uncertain }) {
		uncertain = awaitStandbys(ctx, conn)
	}
	lost, err := guard.Lost(ctx, conn)
	if err != nil {
		return nil, err
	}
	all := make([]Resource, len(rows))
	for i, r := range rows {
		all[i] = Resource{r.view(uncertain), lost[r.Resource]}
	}
	return all, nil
}

// view returns the row as the admin address would. uncertain is why the standbys may not have a grant, nil if they
// have.
func (r Row) view(uncertain error) admin.ResourceView {
	v := admin.ResourceView{
		Database: r.Database, Resource: r.Resource, State: r.State.String(), StateSince: r.StateSince, GrantedTo: r.Worker, Proxy: r.Proxy, Epoch: r.Epoch,
		Since: r.GrantedAt, Blocked: r.Blocked, GuardedTables: r.Guards, Orders: r.Orders, Waiting: r.Waiting,
	}
	switch {
	case r.Uncertain && uncertain != nil:
		v.State, v.StateReason = status.Unknown.String(), uncertain.Error()
	case r.State == status.Led:
		v.Leader = r.Worker
	}
	if r.LeaseLeft != nil {
		until := time.Now().Add(*r.LeaseLeft)
		v.ConfirmedUntil = &until
	}
	return v
}

// unread returns the error of reading the status, which has waited for who, "" for nobody.
func unread(err error, who string) error {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && slices.Contains([]string{"3F000", "42P01", "42703", "42883"}, pg.Code):
		return fmt.Errorf("read fencepost.status (fencepost migrate creates and updates it): %w", err)
	case errors.As(err, &pg) && pg.Code == "42501":
		return fmt.Errorf("read fencepost.status (superusers, the control role and members of pg_monitor may; GRANT pg_monitor TO ...): %w", err)
	case who != "":
		return fmt.Errorf("read fencepost.status, which needs a lock that is held by %s: %w", who, err)
	default:
		return fmt.Errorf("read fencepost.status: %w", err)
	}
}

// awaitStandbys returns nil if the synchronous standbys have confirmed what conn has read.
func awaitStandbys(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := fence.AwaitStandbys(ctx, conn.Config())
	switch {
	case errors.Is(err, fence.ErrUnconfirmed):
		return status.ErrUncertainGrant
	case err != nil:
		return fmt.Errorf("%w (they could not be asked: %w)", status.ErrUncertainGrant, err)
	}
	return nil
}
