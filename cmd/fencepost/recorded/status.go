// Package recorded tells what a database records of its resources, for the command status.
package recorded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/cmd/fencepost/admin"
	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/owner"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/lockwait"
)

// patience is how long Status waits for the synchronous standbys.
const patience = time.Second

// Resource is what a database knows of one resource. What only a proxy knows is not set.
type Resource struct {
	admin.ResourceView
	Lost []string // tables that are recorded as guarded, and are not, if the role may see them

	synchronous bool // it is led, if the synchronous standbys have the grant
}

// statusSQL reads the view of the status, and the prepared transactions that
// have locked the row of the fence, which block every takeover.
var statusSQL = `SELECT pg_catalog.current_database()::text, s.resource, coalesce(s.worker, ''), s.epoch, s.granted_at,
	s.state, s.state_since, s.confirmed_until - pg_catalog.clock_timestamp(), coalesce(s.source, ''),
	coalesce((SELECT array_agg(format('prepared transaction %L of role %I must be committed or rolled back', p.gid, p.owner) ORDER BY p.prepared)
		FROM pg_catalog.pg_prepared_xacts p
		WHERE p.database = pg_catalog.current_database() AND ` + store.HasLocked("s.lockers") + `), '{}'), s.guarded_tables, s.orders,
	coalesce((SELECT array_agg(w) FROM jsonb_array_elements_text(to_jsonb(s) -> 'waiting') w), '{}'),
	s.state = 'led' AND pg_catalog.current_setting('synchronous_standby_names') <> ''
	FROM fencepost.status s ORDER BY s.resource`

// Status reads the resources of the database to which conn is connected, ordered by name. Where a
// worker leads and there are synchronous standbys, it waits up to a second for them, because a grant
// that they have not confirmed makes no leader.
func Status(ctx context.Context, conn *pgx.Conn) ([]Resource, error) {
	if _, err := owner.Of(ctx, conn); err != nil {
		return nil, err
	}
	var all []Resource
	waits := lockwait.New(func(string) {})
	err := waits.During(ctx, conn, func() error {
		rows, err := conn.Query(ctx, statusSQL)
		if err == nil {
			all, err = pgx.CollectRows(rows, scan)
		}
		return err
	})
	if err != nil {
		return nil, unread(err, waits.Last())
	}
	if slices.ContainsFunc(all, func(r Resource) bool { return r.synchronous }) {
		if err := awaitStandbys(ctx, conn); err != nil {
			doubt(all, err)
		}
	}
	lost, err := guard.Lost(ctx, conn)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Lost = lost[all[i].Resource]
	}
	return all, nil
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

func scan(row pgx.CollectableRow) (r Resource, err error) {
	var left *time.Duration
	var source string
	err = row.Scan(&r.Database, &r.Resource, &r.GrantedTo, &r.Epoch, &r.Since, &r.State, &r.StateSince, &left, &source, &r.Blocked, &r.GuardedTables, &r.Orders, &r.Waiting, &r.synchronous)
	switch r.State {
	case "led":
		r.Leader = r.GrantedTo
	case "unknown":
		r.StateReason = elsewhere(source)
	}
	if left != nil {
		until := time.Now().Add(*left)
		r.ConfirmedUntil = &until
	}
	return r, err
}

// elsewhere says why the database does not know who leads, given the source of the last grant.
func elsewhere(source string) string {
	where := "the lease is in " + cmp.Or(source, "another lease service")
	switch source {
	case fencing.SourceToken:
		return "its leader is elected by the application, which alone knows who that is now"
	case fencing.SourceOperator: // an order ended the last lead
		where = "who leads next is decided by a lease service, or by the application's tokens"
	}
	return where + ", and not in the database: ask a running Fencepost whose workers use the resource (fencepost status --admin ADDRESS)"
}

// awaitStandbys returns nil if the synchronous standbys have confirmed what conn has read.
func awaitStandbys(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := store.AwaitStandbys(ctx, conn.Config())
	switch {
	case errors.Is(err, store.ErrUnconfirmed):
		return election.ErrUncertainGrant
	case err != nil:
		return fmt.Errorf("%w (they could not be asked: %w)", election.ErrUncertainGrant, err)
	}
	return nil
}

// doubt has nobody lead whose grant the standbys may not have.
func doubt(all []Resource, why error) {
	for i := range all {
		if r := &all[i]; r.synchronous {
			r.State, r.StateReason, r.Leader = election.Unknown.String(), why.Error(), ""
		}
	}
}
