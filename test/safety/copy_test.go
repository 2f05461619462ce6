package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyErrorThatSeemsToComeFromCopyData: whether a Sync that was sent with a
// COPY was ignored is told by the words of the COPY's error, and a function can
// choose those. While the server is still busy with the end of that batch, the
// client sends the next, which the server will run.
func TestSafetyErrorThatSeemsToComeFromCopyData(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		s.Exec(strings.ReplaceAll(`create table cp (id int);
			create function "f\nCOPY cp, line 1: "() returns trigger language plpgsql as $$begin raise exception 'no'; end$$;
			create trigger tr before insert on cp for each statement execute function "f\nCOPY cp, line 1: "();
			create function many(n int) returns int language plpgsql as $$begin
				for i in 1..n loop execute format('create table m%s (id int primary key, v text)', i); end loop; return n; end$$;
			grant all on cp to app; grant create on schema public to app`, `\n`, "\n"))
		c := s.Leader("leader")
		fixture.MustPass(t, c, Parse("w", blocked), Sync())
		other := s.Connect("leader")
		s.Exec("select pg_advisory_lock(42)") // the gate is closed
		c.Send(Run("select many(1500)"), Run("copy cp from stdin"), Sync())
		c.Until('E')
		c.Send(Bind("", "w"), Exec("", 0), Sync()) // while those tables are rolled back
		answered := fixture.ReadReply(c, 2)
		fixture.Eventually(t, "the write waits at the gate, or is not run", func() bool {
			return lockWaiters(s, "advisory") > 0 || answered.Done()
		})
		s.Supersede()
		before := s.Rows("stale")
		s.Exec("select pg_advisory_unlock(42)")
		answered.Wait()
		if after := s.Rows("stale"); after != before {
			t.Errorf("%d rows of the old epoch were there when the grant returned, %d are there now", before, after)
		}
		fixture.MustEnd(t, other, "ZF001", Q("insert into t (v) values ('stale')"))
	})
}
