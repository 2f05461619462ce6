package recorded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/owner"
	"github.com/fencepost/fencepost/internal/admin"
)

// most is how many resources a Reader keeps of a database: those that were granted an epoch last.
const most = 1000

// Reader keeps what databases know of the resources that were ever led or are paused, so that a proxy shows those
// without a worker of its own, too. It is safe for concurrent use.
type Reader struct {
	mu    sync.Mutex
	known map[string]reading // by database
}

// reading is what a database knew at a time.
type reading struct {
	at     time.Time
	rows   map[string]seen // by resource
	others []admin.OtherProxy
	failed error // why it could not be read since, nil if that is not known
}

// unknown says why what was read counts no longer.
func (r reading) unknown() error {
	if r.failed == nil {
		return errOutdated
	}
	return fmt.Errorf("%w: %w", errOutdated, r.failed)
}

// seen is a row, and what the reader knows of the time before.
type seen struct {
	Row
	since  time.Time // when the state began
	wanted time.Time // since when somebody should lead, and nobody was known to, by this host's clock
}

// follows returns what is known of the time before, after an earlier reading. Whoever was granted the epoch may have
// the lease again and wait for another grant: that it leads is known once its proxy says so.
func (next seen) follows(before seen) seen {
	granted := next.Epoch != before.Epoch && next.Worker != ""
	if !granted && !before.wantsNobody() && !next.wantsNobody() {
		next.wanted = before.wanted
	}
	if same := before.State == next.State && before.Epoch == next.Epoch; same && (next.StateSince == nil || next.State.LacksLeader() && before.since.Before(next.since)) {
		next.since = before.since
	}
	return next
}

// wantsNobody reports whether it is known that somebody leads, or that nobody is meant to.
func (r seen) wantsNobody() bool {
	return r.State == status.Led && r.SaysLed || r.State.NeedsNoLeader()
}

// doubted is how long a database must say that nobody leads until that counts more than a lease at another proxy. After
// a grant, the database has it within about a second.
const doubted = 5 * time.Second

// outdated is how old a reading may be. Those of a database that answers are not older than about a minute.
const outdated = 2 * time.Minute

// errOutdated is why the state of a resource is not known.
var errOutdated = errors.New("the database, which says who leads elsewhere, has not answered this proxy for more than two minutes")

// NewReader returns a reader that knows nothing.
func NewReader() *Reader { return &Reader{known: map[string]reading{}} }

// Read reads the database of this name by conn, a connection of the control role.
func (r *Reader) Read(ctx context.Context, database string, conn *pgx.Conn) error {
	if _, err := owner.Mine(ctx, conn); err != nil {
		var foreign *owner.ForeignError
		if errors.Is(err, owner.ErrNoSchema) || errors.As(err, &foreign) {
			r.Forget(database)
		}
		return err
	}
	now := time.Now() // what the database does after that is not in the reading
	rows, err := read(ctx, conn, unnamed, " WHERE s.epoch > 0 OR s.paused ORDER BY s.granted_at DESC NULLS FIRST LIMIT $1", most)
	var others []admin.OtherProxy
	if err == nil {
		others, err = readProxies(ctx, conn)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.known[database]
	if err != nil {
		last.failed = err
		r.known[database] = last
		return err
	}
	was := last.rows
	is := make(map[string]seen, len(rows))
	for _, row := range rows {
		next := seen{row, now, now}
		if row.StateSince != nil {
			next.since = *row.StateSince
		}
		if before, ok := was[row.Resource]; ok {
			next = next.follows(before)
		}
		is[row.Resource] = next
	}
	r.known[database] = reading{at: now, rows: is, others: others}
	return nil
}

// Forget forgets a database, which was dropped.
func (r *Reader) Forget(database string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, database)
}

// Databases returns the databases that have been read.
func (r *Reader) Databases() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.known))
}

// Proxies returns what the databases know of proxies.
func (r *Reader) Proxies() []admin.OtherProxy {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []admin.OtherProxy{}
	for database, from := range r.known {
		for _, p := range from.others {
			p.Database, p.Age = database, p.Age+time.Since(from.at).Seconds()
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b admin.OtherProxy) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Database, b.Database), a.Seen.Compare(b.Seen))
	})
	return all
}

