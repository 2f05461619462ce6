package safety

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestTemporaryTablesOfThoseWhoDoNotLead: they are refused like other writes, and those that a connection made while it
// led can be read. From 16 on, Postgres lets a read-only transaction write their rows, too.
func TestTemporaryTablesOfThoseWhoDoNotLead(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		c := s.Leader("w")
		fixture.MustPass(t, c, Q("create temp table mine (a int); insert into mine values (7)"))
		candidacy := s.Candidacy(s.DB, "r", "w")
		led := *candidacy.Status()
		lapsed := led
		lapsed.Role, lapsed.Lapsed = 0, true
		candidacy.SetStatus(&lapsed) // it leads no more, and nobody was granted since
		rows := map[bool]string{true: "15", false: "7"}[s.Number("select current_setting('server_version_num')::int / 10000") >= 16]
		if insert := Q("insert into mine values (8)"); rows == "15" {
			fixture.MustPass(t, c, insert)
		} else {
			fixture.MustFail(t, c, "ZF002", insert)
		}
		for _, sql := range []string{
			"create temp table other (a int)", "create temp table other as select 1 as a", "truncate mine", "drop table mine", "select * into temp other from c",
			"create temp view other as select 1 as a", "create index on mine (a)", "analyze mine", "with x as (insert into mine values (8) returning a) select * from x",
		} {
			fixture.MustFail(t, c, "ZF002", Q(sql))
			fixture.MustFail(t, c, "ZF002", Run(sql), Sync())
		}
		if got := column(fixture.MustPass(t, c, Q("select sum(a) from mine"))); got != rows {
			t.Errorf("the table holds %s, want what it held", got)
		}
		candidacy.SetStatus(&led)
		fixture.MustPass(t, c, Q("insert into mine values (8)"))
		fixture.MustPass(t, c, Q("discard temp"))
		fixture.MustFail(t, c, "42P01", Q("select * from mine"))
	})
}

// TestWhatDependsOnTemporaryObjectsGoesWithThem: the server drops a permanent column of
// a temporary type with the session that made the type. That of a superseded session is gone when
// the grant returns.
func TestWhatDependsOnTemporaryObjectsGoesWithThem(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
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
	})
}
