//go:build linux && !fencepost_plainnet

package connection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// upgraded are proxies of which each takes the sessions of the one before, in front of one database. Worker w leads
// resource r through the first one.
type upgraded struct {
	t       *testing.T
	db      string
	proxies []*fixture.Proxy
	first   *fixture.FakeCandidacy
}

func newUpgraded(t *testing.T, n int) *upgraded {
	t.Helper()
	pg := pgtest.Shared(t)
	u := &upgraded{t: t, db: pg.Database(t)}
	for range n {
		u.proxies = append(u.proxies, fixture.NewProxy(t, pg, allowed))
	}
	u.first = u.proxies[0].Elector.Enter(u.db, "r", "w")
	u.first.Grant()
	pg.Exec(t, pgtest.App, u.db, "create table t (client int, n int)")
	return u
}

// connect connects the worker through a proxy.
func (u *upgraded) connect(to *fixture.Proxy) *wiretest.Conn {
	u.t.Helper()
	c, _ := wiretest.Connect(u.t, to.Addr, "user", pgtest.App, "database", u.db, "fencepost.resource", "r", "fencepost.worker", "w")
	return c
}

func (u *upgraded) connectMany(n int) (all []*wiretest.Conn) {
	u.t.Helper()
	for range n {
		all = append(all, u.connect(u.proxies[0]))
	}
	return all
}

// entries are those of the registry.
func (u *upgraded) entries() string {
	u.t.Helper()
	return pgtest.Ask[string](u.t, u.proxies[0].PG, u.db, "select coalesce(string_agg(pid || ' ' || epoch || ' ' || note, ', ' order by note), '') from fencepost.running")
}

// TestTheSessionsOfALeaderArePassedOnTogether, when all are at rest, and until then they work where they are. The new
// process serves them under the same epoch and the same entries, and whatever supersedes their worker ends them there.
func TestTheSessionsOfALeaderArePassedOnTogether(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprintf("told_%t", told), func(t *testing.T) {
			t.Parallel()
			u := newUpgraded(t, 3)
			conns := u.connectMany(4)
			unfenced, _ := wiretest.Connect(t, u.proxies[0].Addr, "user", pgtest.App, "database", u.db)
			entries := u.entries()
			for i, c := range conns {
				fixture.MustExec(t, c, fmt.Sprintf("create temp table kept as select %d as n", i))
			}
			fixture.MustExec(t, conns[0], "set default_transaction_isolation = 'serializable'")
			for round, next := range u.proxies[1:] {
				before := u.proxies[round]
				fixture.MustExec(t, conns[1], "begin")
				fixture.MustExec(t, conns[1], "insert into t values (1, 1)")
				end := passOn(t, before, passTo(next))
				fixture.Eventually(t, "the unfenced session to be passed on", func() bool { return next.Server.Clients() > 0 })
				for range 3 {
					for i, c := range []*wiretest.Conn{conns[0], conns[2], conns[3]} {
						fixture.MustExec(t, c, fmt.Sprintf("insert into t values (%d, 0)", i))
					}
				}
				if n := next.Server.Clients(); n != 1 {
					t.Errorf("%d sessions are passed on while one is in a transaction", n-1)
				}
				fixture.MustExec(t, conns[1], "commit")
				end()
				if n := next.Server.Clients(); n != 5 {
					t.Fatalf("%d sessions were passed on", n)
				}
				now := next.Elector.Candidacy(u.db, "r", "w")
				if now.Members() != 4 || u.first.Members() != 0 || now.Incarnation() != u.first.Incarnation() || u.entries() != entries {
					t.Errorf("%d and %d members, of %s and %s, with these entries: %s, before: %s",
						now.Members(), u.first.Members(), now.Incarnation(), u.first.Incarnation(), u.entries(), entries)
				}
				for i, c := range conns {
					for show, want := range map[string]string{"fencepost.role": "leader", "fencepost.epoch": "1", "fencepost.worker": "w"} {
						if got := fixture.FirstValue(t, c.Exec("show "+show)); got != want {
							t.Errorf("%s is %s", show, got)
						}
					}
					if got := fixture.FirstValue(t, c.Exec("select n from kept")); got != fmt.Sprint(i) {
						t.Errorf("connection %d has %s", i, got)
					}
					fixture.MustExec(t, c, "insert into t values (9, 9)")
				}
				u.first = now
			}
			by := u.proxies[2] // whose elector notifies its sessions
			if !told {
				by = u.proxies[0]
			}
			by.Elector.Enter(u.db, "r", "other").Grant()
			for _, c := range conns {
				c.Send(Q("insert into t values (66, 66)"))
				if f := fixture.FatalError(t, c.Rest()); f['C'] != fencing.StateSuperseded {
					t.Errorf("the client of a superseded worker gets %v", f)
				}
			}
			fixture.MustExec(t, unfenced, "select 1")
			if n := pgtest.Ask[int](t, by.PG, u.db, "select count(*) from t where n = 66"); n != 0 {
				t.Errorf("%d stale writes were committed", n)
			}
			if n := pgtest.Ask[int](t, by.PG, u.db, "select count(*) from t"); n != 2*(1+9+4) {
				t.Errorf("the table has %d rows", n)
			}
		})
	}
}

