package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// standbyPatience is how long the standbys may take to confirm a grant before that is reported,
// and the time from one look to the next.
const standbyPatience = time.Second

// standbysSQL returns the setting if the backend $1 waits for it.
const standbysSQL = `SELECT current_setting('synchronous_standby_names') FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'`

// confirmation reports a grant that has its epoch, but waits for a synchronous standby to confirm it.
// Nothing is to be ended then, and the grant goes on to wait.
func (w *watch) confirmation(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	var names string
	err := w.fence.store.watches.QueryRow(ctx, standbysSQL, int32(w.pid)).Scan(&names)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		w.blockers.pollFailed(ctx, err)
	default:
		w.blockers.tell("takeover waits for a synchronous standby", []string{fmt.Sprintf(
			"no standby of synchronous_standby_names = '%s' confirms the grant: start one, or change the setting", names)})
	}
}

// BlockedBy returns what the last grant on the resource waits for, or was given up for, and cannot
// end; nothing if that is not so.
func (f *Fence) BlockedBy() []string { return f.store.reports.of(f.resource) }
