package recorded

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/owner"
)

// most is how many resources a Reader keeps of a database: those that were granted an epoch last.
const most = 1000

// Reader keeps what databases know of the resources that were ever led or are paused, so that a proxy shows those
// without a worker of its own, too. It is safe for concurrent use.
type Reader struct {
	mu    sync.Mutex
	known map[string]map[string]seen // by database and resource
}

// seen is a row, and since when it has had its state, as far as the reader knows.
type seen struct {
	Row
	since time.Time
}

// NewReader returns a reader that knows nothing.
func NewReader() *Reader { return &Reader{known: map[string]map[string]seen{}} }

// Read reads the database of this name by conn, a connection of the control role.
func (r *Reader) Read(ctx context.Context, database string, conn *pgx.Conn) error {
	if _, err := owner.Mine(ctx, conn); err != nil {
		var foreign *owner.ForeignError
		if errors.Is(err, owner.ErrNoSchema) || errors.As(err, &foreign) {
			r.Forget(database)
		}
		return err
	}
	rows, err := read(ctx, conn, " WHERE s.epoch > 0 OR s.paused ORDER BY s.granted_at DESC NULLS FIRST LIMIT $1", most)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was, now := r.known[database], time.Now()
	is := make(map[string]seen, len(rows))
	for _, row := range rows {
		next := seen{row, now}
		if row.StateSince != nil {
			next.since = *row.StateSince
		} else if before, ok := was[row.Resource]; ok && before.State == row.State && before.Epoch == row.Epoch {
			next.since = before.since
		}
		is[row.Resource] = next
	}
	r.known[database] = is
	return nil
}

// Forget forgets a database, which was dropped.
func (r *Reader) Forget(database string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, database)
}

// Merge returns what is known of all resources: local, which a proxy knows by itself, in the order of
// Elections.Resources, and what the databases know of others, and of workers that are connected elsewhere.
func (r *Reader) Merge(local []election.ResourceStatus) []election.ResourceStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	here := map[[2]string]bool{}
	for i := range local {
		s := &local[i]
		here[[2]string{s.Database, s.Resource}] = true
		row, ok := r.known[s.Database][s.Resource]
		if !ok || row.Epoch != int64(s.Record.Epoch) {
			continue
		}
		s.Proxy = row.Proxy
		// A worker that has just left may still be recorded as the leader.
		if s.State == election.Absent && row.State != election.Led {
			row.stateOf(s, now)
		}
	}
	all := local
	for _, rows := range r.known {
		for _, row := range rows {
			if here[[2]string{row.Database, row.Resource}] {
				continue
			}
			s := election.ResourceStatus{
				Database: row.Database, Resource: row.Resource, Proxy: row.Proxy, Orders: row.Orders,
				Record: fencing.Record{Epoch: fencing.Epoch(row.Epoch), Worker: row.Worker, Guards: row.Guards},
			}
			if row.GrantedAt != nil {
				s.Record.GrantedAt = *row.GrantedAt
			}
			row.stateOf(&s, now)
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b election.ResourceStatus) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

// stateOf gives s the state that the database knows.
func (r seen) stateOf(s *election.ResourceStatus, now time.Time) {
	s.State, s.StateSince, s.Reason, s.Leaderless = r.State, r.since, nil, 0
	if r.Uncertain {
		s.State, s.Reason = election.Unknown, election.ErrUncertainGrant
	}
	if s.State != election.Led && !s.State.Rests() {
		s.Leaderless = max(now.Sub(r.since), time.Millisecond)
	}
}