// TestTheEntryOfASessionThatWasPassedOnIsLost: no grant would end its backend any more, so the new process ends it.
func TestTheEntryOfASessionThatWasPassedOnIsLost(t *testing.T) {
	t.Parallel()
	u := newUpgraded(t, 2)
	c := u.connect(u.proxies[0])
	passOn(t, u.proxies[0], passTo(u.proxies[1]))()
	u.proxies[0].PG.Exec(t, pgtest.Superuser, u.db, "delete from fencepost.running")
	if f := fixture.FatalError(t, c.Rest()); f['C'] != fencing.LostRegistrationRefusal.SQLState {
		t.Errorf("the client gets %v", f)
	}
}

// TestALapsedLeaderThatWasPassedOn does not write, and writes again when its lease is confirmed, with its own settings.
func TestALapsedLeaderThatWasPassedOn(t *testing.T) {
	t.Parallel()
	u := newUpgraded(t, 2)
	c := u.connect(u.proxies[0])
	fixture.MustPassEach(t, c, "set default_transaction_read_only = on")
	passOn(t, u.proxies[0], passTo(u.proxies[1]))()
	now := u.proxies[1].Elector.Candidacy(u.db, "r", "w")
	leads := *now.Status()
	now.SetStatus(&fencing.Status{Epoch: leads.Epoch, Lapsed: true, Holder: leads.Holder})
	fixture.MustExec(t, c, "select 1")
	if got := wiretest.ErrorOf(c.Exec("begin read write; insert into t values (1, 1); commit")); got != fencing.StateNotLeader {
		t.Errorf("a write without a lease gets %s", got)
	}
	fixture.MustExec(t, c, "rollback")
	now.SetStatus(&leads)
	fixture.MustExec(t, c, "select 1")
	if got := fixture.FirstValue(t, c.Exec("show default_transaction_read_only")); got != "on" {
		t.Errorf("the client's default_transaction_read_only is %s", got)
	}
	fixture.MustExec(t, c, "reset default_transaction_read_only")
	fixture.MustExec(t, c, "insert into t values (1, 1)")
}

// TestWhoIsNotPassedOnWithALeader: sessions that are not registered end, and those that the new process has already
// lead there as soon as the others come.
func TestWhoIsNotPassedOnWithALeader(t *testing.T) {
	t.Parallel()
	u := newUpgraded(t, 2)
	old, next := u.proxies[0], u.proxies[1]
	registered, early := u.connect(old), u.connect(next)
	if got := fixture.FirstValue(t, early.Exec("show fencepost.role")); got != "follower" {
		t.Errorf("the worker is a %s at the new process", got)
	}
	follower, _ := wiretest.Connect(t, old.Addr, "user", pgtest.App, "database", u.db, "fencepost.resource", "r", "fencepost.worker", "f")
	observer, _ := wiretest.Connect(t, old.Addr, "user", pgtest.App, "database", u.db, "fencepost.resource", "r", "fencepost.worker", "w", "fencepost.campaign", "off")
	chooses := u.connect(old)
	fixture.MustExec(t, chooses, "set fencepost.resource = 's'")
	passOn(t, old, passTo(next))()
	for name, c := range map[string]*wiretest.Conn{"a follower": follower, "an observer": observer, "one that has chosen": chooses} {
		if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P01" {
			t.Errorf("%s gets %v", name, f)
		}
	}
	for _, c := range []*wiretest.Conn{registered, early} {
		if got := fixture.FirstValue(t, c.Exec("show fencepost.role")); got != "leader" {
			t.Errorf("the role is %s", got)
		}
		fixture.MustExec(t, c, "insert into t values (1, 1)")
	}
}

