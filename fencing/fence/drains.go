package fence

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
)

// notifyDrain notifies this proxy and all others, by the channel of changed leases, that a grant waits for the backends
// that are registered under an epoch or an older one, and has terminated some of them. No write depends on that: the
// grant ends what is still there.
func (f *Fence) notifyDrain(ctx context.Context, e fencing.Epoch, ended []int32) {
	d := fencing.Drain{Resource: f.resource, Epoch: e, Ended: ended}
	f.db.cfg.Draining(d)
	payload, err := json.Marshal(d)
	if err == nil {
		asked, cancel := context.WithTimeout(ctx, pollTimeout)
		defer cancel()
		_, err = f.db.fences.Exec(asked, "SELECT fencepost.lease_tell($1)", string(payload))
	}
	if err != nil && ctx.Err() == nil {
		f.db.log.Warn("could not tell other proxies that a grant has begun", zap.String("resource", f.resource), zap.Error(err))
	}
}

// closeWait bounds the end of a connection whose server may hang.
const closeWait = time.Second

// drainsSQL reports whether a grant of the resource $1 is recording an epoch: it has a lock on the row of the fence
// that no role without rights on the schema can take.
const drainsSQL = `SELECT EXISTS (SELECT FROM fencepost.fence f CROSS JOIN LATERAL fencepost.state(f.id) s WHERE f.resource = $1 AND NOT s.settled)`

// FollowDrains calls notify for each grant of the database that waits for registered backends, until ctx
// ends or the connection is lost.
func (d *Database) FollowDrains(ctx context.Context, notify func(fencing.Drain)) error {
	pooled, err := d.Pool().Acquire(ctx)
	if err != nil {
		return fmt.Errorf("follow the grants of database %q: %w", d.cfg.Database, d.Explain(err))
	}
	conn := pooled.Hijack() // it is used for as long as the database has candidacies
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err = conn.Exec(ctx, "SELECT fencepost.lease_listen()"); err != nil {
		return fmt.Errorf("follow the grants of database %q: %w", d.cfg.Database, d.Explain(err))
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("follow the grants of database %q: %w", d.cfg.Database, err)
		}
		if err := d.Drain(ctx, n.Payload, notify); err != nil {
			return err
		}
	}
}

// Drain calls notify if a notification says that a grant waits for registered backends. It makes sure that there is
// such a grant: whoever knows the channel may send a notification, which must not end anyone's sessions.
func (d *Database) Drain(ctx context.Context, payload string, notify func(fencing.Drain)) error {
	var drain fencing.Drain
	if json.Unmarshal([]byte(payload), &drain) != nil { // it says that a lease has changed
		return nil
	}
	drains := false
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	if err := d.Pool().QueryRow(asking, drainsSQL, drain.Resource).Scan(&drains); err != nil {
		return fmt.Errorf("follow the grants of database %q: %w", d.cfg.Database, d.Explain(err))
	}
	if drains {
		notify(drain)
	}
	return nil
}

// Unregistered implements fencing.Fence.
func (f *Fence) Unregistered(ctx context.Context, started string, entries []int64) ([]int64, error) {
	rows, _ := f.db.Pool().Query(ctx, `SELECT e FROM unnest($1::bigint[]) e WHERE encode(timestamptz_send(pg_postmaster_start_time()), 'hex') = $2
		AND NOT EXISTS (SELECT FROM fencepost.running r JOIN fencepost.fence f ON f.id = r.fence WHERE r.note = e)`, entries, started)
	missing, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	switch code := store.CodeOf(err); {
	case err == nil:
		return missing, nil
	case code == codeNoSchema, code == codeNoTable: // someone has dropped it, and all entries with it
		return entries, nil
	}
	return nil, fmt.Errorf("read the registry of database %q: %w", f.db.cfg.Database, f.db.Explain(err))
}
