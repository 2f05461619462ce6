package rejections

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// recording is a Table in front of a database.
type recording struct {
	*Table
	t        *testing.T
	s        *pgtest.Server
	db       string
	log      *observer.ObservedLogs
	settings atomic.Pointer[Settings]
	visits   atomic.Int64
	address  string // of the server that is taken for the primary

	lost struct {
		sync.Mutex
		by map[Reason]int64
	}
}

func newRecording(t *testing.T, s *pgtest.Server, db string) *recording {
	t.Helper()
	core, log := observer.New(zap.DebugLevel)
	r := &recording{t: t, s: s, db: db, log: log}
	if s != nil {
		r.address = s.Addr()
	}
	r.lost.by = map[Reason]int64{}
	r.settings.Store(&Settings{Record: true, Keep: 24 * time.Hour})
	r.Table = New(Config{
		Settings: func() Settings { return *r.settings.Load() },
		Connect: func(ctx context.Context, database string, do func(*pgx.Conn) error) error {
			r.visits.Add(1)
			return store.Look(ctx, store.Config{Address: r.address, Database: database, User: pgtest.Control}, do)
		},
		Gone: store.Gone,
		Open: func() []string { return []string{db} },
		Unrecorded: func(why Reason, n int64) {
			r.lost.Lock()
			defer r.lost.Unlock()
			r.lost.by[why] += n
		},
		Log: zap.New(core),
	})
	return r
}

// refuse has n statements refused.
func (r *recording) refuse(n int, change func(*fencing.Rejection)) {
	for range n {
		refused := fencing.Rejection{
			Time: time.Now(), Proxy: "p", Database: r.db, User: "app", Client: "c", Resource: "billing", Worker: "w", Write: true,
			SQLState: fencing.StateNotLeader, Kind: fencing.KindNotLeader, Finding: fencing.Finding{Current: 2, Holder: "v"},
		}
		if change != nil {
			change(&refused)
		}
		r.Record(refused, sqltext.Audit{Statement: "DELETE FROM t", Fingerprint: "f"})
	}
}

// visit visits each database for which there is something to do, also one that has just failed.
func (r *recording) visit() {
	r.mu.Lock()
	for _, d := range r.known {
		d.again = time.Time{}
	}
	r.mu.Unlock()
	r.visitAll(context.Background())
}

func (r *recording) ask(sql string, args ...any) int64 {
	r.t.Helper()
	return pgtest.Ask[int64](r.t, r.s, r.db, sql, args...)
}

// recorded returns how many rejections the table counts.
func (r *recording) recorded() int64 {
	r.t.Helper()
	return r.ask("SELECT coalesce(sum(count), 0)::bigint FROM fencepost.rejections")
}

func (r *recording) unrecorded(why Reason) int64 {
	r.lost.Lock()
	defer r.lost.Unlock()
	return r.lost.by[why]
}

func (r *recording) messages() (all []string) {
	for _, l := range r.log.All() {
		all = append(all, l.Message)
	}
	return all
}

func (r *recording) wantLog(want ...string) {
	r.t.Helper()
	if got := r.messages(); fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Errorf("the log has %q, want %q", got, want)
	}
}

const (
	begun = "refusals are not recorded in the database"
	over  = begun + " (over)"
)

