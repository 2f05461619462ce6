package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestARegisteredSessionIsRelayed: nothing of Fencepost's is in the stream of a leader, from BEGIN to COMMIT, and in
// the texts and statements that the server shows. SHOW of Fencepost's own parameters is answered in between.
func TestARegisteredSessionIsRelayed(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	c := s.Leader("w")
	for _, sql := range []string{"begin", "select 1", "show fencepost.role", "select count(*) from pg_prepared_statements", "commit", "show fencepost.epoch", "select 2"} {
		all := fixture.MustPass(t, c, Q(sql))
		want := map[string]string{"select 1": "1", "show fencepost.role": "leader", "select count(*) from pg_prepared_statements": "0", "show fencepost.epoch": "1", "select 2": "2"}[sql]
		if got := column(all); want != "" && got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
	if n := s.Number("select count(*) from fencepost.running"); n != 1 {
		t.Errorf("%d backends are registered, want 1", n)
	}
	_ = c.Close()
	s.Connect("w")
	s.Grant("next")
	if n := s.Number("select count(*) from fencepost.running"); n != 0 {
		t.Errorf("%d backends are registered after the grant, want none", n)
	}
}

// TestALapsedSessionIsUnregistered: while the lease is not confirmed, what a client begins is not registered, so that no grant
// waits for it. The backend is registered again when the lease is confirmed.
func TestALapsedSessionIsUnregistered(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	c := s.Leader("w")
	fixture.MustPass(t, c, Q(mine))
	candidacy := s.Candidacy(s.DB, "r", "w")
	led := *candidacy.Status()
	lapsed := led
	lapsed.Role, lapsed.Lapsed = fencing.Follower, true
	for _, block := range []bool{false, true} {
		candidacy.SetStatus(&lapsed)
		if block {
			fixture.MustPass(t, c, Q("begin"))
		}
		fixture.MustPass(t, c, Q("select count(*) from t"))
		if n := s.Number("select count(*) from fencepost.running"); n != 0 {
			t.Errorf("in a block %t: %d backends are registered, want none", block, n)
		}
		fixture.MustFail(t, c, "ZF002", Q(mine))
		candidacy.SetStatus(&led)
		if block {
			fixture.MustPass(t, c, Q("rollback"))
		}
		fixture.MustPass(t, c, Q(mine))
		if n := s.Number("select count(*) from fencepost.running"); n != 1 {
			t.Errorf("in a block %t: %d backends are registered behind the lapse, want 1", block, n)
		}
	}
	if s.Rows("mine") != 3 {
		t.Errorf("%d rows, want 3", s.Rows("mine"))
	}
}

// TestADeletionThatIsNotConfirmedEndsNoOne: the deletion of an entry waits for a lock, and is given up by the proxy. The
// session is not registered then, but can be registered again. The deletion that happens later leaves the newer entry
// alone, so that a grant ends the backend.
func TestADeletionThatIsNotConfirmedEndsNoOne(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	c := s.Leader("w")
	fixture.MustPass(t, c, Q(mine))
	candidacy := s.Candidacy(s.DB, "r", "w")
	led := *candidacy.Status()
	lapsed := led
	lapsed.Role, lapsed.Lapsed = fencing.Follower, true
	locks, err := s.PG.Connect(t, pgtest.Superuser, s.DB).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Exec(t.Context(), "select from fencepost.running for update"); err != nil {
		t.Fatal(err)
	}
	candidacy.SetStatus(&lapsed)
	fixture.MustPass(t, c, Q("select count(*) from t"))
	fixture.MustFail(t, c, "ZF002", Q(mine))
	candidacy.SetStatus(&led)
	fixture.MustPass(t, c, Q(mine))
	if err := locks.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the deletion to end", func() bool {
		return s.Number("select count(*) from pg_stat_activity where datname = current_database() and usename = 'fencepost' and state = 'active'") == 0
	})
	fixture.MustPass(t, c, Q(mine))
	s.Supersede()
	fixture.MustEnd(t, c, "ZF001", Q(stale))
	if s.Rows("mine") != 3 || s.Rows("stale") != 0 || s.Number("select count(*) from fencepost.running") != 0 {
		t.Errorf("%d rows of the leader and %d stale ones, %d backends are registered; want 3, 0, 0", s.Rows("mine"), s.Rows("stale"), s.Number("select count(*) from fencepost.running"))
	}
}

