package proxy_test

import (
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestTemporaryTablesOfThoseWhoDoNotLead: they are refused like other writes,
// and those that a connection made while it led can be read.
func TestTemporaryTablesOfThoseWhoDoNotLead(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		s := newStage(t, pg)
		c := s.leads("w")
		mustPass(t, c, q("create temp table mine (a int); insert into mine values (7)"))
		seat := s.seat(s.db, "r", "w")
		led := *seat.Status()
		lapsed := led
		lapsed.Role, lapsed.Lapsed = 0, true
		seat.SetStatus(&lapsed) // it leads no more, and nobody was granted since
		for _, sql := range []string{
			"create temp table other (a int)", "create temp table other as select 1 as a", "insert into mine values (8)", "truncate mine", "drop table mine", "select * into temp other from c",
			"create temp view other as select 1 as a", "create index on mine (a)", "analyze mine", "with x as (insert into mine values (8) returning a) select * from x",
		} {
			mustFail(t, c, "ZF002", q(sql))
			mustFail(t, c, "ZF002", run(sql), sync_())
		}
		if got := column(mustPass(t, c, q("select sum(a) from mine"))); got != "7" {
			t.Errorf("the table holds %s, want what it held", got)
		}
		seat.SetStatus(&led)
		mustPass(t, c, q("insert into mine values (8)"))
		mustPass(t, c, q("discard temp"))
		mustFail(t, c, "42P01", q("select * from mine"))
	})
}

// TestWhatDependsOnTemporaryObjectsGoesWithThem: the server drops a permanent column of
// a temporary type with the session that made the type, superseded or not. Nothing can
// keep a session from its end, so DISCARD passes unchecked too.
func TestWhatDependsOnTemporaryObjectsGoesWithThem(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		s := newStage(t, pg)
		s.exec("alter table c owner to app")
		columns := func() int {
			return s.value("select count(*) from pg_attribute where attrelid = 'c'::regclass and attname = 'x' and not attisdropped")
		}
		for name, drop := range map[string]func(c *wiretest.Conn){
			"discard": func(c *wiretest.Conn) { mustPass(t, c, q("discard temp")) },
			"end":     func(c *wiretest.Conn) { _ = c.Close() },
		} {
			c := s.leads(name)
			mustPass(t, c, q("create domain pg_temp.dt as text"))
			mustPass(t, c, q("alter table c add x pg_temp.dt"))
			s.succeed()
			if columns() != 1 {
				t.Fatalf("%s: no column", name)
			}
			drop(c)
			eventually(t, name+": the column is gone", func() bool { return columns() == 0 })
		}
	})
}