// TestSeveralProxiesAddToTheSameRows, at the same time, with the same statements in another order.
func TestSeveralProxiesAddToTheSameRows(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	const proxies, batches, workers = 4, 10, 12
	minute := time.Now()
	var all sync.WaitGroup
	for range proxies {
		r := newRecording(t, s, db)
		all.Go(func() {
			for range batches {
				for w := range workers {
					r.refuse(1, func(x *fencing.Rejection) { x.Time, x.Worker = minute, fmt.Sprint("w", w) })
				}
				r.visit()
			}
			r.wantLog()
		})
	}
	all.Wait()
	r := newRecording(t, s, db)
	if rows, count := r.ask("SELECT count(*) FROM fencepost.rejections"), r.recorded(); rows != workers || count != proxies*batches*workers {
		t.Errorf("%d rows count %d rejections, want %d and %d", rows, count, workers, proxies*batches*workers)
	}
	if n := r.ask(`SELECT count(*) FROM fencepost.rejections WHERE database = current_database() AND resource = 'billing' AND kind = 'not_leader' AND write
		AND sqlstate = 'ZF002' AND fingerprint = 'f' AND first_at = last_at AND current_epoch = 2 AND current_worker = 'v' AND login_role = 'app'
		AND client = 'c' AND proxy = 'p' AND statement = 'DELETE FROM t' AND minute = date_trunc('minute', first_at)`); n != workers {
		t.Errorf("%d rows say what was refused, want %d", n, workers)
	}
}

// TestEachRoleHasRowsOfItsOwn: a role that uses the id of another worker is not counted as that
// worker's role, in one batch and in several.
func TestEachRoleHasRowsOfItsOwn(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := newRecording(t, s, s.Database(t))
	minute := time.Now()
	for _, user := range []string{"app", "intern", "intern"} {
		r.refuse(1, func(x *fencing.Rejection) { x.Time, x.User = minute, user })
	}
	r.visit()
	r.refuse(1, func(x *fencing.Rejection) { x.Time, x.User = minute, "app" })
	r.visit()
	r.wantLog()
	if n := r.ask("SELECT count(*) FROM fencepost.rejections WHERE worker = 'w' AND login_role IN ('app', 'intern') AND count = 2"); n != 2 {
		t.Errorf("%d rows count two refusals of one role, want 2", n)
	}
}

// TestALockedTableDelaysNoOne: what is refused meanwhile is recorded later, once, and the log has a
// line when it begins and one when it ends.
func TestALockedTableDelaysNoOne(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := newRecording(t, s, s.Database(t))
	other := newRecording(t, s, s.Database(t))
	locking := s.Connect(t, pgtest.Superuser, r.db)
	if _, err := locking.Exec(t.Context(), "BEGIN; LOCK TABLE fencepost.rejections"); err != nil {
		t.Fatal(err)
	}
	r.refuse(5, nil)
	r.refuse(3, func(x *fencing.Rejection) { x.Database = other.db })
	r.ask("SELECT 1") // connects, for what is asked while the visit waits
	visited := make(chan struct{})
	go func() {
		defer close(visited)
		r.visit()
	}()
	for r.ask("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 0 {
		select {
		case <-visited:
			t.Fatal("the visit did not wait for the lock")
		case <-time.After(10 * time.Millisecond):
		}
	}
	began, watch := time.Now(), stopwatch.Start(t)
	r.refuse(1000, nil)
	if took := time.Since(began); watch.Late(t, took, time.Second) {
		t.Errorf("1000 refusals took %s while the table was locked", took)
	}
	<-visited
	if n := other.recorded(); n != 3 {
		t.Errorf("the other database counts %d, want 3", n)
	}
	r.visit()
	r.wantLog(begun)
	if _, err := locking.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	r.visit()
	r.visit()
	r.wantLog(begun, over)
	if n := r.recorded(); n != 1005 || len(r.lost.by) > 0 {
		t.Errorf("%d are recorded, want 1005; lost: %v", n, r.lost.by)
	}
}

