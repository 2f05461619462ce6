package proxy_test

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestSafetyTwoPhaseIsRefusedForEveryone: who leads, who does not, who was
// superseded, and who names no resource can neither prepare a transaction nor
// end one that somebody prepared elsewhere.
func TestSafetyTwoPhaseIsRefusedForEveryone(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		s := newStage(t, pg)
		s.exec("grant all on t to app; begin; set local role app; insert into t (v) values ('elsewhere'); prepare transaction 'elsewhere" + s.db + "'")
		t.Cleanup(func() { pg.Exec(t, pgtest.Superuser, s.db, "rollback prepared 'elsewhere"+s.db+"'") })
		superseded := s.leads("before")
		leader := s.leads("leader")
		reader, _ := wiretest.Connect(t, s.addr, "user", pgtest.App, "database", s.db)
		for who, c := range map[string]*wiretest.Conn{"leader": leader, "follower": s.connect("follower"), "superseded": superseded, "without a resource": reader} {
			for _, sql := range []string{
				"prepare transaction 'x'", "commit prepared 'elsewhere{db}'", "rollback prepared 'elsewhere{db}'", "PREPARE/**/TRANSACTION 'x'", "commit /* ; */ prepared 'elsewhere{db}'",
				"rollback -- x\n prepared 'elsewhere{db}'", `prepare transaction E'\x78'`,
			} {
				sql = strings.ReplaceAll(sql, "{db}", s.db)
				mustFail(t, c, "ZF005", q(sql))
				mustFail(t, c, "ZF005", run(sql), sync_())
				mustFail(t, c, "ZF005", parse("s", sql), sync_())
				mustFail(t, c, "ZF005", q("begin; "+sql))
				mustPass(t, c, q("rollback"))
			}
			if n := s.value("select count(*) from pg_prepared_xacts where database = current_database()"); n != 1 {
				t.Fatalf("%s: %d transactions are prepared, want the one of the administrator", who, n)
			}
		}
		// Space that only newer versions know, in a text that is not read.
		ask(leader, q("begin; insert into t (v) values ('stale'); prepare\vtransaction 'x' -- "+long))
		ask(leader, q("rollback"))
		if n := s.value("select count(*) from pg_prepared_xacts where database = current_database()"); n != 1 {
			s.exec("rollback prepared 'x'")
			t.Error("a transaction was prepared behind a vertical tab")
		}
	})
}

// TestReplicationIsRefusedForEveryone: also for a user who may write unfenced.
func TestReplicationIsRefusedForEveryone(t *testing.T) {
	t.Parallel()
	s := newStage(t, pgtest.Shared(t))
	for _, user := range []string{pgtest.App, pgtest.Superuser} {
		for _, value := range []string{"true", "on", "yes", "1", "database"} {
			c := wiretest.Dial(t, s.addr)
			c.Send(wiretest.Startup("user", user, "database", s.db, "replication", value))
			if f := fatal(t, c.Rest()); f['C'] != "ZF005" {
				t.Errorf("%s with replication=%s: %v, want ZF005", user, value, f)
			}
		}
		c, _ := wiretest.Connect(t, s.addr, "user", user, "database", s.db, "replication", "off")
		mustPass(t, c, q("select 1"))
	}
}