// TestNothingIsPreparedUnseen: texts that Postgres reads otherwise than one who does not know its lexer, its settings at that
// moment, or what it skips.
func TestNothingIsPreparedUnseen(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	s.Exec(`create table refuses (n int); create function refuse() returns trigger language plpgsql as 'begin raise exception ''refused''; end';
		create trigger refuses before insert on refuses for each statement execute function refuse()`)
	const (
		off  = "set standard_conforming_strings = off"
		read = `select '\', $$ '; prepare transaction 'unseen'; select '\$$ --'` // a string with $$ in it, or two and a command
		slow = "do $$begin for i in 1..3000 loop execute format('create table a%s (a int primary key, b text)', i); end loop; raise exception 'slow'; end$$"
	)
	begin := "begin; " + stale
	for name, c := range map[string]struct{ first, then [][]byte }{
		"nested comments":                           {[][]byte{Q(off), Q(begin)}, [][]byte{Q(`prepare /*/**/*/ transaction 'unseen' /* \ */`)}},
		"a line that CR ends":                       {[][]byte{Q(off), Q(begin)}, [][]byte{Q("prepare --x\rtransaction 'unseen' /* \\ */")}},
		"nested, in a long text":                    {[][]byte{Q(begin)}, [][]byte{Q("prepare /*/**/*/ transaction 'unseen' -- " + long)}},
		"settings in front of it, not answered yet": {nil, [][]byte{Q(off + "; " + begin), Q(read)}},
		"settings that a ROLLBACK undoes":           {[][]byte{Q(off), Q("begin; set standard_conforming_strings = on")}, [][]byte{Q("rollback"), Q(begin), Q(read)}},
		"settings in the same batch":                {nil, [][]byte{Batch(Run(begin[:5]), Run(stale), Run(off), Run(`prepare transaction 'unseen' /* \ */`))}},
		"after a COPY that fails before its data":   {nil, [][]byte{Q("copy refuses from stdin"), Q(slow), wiretest.Parse("", "select 1")}},
	} {
		c1 := s.Leader("w")
		for _, m := range c.first {
			fixture.MustPass(t, c1, m)
		}
		c1.Send(c.then...)
		if strings.HasPrefix(name, "after a COPY") {
			for c1.Until('E'); wiretest.ErrorOf(c1.Until('E')) != "P0001"; { // of the COPY, and of what follows it
			}
			c1.Send(Q(begin + "; prepare transaction 'unseen'"))
		}
		c1.Send(wiretest.Terminate())
		c1.Rest()
		if n := s.Number("select count(*) from pg_prepared_xacts where database = current_database()"); n != 0 {
			t.Errorf("%s: a transaction was prepared", name)
			s.Exec("rollback prepared 'unseen'")
		}
		s.Exec("drop table if exists a1")
	}
	// A text that only mentions it is no command.
	c := s.Leader("w")
	fixture.MustPass(t, c, Q(`insert into t (v) values ('é prepare transaction \')`))
}

// TestNothingIsPreparedAfterAFailedBatch: the error of a batch has come, and its ReadyForQuery has not, when the
// client sends a batch that prepares its transaction. The server does not skip that one.
func TestNothingIsPreparedAfterAFailedBatch(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	c := s.Leader("w")
	fixture.MustPass(t, c, Q("select 1"))
	// It takes long to abort, between the error and ReadyForQuery.
	const slow = "do $$begin for i in 1..3000 loop execute format('create table a%s (a int primary key, b text)', i); end loop; raise exception 'slow'; end$$"
	for _, third := range []string{"prepare transaction 'behind'", "show fencepost.role"} {
		c.Send(Batch(Run(slow)))
		c.Until('E')
		c.Send(Batch(Run("begin"), Run(stale), Run(third)))
		c.Until('Z')
		if got := wiretest.ErrorOf(c.Until('Z')); third[0] == 'p' && got != "ZF005" || third[0] == 's' && got != "" {
			t.Errorf("%s: error %q", third, got)
		}
		fixture.Ask(c, Q("rollback"))
	}
	s.Supersede()
	if n := s.Number("select count(*) from pg_prepared_xacts where database = current_database()"); n != 0 {
		s.Exec("commit prepared 'behind'")
	}
	if s.Rows("stale") != 0 {
		t.Error("a row of the old epoch was committed behind the grant")
	}
}