// TestWithoutTheTable: the proxy says once what to do, and holds nothing back for later.
func TestWithoutTheTable(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := newRecording(t, s, s.Database(t))
	s.Exec(t, pgtest.Control, r.db, "ALTER TABLE fencepost.rejections RENAME TO later")
	for range 3 {
		r.refuse(2, nil)
		r.visit()
	}
	r.wantLog(begun)
	if n := r.unrecorded(NoTable); n != 6 {
		t.Errorf("%d are counted as without a table, want 6", n)
	}
	if fields := fmt.Sprint(r.log.All()[0].ContextMap()); !strings.Contains(fields, "fencepost migrate") || !strings.Contains(fields, "no table fencepost.rejections") || !strings.Contains(fields, r.db) {
		t.Errorf("the line does not say what to do: %s", fields)
	}
	s.Exec(t, pgtest.Control, r.db, "ALTER TABLE fencepost.later RENAME TO rejections")
	r.refuse(4, nil)
	r.visit()
	r.wantLog(begun, over)
	if n := r.recorded(); n != 4 {
		t.Errorf("afterwards %d are recorded, want 4", n)
	}
}

// TestADatabaseThatIsAwayOrReadOnly is tried again, and gets everything once.
func TestADatabaseThatIsAwayOrReadOnly(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithTools(t))
	db := s.Database(t)
	standby := s.Standby(t)
	for name, address := range map[string]string{"away": "127.0.0.1:1", "read-only": standby.Addr()} {
		t.Run(name, func(t *testing.T) {
			r := newRecording(t, s, db)
			before := r.recorded()
			r.address = address
			for range 3 {
				r.refuse(2, nil)
				r.visit()
			}
			r.wantLog(begun)
			r.address = s.Addr()
			r.visit()
			r.wantLog(begun, over)
			if n := r.recorded() - before; n != 6 || len(r.lost.by) > 0 {
				t.Errorf("%d are recorded, want 6; lost: %v", n, r.lost.by)
			}
		})
	}
}

// TestADatabaseThatIsGone leaves nothing behind.
func TestADatabaseThatIsGone(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := newRecording(t, s, s.Database(t))
	r.refuse(2, func(x *fencing.Rejection) { x.Database = "nowhere" })
	r.visit()
	r.wantLog()
	if n := r.unrecorded(NoTable); n != 2 || len(r.pending.databases()) > 0 || r.known["nowhere"] != nil {
		t.Errorf("%d are counted as without a table, want 2; left: %v, %v", n, r.pending.databases(), r.known)
	}
}

// TestOldRowsAreDeletedOnceAnHour, in parts, by one proxy at a time, also where nothing is refused.
func TestOldRowsAreDeletedOnceAnHour(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	const old = 12000
	fill := `INSERT INTO fencepost.rejections SELECT now() - age - i * interval '1 s', current_database(), 'billing', 'w', 'stale', true, 'ZF001', 'f', 1,
		now(), now(), 1, 2, 'v', 'app', 'c', 'p', 's' FROM generate_series(1, %d) i, (VALUES (interval '%s')) a (age)`
	s.Exec(t, pgtest.Control, db, fmt.Sprintf(fill, old, "24 hours"), fmt.Sprintf(fill, 10, "23 hours"))
	r := newRecording(t, s, db)
	other := s.Connect(t, pgtest.Control, db)
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock(7378424937916492389)"); err != nil {
		t.Fatal(err)
	}
	r.visit()
	if n := r.recorded(); n != old+10 {
		t.Fatalf("another proxy is about it, and %d rows are left of %d", n, old+10)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.visit()
	if visits := r.visits.Load(); visits != 1 {
		t.Fatalf("%d visits within the hour", visits)
	}
	for _, keep := range []time.Duration{0, 48 * time.Hour, 24 * time.Hour} {
		if n := r.recorded(); n != old+10 {
			t.Fatalf("%d rows are left of %d", n, old+10)
		}
		r.settings.Store(&Settings{Record: true, Keep: keep})
		r.known[db].prune = time.Time{} // an hour later
		r.visit()
	}
	if n := r.recorded(); n != 10 {
		t.Errorf("%d rows are left, want the 10 that are not old", n)
	}
	r.wantLog()
}

