package discard

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// ordinary is what a leader may send.
var ordinary = [][]byte{
	q("insert into t (v) values ('a')"), q("insert into t (v) values ('b') returning id, v;"), q("update t set v = 'c' where id = 3 returning *"),
	q("with x as (insert into t (v) values ('w') returning id) select id from x"), q("select v from t order by id"), q("values (1), (2)"), q("table c"),
	q("select 1/0"), q("insert into t (id, v) values (1, 'double')"), q("insert into nowhere values (1)"), q("selct 1"), q(""), q("delete from t where false returning v"),
	q("explain (costs off) select 1"), q("create table made (a int)"), q("insert into made select generate_series(1, 3)"), q("truncate made"), q("drop table made"),
	q("begin"), q("insert into t (v) values ('d')"), q("savepoint a"), q("insert into t (v) values (null)"), q("rollback to a"), q("insert into t (v) values ('e')"), q("commit"),
	q("begin isolation level repeatable read"), q("select count(*) from t"), q("insert into t (v) values ('f')"), q("commit and chain"), q("delete from t where v = 'f'"), q("rollback"),
	q("begin isolation level serializable read only"), q("select 1"), q("insert into t (v) values ('g')"), q("rollback"),
	q("insert into t (v) values ('h'); insert into t (v) values ('i'); select 1"),
	cat(q("copy t (v) from stdin"), wiretest.CopyData("j\n"), wiretest.CopyDone()), q("copy c to stdout"),
	q("prepare p as insert into t (v) values ($1) returning v"), q("execute p('k')"), q("declare k cursor with hold for select v from t"), q("fetch 2 from k"), q("close k"), q("deallocate p"),
	q("do $$begin insert into t (v) values ('l'); end$$"), q("vacuum c"), q("lock table t"), q("notify n, 'x'"), q("set work_mem = '5MB'"), q("show work_mem"), q("select nextval('s')"),
	ends(run("insert into t (v) values ($1) returning id", "m")), ends(run("begin"), run("insert into t (v) values ('n')"), run("commit")), ends(run("select v from t where id = $1", "x")),
	ends(parse("s", "update t set v = $1 where id = $2"), desc('S', "s")), ends(bind("", "s", "o", "1"), exec("", 0)), ends(bind("", "s", "o", "x"), exec("", 0)),
	ends(run("select generate_series(1, 5)"), bind("p", "", ""), sync_()),
	ends(parse("g", "select generate_series(1, 5)"), bind("p", "g"), exec("p", 2), exec("p", 2), exec("p", 2)),
	cat(ends(run("insert into t (v) values ('q')")), ends(run("insert into t (v) values ('r')"))), cat(q("insert into t (v) values ('u')"), q("insert into t (v) values ('v')")),
	cat(parse("y", "select 1"), q("insert into t (v) values ('y')"), sync_()), ends(parse("", "insert into t (v) values ('z')"), flush(), bind("", ""), flush(), exec("", 0)),
	cat(q("begin"), q("declare b binary cursor with hold for select id from t order by id"), q("commit")), q("fetch b"), q("move b"), q("fetch b"),
	q("select name, statement from pg_cursors"), q("select name, statement from pg_prepared_statements where not from_sql"), q("close b"),
	q("select v from t order by id"),
}

// TestADiscardingLeaderIsAnsweredAsByPostgres: while the worker leads, the verdict changes no
// answer.
func TestADiscardingLeaderIsAnsweredAsByPostgres(t *testing.T) {
	t.Parallel()
	onVersions(t, func(c *fixture.Cluster) {
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
	onVersions(t, func(c *fixture.Cluster) {
		there, _ := wiretest.Connect(c.T, c.PG.Addr(), "user", pgtest.App, "database", c.DB)
		here, write := c.Leader("w"), q("delete from c where id = 7")
		for _, piece := range [][]byte{
			cat(run("rollback to nowhere"), write, sync_()), cat(bind("", "nowhere"), write, sync_()), cat(exec("nowhere", 0), write, sync_()),
			cat(run("begin"), run("rollback to nowhere"), write, sync_()), q("rollback"),
			cat(run("delete from c where id = 7"), parse("", "selct"), write, sync_()), cat(parse("", "delete from nowhere"), write, sync_()),
		} {
			var answered [2][]string
			for i, conn := range []*wiretest.Conn{there, here} {
				r := fixture.ReadReply(conn, 2)
				conn.Send(piece, q("select 'next'"))
				all, _ := r.Wait()
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
	r := fixture.ReadReply(c, strings.Count(string(types(piece)), "Q")+strings.Count(string(types(piece)), "S")+1)
	c.Send(piece, sync_())
	all, _ := r.Wait()
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
