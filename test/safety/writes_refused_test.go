package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyTwoPhaseIsRefusedForEveryone: who leads, who does not, and who names no resource cannot prepare a transaction. Only a
// leader can end one that somebody prepared elsewhere, whatever its name.
func TestSafetyTwoPhaseIsRefusedForEveryone(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		s.Exec("grant all on t to app; begin; set local role app; insert into t (v) values ('elsewhere'); prepare transaction 'elsewhere" + s.DB + "'")
		t.Cleanup(func() { pg.Exec(t, pgtest.Superuser, s.DB, "rollback prepared 'elsewhere"+s.DB+"'") })
		leader := s.Leader("leader")
		reader, _ := wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB)
		for who, c := range map[string]*wiretest.Conn{"leader": leader, "follower": s.Connect("follower"), "without a resource": reader} {
			for _, sql := range []string{
				"prepare transaction 'x'", "commit prepared 'elsewhere{db}'", "rollback prepared 'elsewhere{db}'", "PREPARE/**/TRANSACTION 'x'", "commit /* ; */ prepared 'elsewhere{db}'",
				"rollback -- x\n prepared 'elsewhere{db}'", `prepare transaction E'\x78'`,
			} {
				state := "ZF005"
				if strings.Contains(sql, " prepared ") {
					state = "ZF002"
				}
				if who == "leader" && state == "ZF002" {
					continue
				}
				sql = strings.ReplaceAll(sql, "{db}", s.DB)
				fixture.MustFail(t, c, state, Q(sql))
				fixture.MustFail(t, c, state, Run(sql), Sync())
				fixture.MustFail(t, c, state, Parse("s", sql), Sync())
				fixture.MustFail(t, c, state, Q("begin; "+sql))
				fixture.MustPass(t, c, Q("rollback"))
			}
			if n := s.Number("select count(*) from pg_prepared_xacts where database = current_database()"); n != 1 {
				t.Fatalf("%s: %d transactions are prepared, want the one of the administrator", who, n)
			}
		}
		s.Exec("begin; set local role app; prepare transaction 'fencepost " + s.DB + "'")
		fixture.MustPass(t, leader, Q("commit prepared 'fencepost "+s.DB+"'"))
		// Space that only newer versions know, in a text that is not read.
		fixture.Ask(leader, Q("begin; insert into t (v) values ('stale'); prepare\vtransaction 'x' -- "+long))
		fixture.Ask(leader, Q("rollback"))
		if n := s.Number("select count(*) from pg_prepared_xacts where database = current_database()"); n != 1 {
			s.Exec("rollback prepared 'x'")
			t.Error("a transaction was prepared behind a vertical tab")
		}
	})
}

// TestReplicationIsRefusedForEveryone: also for a user who may write unfenced.
func TestReplicationIsRefusedForEveryone(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for _, user := range []string{pgtest.App, pgtest.Superuser} {
		for _, value := range []string{"true", "database"} {
			c := wiretest.Dial(t, s.Addr)
			c.Send(wiretest.Startup("user", user, "database", s.DB, "replication", value))
			if f := fixture.FatalError(t, c.Rest()); f['C'] != "ZF005" {
				t.Errorf("%s with replication=%s: %v, want ZF005", user, value, f)
			}
		}
		c, _ := wiretest.Connect(t, s.Addr, "user", user, "database", s.DB, "replication", "off")
		fixture.MustPass(t, c, Q("select 1"))
	}
}

// TestWhatDependsOnTemporaryObjectsGoesWithThem: the temporary objects of a superseded session are gone when
// the grant returns, with what depends on them.
func TestWhatDependsOnTemporaryObjectsGoesWithThem(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	s.Exec("alter table c owner to app")
	columns := func() int {
		return s.Number("select count(*) from pg_attribute where attrelid = 'c'::regclass and attname = 'x' and not attisdropped")
	}
	c := s.Leader("w")
	fixture.MustPass(t, c, Q("create domain pg_temp.dt as text"))
	fixture.MustPass(t, c, Q("alter table c add x pg_temp.dt"))
	if columns() != 1 {
		t.Fatal("no column")
	}
	s.Supersede()
	if columns() != 0 {
		t.Error("the column is there after the grant")
	}
}