// TestALeaderIsNotPassedOnInPart: if one of its sessions, or the commit, is refused, all stay and end, and the new process
// has nothing.
func TestALeaderIsNotPassedOnInPart(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(to *passage, n int) error{
		"a session":  func(to *passage, n int) error { return nil },
		"the commit": func(to *passage, n int) error { return errors.New("it has ended") },
	} {
		t.Run(name[2:], func(t *testing.T) {
			t.Parallel()
			u := newUpgraded(t, 2)
			conns := u.connectMany(3)
			to := passTo(u.proxies[1])
			to.uncommit = func() error { return refuse(to, 0) }
			if name == "a session" {
				u.proxies[1].Server.LimitConnections(2)
			}
			end := passOn(t, u.proxies[0], to)
			for _, c := range conns {
				if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P01" {
					t.Errorf("the client gets %v", f)
				}
				_ = c.Close()
			}
			end()
			if n := u.proxies[1].Server.Clients(); n != 0 {
				t.Errorf("the new process has %d clients", n)
			}
			if st := u.proxies[1].Elector.Candidacy(u.db, "r", "w"); st.Status().Epoch != 0 || st.Members() != 0 {
				t.Errorf("its candidacy is %+v, with %d members", st.Status(), st.Members())
			}
			if !u.first.Status().CanWrite() {
				t.Error("the worker does not lead any more at the old one")
			}
		})
	}
}

// TestALeaderIsPassedOnUnderLoad from process to process, while its connections write without a pause.
func TestALeaderIsPassedOnUnderLoad(t *testing.T) {
	t.Parallel()
	u := newUpgraded(t, 4)
	var over atomic.Bool
	var rows [8]atomic.Int64
	var working sync.WaitGroup
	defer working.Wait()
	defer over.Store(true)
	for i, c := range u.connectMany(len(rows)) {
		working.Go(func() {
			for n := 0; !over.Load() && !t.Failed(); n++ {
				insert := fmt.Sprintf("insert into t values (%d, %d)", i, n)
				statements := []string{insert}
				if i%2 == 0 {
					statements = []string{"begin", insert, "commit"}
				}
				for _, s := range statements {
					if m := c.Exec(s); wiretest.ErrorOf(m) != "" {
						t.Errorf("connection %d: %s: %v", i, s, m)
						return
					}
				}
				rows[i].Add(1)
			}
		})
	}
	more := func() {
		t.Helper()
		var before [len(rows)]int64
		for i := range rows {
			before[i] = rows[i].Load()
		}
		fixture.Eventually(t, "each connection to write", func() bool {
			return t.Failed() || !slices.ContainsFunc([]int{0, 1, 2, 3, 4, 5, 6, 7}, func(i int) bool { return rows[i].Load() < before[i]+5 })
		})
	}
	more()
	for i, next := range u.proxies[1:] {
		passOn(t, u.proxies[i], passTo(next))()
		if n := next.Server.Clients(); n != len(rows) {
			t.Fatalf("%d sessions were passed on", n)
		}
		more()
	}
	over.Store(true)
	working.Wait()
	for i := range rows {
		if n := pgtest.Ask[int64](t, u.proxies[0].PG, u.db, "select count(distinct n) from t where client = $1", i); n != rows[i].Load() {
			t.Errorf("connection %d has %d rows, and has written %d", i, n, rows[i].Load())
		}
	}
}

// TestPassingIsCounted: sessions count once, as passed on although they were refused at first, or as ended.
func TestPassingIsCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refused int   // how often the commit fails
		broken  error // that is why
		open    bool
		want    proxy.Passed
	}{
		"refused at first": {refused: 1, want: proxy.Passed{Sessions: 3}},
		"broken at first":  {refused: 1, broken: errors.New("not now"), want: proxy.Passed{Ended: 3, Why: errors.New("not now")}},
		"refused":          {refused: 9, want: proxy.Passed{Ended: 3, Why: errors.New("not now")}},
		"never at rest":    {open: true, want: proxy.Passed{Ended: 3, Why: errors.New("the sessions of a leader were not all outside a transaction at the same time")}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			u := newUpgraded(t, 2)
			conns := u.connectMany(3)
			if c.open {
				fixture.MustExec(t, conns[0], "begin")
			}
			to := passTo(u.proxies[1])
			to.uncommit = func() error {
				if c.refused--; c.refused >= 0 {
					to.broken = c.broken
					return errors.New("not now")
				}
				return nil
			}
			patience := fixture.Patience
			if c.open {
				patience = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if got, err := u.proxies[0].Server.PassOn(ctx, to); fmt.Sprint(got) != fmt.Sprint(c.want) || (err != nil) != c.open {
				t.Errorf("%v, %v, want %v", got, err, c.want)
			}
		})
	}
}