// ReadBefore returns the databases that are known, and have not been read since a time.
func (r *Reader) ReadBefore(at time.Time) (databases []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, known := range r.known {
		if known.at.Before(at) {
			databases = append(databases, name)
		}
	}
	return databases
}

// Merge returns what is known of all resources: local, which a proxy knows by itself, in the order of
// Elections.Resources, and what the databases know of others, and of workers that are connected elsewhere.
func (r *Reader) Merge(local []status.Resource) []status.Resource {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	here := map[[2]string]bool{}
	for i := range local {
		s := &local[i]
		here[[2]string{s.Database, s.Resource}] = true
		from := r.known[s.Database]
		row, ok := from.rows[s.Resource]
		if !ok || now.Sub(from.at) > outdated {
			continue
		}
		if row.Epoch > int64(s.Record.Epoch) && (s.State == status.Absent || s.State == status.Paused) {
			s.Record = row.record() // without workers, a proxy does not read the fence
		}
		if row.Epoch != int64(s.Record.Epoch) {
			continue
		}
		s.Proxy = row.Proxy
		if len(s.Candidacies) == 0 && from.at.After(s.OrdersAsked) {
			s.Orders = row.Orders
		}
		if row.overrides(s, from.at) {
			row.stateOf(s, now, from.at)
		}
		if s.State == status.Led && s.Local || s.State.NeedsNoLeader() {
			row.wanted = now
			from.rows[s.Resource] = row
		}
		row.prolong(s, now)
	}
	all := local
	for _, from := range r.known {
		for _, row := range from.rows {
			if here[[2]string{row.Database, row.Resource}] {
				continue
			}
			s := status.Resource{
				Database: row.Database, Resource: row.Resource, Proxy: row.Proxy, Orders: row.Orders,
				Record: row.record(),
			}
			row.stateOf(&s, now, from.at)
			if age := now.Sub(from.at); age > outdated {
				s.State, s.StateSince, s.Reason, s.Leaderless = status.Unknown, from.at, from.unknown(), age
			}
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b status.Resource) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

// overrides reports whether the database, as read at a time, knows the state of a resource better than its proxy.
func (r seen) overrides(s *status.Resource, at time.Time) bool {
	newer := at.After(s.OrdersAsked) // whoever has asked later knows better of a pause
	switch s.State {
	case status.Led:
		// The worker of the recorded epoch has its lease again, but its proxy keeps on saying that it does not lead.
		return !s.Local && !r.Uncertain && r.State.LacksLeader() && at.Sub(r.since) >= doubted && at.Sub(s.StateSince) >= doubted
	case status.Paused:
		return r.State != status.Paused && len(s.Candidacies) == 0 && newer
	case status.Absent, status.Idle:
		// Workers at other proxies may want to lead. One that has just left may still be recorded as the leader.
		return r.State != status.Led && r.State != status.Absent && (r.State != status.Paused || newer)
	}
	return false
}

// record is the grant that the database knows.
func (r seen) record() fencing.Record {
	record := fencing.Record{Epoch: fencing.Epoch(r.Epoch), Worker: r.Worker, Guards: r.Guards}
	if r.GrantedAt != nil {
		record.GrantedAt = *r.GrantedAt
	}
	return record
}

// stateOf gives s the state that the database knew at a time.
func (r seen) stateOf(s *status.Resource, now, at time.Time) {
	s.State, s.StateSince, s.Reason, s.Leaderless, s.AsOf = r.State, r.since, nil, 0, at
	if r.Uncertain {
		s.State, s.Reason = status.Unknown, status.ErrUncertainGrant
	}
	if r.wants() {
		s.Leaderless = max(now.Sub(r.wanted), time.Millisecond)
	}
}

// prolong makes s count from when nobody was known to lead, if the database has shown that before. A proxy sees only
// that the worker of the recorded epoch has its lease again, which begins no lead while its grant is blocked.
func (r seen) prolong(s *status.Resource, now time.Time) {
	if !s.State.LacksLeader() || !r.wants() || now.Sub(r.wanted) <= s.Leaderless {
		return
	}
	s.Leaderless = now.Sub(r.wanted)
	if (s.State == status.Electing || s.State == status.Blocked) && r.wanted.Before(s.StateSince) {
		s.StateSince = r.wanted
	}
}

// wants reports whether somebody should lead, and nobody is known to.
func (r seen) wants() bool { return r.Uncertain || r.State.LacksLeader() }
