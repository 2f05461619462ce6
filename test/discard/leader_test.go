package discard

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// ordinary is what a leader may send.
var ordinary = [][]byte{
	Q("insert into t (v) values ('a')"), Q("insert into t (v) values ('b') returning id, v;"), Q("update t set v = 'c' where id = 3 returning *"),
	Q("with x as (insert into t (v) values ('w') returning id) select id from x"), Q("select v from t order by id"), Q("values (1), (2)"), Q("table c"),
	Q("select 1/0"), Q("insert into t (id, v) values (1, 'double')"), Q("insert into nowhere values (1)"), Q("selct 1"), Q(""), Q("delete from t where false returning v"),
	Q("explain (costs off) select 1"), Q("create table made (a int)"), Q("insert into made select generate_series(1, 3)"), Q("truncate made"), Q("drop table made"),
	Q("begin"), Q("insert into t (v) values ('d')"), Q("savepoint a"), Q("insert into t (v) values (null)"), Q("rollback to a"), Q("insert into t (v) values ('e')"), Q("commit"),
	Q("begin isolation level repeatable read"), Q("select count(*) from t"), Q("insert into t (v) values ('f')"), Q("commit and chain"), Q("delete from t where v = 'f'"), Q("rollback"),
	Q("begin isolation level serializable read only"), Q("select 1"), Q("insert into t (v) values ('g')"), Q("rollback"),
	Q("insert into t (v) values ('h'); insert into t (v) values ('i'); select 1"),
	Cat(Q("copy t (v) from stdin"), wiretest.CopyData("j\n"), wiretest.CopyDone()), Q("copy c to stdout"),
	Q("prepare p as insert into t (v) values ($1) returning v"), Q("execute p('k')"), Q("declare k cursor with hold for select v from t"), Q("fetch 2 from k"), Q("close k"), Q("deallocate p"),
	Q("do $$begin insert into t (v) values ('l'); end$$"), Q("vacuum c"), Q("lock table t"), Q("notify n, 'x'"), Q("set work_mem = '5MB'"), Q("show work_mem"), Q("select nextval('s')"),
	Batch(Run("insert into t (v) values ($1) returning id", "m")), Batch(Run("begin"), Run("insert into t (v) values ('n')"), Run("commit")), Batch(Run("select v from t where id = $1", "x")),
	Batch(Parse("s", "update t set v = $1 where id = $2"), Desc('S', "s")), Batch(Bind("", "s", "o", "1"), Exec("", 0)), Batch(Bind("", "s", "o", "x"), Exec("", 0)),
	Batch(Run("select generate_series(1, 5)"), Bind("p", "", ""), Sync()),
	Batch(Parse("g", "select generate_series(1, 5)"), Bind("p", "g"), Exec("p", 2), Exec("p", 2), Exec("p", 2)),
	Cat(Batch(Run("insert into t (v) values ('q')")), Batch(Run("insert into t (v) values ('r')"))), Cat(Q("insert into t (v) values ('u')"), Q("insert into t (v) values ('v')")),
	Cat(Parse("y", "select 1"), Q("insert into t (v) values ('y')"), Sync()), Batch(Parse("", "insert into t (v) values ('z')"), Flush(), Bind("", ""), Flush(), Exec("", 0)),
	Cat(Q("begin"), Q("declare b binary cursor with hold for select id from t order by id"), Q("commit")), Q("fetch b"), Q("move b"), Q("fetch b"),
	Q("select name, statement from pg_cursors"), Q("select name, statement from pg_prepared_statements where not from_sql"), Q("close b"),
	Q("select v from t order by id"),
}

// TestADiscardingLeaderIsAnsweredAsByPostgres: while the worker leads, the verdict changes no
// answer.
func TestADiscardingLeaderIsAnsweredAsByPostgres(t *testing.T) {
	t.Parallel()
	onServers(t, func(c *fixture.Cluster) {
		direct := discarding(c.T, c.PG)
		there, _ := wiretest.Connect(c.T, direct.PG.Addr(), "user", pgtest.App, "database", direct.DB)
		here := c.Leader("w")
		for _, piece := range ordinary {
			c.T.Logf("%.80q", piece)
			want, got := exchange(there, piece), exchange(here, piece)
			if !slices.Equal(want, got) {
				c.T.Errorf("%.120q: Postgres answers\n%s\nand Fencepost\n%s", piece, strings.Join(want, "\n"), strings.Join(got, "\n"))
			}
		}
	})
}

// TestAQueryBehindAFailedBatchIsSkipped: as Postgres does, whether the batch fails before a
// verdict is asked for or not.
func TestAQueryBehindAFailedBatchIsSkipped(t *testing.T) {
	t.Parallel()
	onServers(t, func(c *fixture.Cluster) {
		there, _ := wiretest.Connect(c.T, c.PG.Addr(), "user", pgtest.App, "database", c.DB)
		here, write := c.Leader("w"), Q("delete from c where id = 7")
		for _, piece := range [][]byte{
			Batch(Run("rollback to nowhere"), write), Batch(Bind("", "nowhere"), write), Batch(Exec("nowhere", 0), write),
			Batch(Run("begin"), Run("rollback to nowhere"), write), Q("rollback"),
			Batch(Run("delete from c where id = 7"), Parse("", "selct"), write), Batch(Parse("", "delete from nowhere"), write),
		} {
			var answered [2][]string
			for i, conn := range []*wiretest.Conn{there, here} {
				all, _ := fixture.AskAll(conn, 2, piece, Q("select 'next'"))
				answered[i] = fixture.Lines(all)
			}
			if want, got := answered[0], answered[1]; !slices.Equal(want, got) {
				c.T.Errorf("%q: Postgres answers\n%s\nand Fencepost\n%s", piece, strings.Join(want, "\n"), strings.Join(got, "\n"))
			}
		}
	})
}

// exchange sends a piece and a Sync, and returns what both are answered.
func exchange(c *wiretest.Conn, piece []byte) []string {
	ready := strings.Count(string(types(piece)), "Q") + strings.Count(string(types(piece)), "S") + 1
	all, _ := fixture.AskAll(c, ready, piece, Sync())
	return fixture.Lines(all)
}

// types are the types of messages.
func types(b []byte) (all []byte) {
	for len(b) > 4 {
		all = append(all, b[0])
		b = b[1+int(b[1])<<24+int(b[2])<<16+int(b[3])<<8+int(b[4]):]
	}
	return all
}