// TestOnlyWhatIsWantedIsRecorded: nothing without audit.table, and nothing that ran in shadow.
func TestOnlyWhatIsWantedIsRecorded(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := newRecording(t, s, s.Database(t))
	r.refuse(1, func(x *fencing.Rejection) { x.Shadow = true })
	r.refuse(2, func(x *fencing.Rejection) { x.Kind = fencing.KindDiscarded })
	r.settings.Store(&Settings{Keep: time.Hour})
	r.refuse(4, nil)
	r.visit()
	if n, discarded := r.recorded(), r.ask("SELECT sum(count)::bigint FROM fencepost.rejections WHERE kind = 'discarded'"); n != 2 || discarded != 2 {
		t.Errorf("%d are recorded, %d of them as discarded; want the 2 that were discarded", n, discarded)
	}
	if visits := r.visits.Load(); visits != 1 {
		t.Errorf("%d visits, want one: nothing is deleted without audit.table", visits)
	}
}

// TestCloseWritesTheRest, and gives up in time, with a line and a count, where it cannot.
func TestCloseWritesTheRest(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, locked := range map[string]bool{"free": false, "locked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecording(t, s, s.Database(t))
			if locked {
				if _, err := s.Connect(t, pgtest.Superuser, r.db).Exec(t.Context(), "BEGIN; LOCK TABLE fencepost.rejections IN SHARE MODE"); err != nil {
					t.Fatal(err)
				}
			}
			ran := make(chan struct{})
			go func() {
				defer close(ran)
				r.run(context.Background(), time.Hour)
			}()
			r.refuse(7, nil)
			patience := time.Minute
			if locked {
				patience = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r.Close(ctx)
			<-ran
			recorded, lost := int64(7), int64(0)
			if locked {
				recorded, lost = 0, 7
				r.wantLog("the last refusals are in the audit log only, because their database did not take them")
			} else {
				r.wantLog()
			}
			if n := r.recorded(); n != recorded || r.unrecorded(Ended) != lost {
				t.Errorf("%d are recorded and %d are not, want %d and %d", n, r.unrecorded(Ended), recorded, lost)
			}
		})
	}
}

// TestRunWritesByItself within its interval.
func TestRunWritesByItself(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := newRecording(t, s, s.Database(t))
	go r.run(context.Background(), 10*time.Millisecond)
	defer r.Close(t.Context())
	r.refuse(2, nil)
	for deadline := time.Now().Add(30 * time.Second); r.recorded() != 2; {
		if time.Now().After(deadline) {
			t.Fatal("nothing was recorded")
		}
	}
}

// TestADatabaseThatFailsIsTriedLessOften, up to a limit, and as ever when it works again.
func TestADatabaseThatFailsIsTriedLessOften(t *testing.T) {
	t.Parallel()
	var d database
	var pauses []time.Duration
	for range 8 {
		d.visited(start, true, context.DeadlineExceeded)
		pauses = append(pauses, d.again.Sub(start))
	}
	if want := "[10s 20s 40s 1m20s 2m40s 5m0s 5m0s 5m0s]"; fmt.Sprint(pauses) != want || !d.prune.IsZero() {
		t.Errorf("it is tried again after %v, want %v; old rows are deleted next at %v", pauses, want, d.prune)
	}
	d.visited(start, true, nil)
	if !d.again.IsZero() || d.pause != 0 || !d.prune.Equal(start.Add(time.Hour)) {
		t.Errorf("when it works again: %+v", d)
	}
	r := newRecording(t, nil, "d")
	r.known["d"] = &database{again: start.Add(time.Minute)}
	r.refuse(1, nil)
	if due := r.due(start); len(due) != 0 {
		t.Errorf("due in the pause: %v", due)
	}
	if due := r.due(start.Add(time.Minute)); len(due) != 1 || !due["d"] {
		t.Errorf("due after it: %v", due)
	}
	r.end()
	if due := r.due(start); len(due) != 1 || due["d"] {
		t.Errorf("due at the end: %v", due)
	}
}
