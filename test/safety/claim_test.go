package safety

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyAClaimedEpochOpensNoWay: a worker leads at one proxy, another was
// granted the next epoch at a second one, and the first proxy does not know it yet.
// The worker's client has read the new epoch from the status view, and says that
// it was told. Nothing of what it sends then may run, by the check or past it.
func TestSafetyAClaimedEpochOpensNoWay(t *testing.T) {
	t.Parallel()
	for name, pg := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": own18(t)} {
		s := fixture.NewCluster(t, pg)
		s.Exec("create function wstale() returns void language sql as $$insert into t (v) values ('stale')$$; alter table c owner to app")
		second := fixture.NewProxy(t, pg, nil)
		for _, c := range []staleCase{
			late("insert", Q(stale)),
			late("do", Q("do $$begin insert into t (v) values ('stale'); commit; end$$")),
			late("do, extended", Batch(Run("do $$begin insert into t (v) values ('stale'); commit; end$$"))),
			late("call", Q("call late()")),
			late("call, extended", Batch(Run("call late()"))),
			late("fast path call", call(oidOf(s, "'wstale'::regproc"))),
			late("a text too long to read", Q("begin; "+stale+"; commit -- "+strings.Repeat("x", 300<<10))),
			traced("vacuum", "select count(*) from pg_class where relname = 'c' and relpages > 0", Q("vacuum c")),
		} {
			t.Run(name+"/"+strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
				first := s.With(t)
				first.Exec("truncate t")
				claimsEpoch(first, &fixture.Cluster{Proxy: second, T: t, DB: s.DB, Admin: s.Admin}, c)
			})
		}
	}
}

// claimsEpoch lets a worker that leads here, and was superseded at the other proxy,
// claim the current epoch and send what the case says.
func claimsEpoch(s *fixture.Cluster, other *fixture.Cluster, c staleCase) {
	s.T.Helper()
	worker := "w" + strings.ReplaceAll(c.name, " ", "")
	for last := other.Elector.Next(); s.Elector.Next() < last; { // what comes is awarded later
		continue
	}
	first := s.Leader(worker)
	for last := s.Elector.Next(); other.Elector.Next() < last; {
		continue
	}
	fixture.MustPass(s.T, first, Q("insert into t (v) values ('in time')"))
	other.Connect("other" + worker)
	other.Grant("other" + worker)
	epoch := s.Number("select epoch::int from fencepost.status where resource = 'r'")
	if c.trace == "" {
		c.trace = "select count(*) from t where v = 'stale'"
	}
	fixture.MustEnd(s.T, first, "ZF001", Cat(Q(fmt.Sprintf("set fencepost.epoch = %d", epoch)), c.write))
	if n := s.Number(c.trace); n != 0 {
		s.T.Errorf("the refused statement left %d behind", n)
	}
}
