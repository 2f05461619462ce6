package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// writesAtBind makes a domain whose check writes a row that a deferred constraint refuses
// if it refers to one that is not there.
const writesAtBind = `create table zt (id int primary key, ref int references zt deferrable initially deferred);
	create function zwr(x text) returns boolean language plpgsql as $$begin insert into zt values (1, x::int); return true; end$$;
	create domain zd as text check (zwr(value))`

// TestProtocolWritesOfABind: what a Bind has written is committed or refused with the
// batch, as Postgres does, whatever statement follows that Fencepost has to look at.
func TestProtocolWritesOfABind(t *testing.T) {
	bound := Cat(Parse("x", "select $1::zd"), Bind("p", "x", "99"), wiretest.Close('P', "p"))
	compareScripts(t,
		newScript("then DISCARD PLANS", at("Z", Q(writesAtBind)), at("Z", bound, Parse("d", "discard plans"), Bind("", "d"), Exec("", 0), Sync()), at("Z", Q("select count(*) from zt"))),
		newScript("then a Query DISCARD PLANS, before 18", at("Z", Q(writesAtBind)), at("Z", bound, Parse("d", "discard plans"), Sync()), at("Z", Q("select count(*) from zt"))),
	)
}

// TestALostCommitIsNotSilent: where Fencepost must end the transaction of a Bind itself,
// in front of a statement that cannot share it, a commit that fails is that statement's error.
func TestALostCommitIsNotSilent(t *testing.T) {
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec(writesAtBind + "; grant all on zt to app")
		c := s.Leader("leader")
		bound := Cat(Parse("x", "select $1::zd"), Bind("p", "x", "99"), wiretest.Close('P', "p"))
		all, ended := fixture.Ask(c, Batch(bound, Parse("d", "discard all"), Bind("", "d"), Exec("", 0)))
		if got := wiretest.ErrorOf(all); got != "23503" || ended {
			t.Errorf("the client is told %q, and the session ends: %v", got, ended)
		}
		if got := s.Number("select count(*) from zt"); got != 0 {
			t.Errorf("%d rows are there", got)
		}
	})
}
