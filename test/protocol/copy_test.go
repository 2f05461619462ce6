package protocol

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolCopy: COPY in every position, and every way to end it or to get
// it wrong.
func TestProtocolCopy(t *testing.T) {
	t.Parallel()
	data, done, fail := wiretest.CopyData, wiretest.CopyDone, wiretest.CopyFail
	copyIn := Cat(Parse("", "copy t from stdin"), Bind("", ""), Exec("", 0))
	ins := Run("insert into t values (10, 'x')")
	count := at("Z", Q("select count(*) from t"))
	compareScripts(t,
		newScript("in, whole", at("G", Q("copy t from stdin")), at("Z", data("80\tx\n81\ty\n"), done()), count),
		newScript("in, data in odd pieces", at("G", Q("copy t from stdin")), at("", data("8")), at("", data("0\t")), at("", data(""), data("x\n81")), at("Z", data("\ty\n\\.\n"), done()), count),
		newScript("in, nothing", at("G", Q("copy t from stdin")), at("Z", done()), count),
		newScript("in, failed by the client", at("G", Q("copy t from stdin")), at("Z", data("80\tx\n"), fail("no more")), count),
		newScript("in, failed by the client, in a block", at("Z", Q("begin")), at("G", Q("copy t from stdin")), at("Z", fail("no more")), at("Z", Q("select 1")), at("Z", Q("rollback")), count),
		newScript("in, bad data, then late messages", at("G", Q("copy t from stdin")), at("E", data("80\tx\nbad\n")), at("Z", data("81\ty\n"), data("82\tz\n"), done()), count),
		newScript("in, bad data, then a late failure", at("GE", Q("copy t from stdin"), data("bad\n")), at("Z", data("81\ty\n"), fail("why")), count),
		newScript("in, bad data at the end, late done", at("GEZ", Q("copy t from stdin"), data("80\tx\nbad\n")), at("", done()), count),
		newScript("in, with flush and sync inside", at("G", Q("copy t from stdin")), at("Z", Flush(), Sync(), data("80\tx\n"), Sync(), Flush(), data("81\ty\n"), done()), count),
		newScript("in, by messages", at("GZ", copyIn, data("80\tx\n"), done(), Sync()), count),
		newScript("in, by messages, described", at("G", Parse("", "copy t from stdin"), Desc('S', ""), Bind("", ""), Desc('P', ""), Exec("", 0), Flush()), at("Z", data("80\tx\n"), done(), Sync()), count),
		newScript("in, by messages, no sync yet", at("G", copyIn, Flush()), at("C", data("80\tx\n"), done(), Flush()), at("Z", Sync()), count),
		newScript("in, sync right behind execute", at("G", copyIn, Sync()), at("Z", data("80\tx\n"), done(), Sync()), count),
		newScript("in, sync right behind execute, bad data", at("G", copyIn, Sync()), at("Z", data("bad\n"), done(), Sync()), count),
		newScript("in, sync right behind execute, missing table", at("ZZ", Parse("", "copy nope from stdin"), Bind("", ""), Exec("", 0), Sync(), data("80\tx\n"), done(), Sync()), count),
		newScript("in, missing table", at("EZ", Q("copy nope from stdin"), data("80\tx\n"), done()), count),
		newScript("in, missing table, by messages", at("E", Parse("", "copy nope from stdin"), Bind("", ""), Exec("", 0), Flush()), at("Z", data("80\tx\n"), done(), Sync()), count),
		newScript("in, no right", at("EZ", Q("copy pg_authid from stdin"), data("x\n"), done()), count),
		newScript("in, behind an insert in one batch", at("GZ", ins, copyIn, data("80\tx\n"), done(), Sync()), count),
		newScript("in, in front of an insert in one batch", at("G", copyIn, Flush()), at("Z", data("80\tx\n"), done(), ins, Sync()), count),
		newScript("in, its error undoes the batch", at("G", ins, copyIn, Flush()), at("Z", data("bad\n"), done(), Run("insert into t values (11, 'y')"), Sync()), count),
		newScript("in, twice in one batch", at("G", copyIn, Flush()), at("G", data("80\tx\n"), done(), copyIn, Flush()), at("Z", data("81\tx\n"), done(), Sync()), count),
		newScript("in, twice in one text", at("G", Q("copy t from stdin; copy t from stdin")), at("G", data("80\tx\n"), done()), at("Z", data("81\ty\n"), done()), count),
		newScript("in, among others in one text", at("G", Q("insert into t values (10, 'a'); copy t from stdin; commit; insert into t values (11, 'b')")), at("Z", data("80\tx\n"), done()), count),
		newScript("in, among others, the last fails", at("G", Q("insert into t values (10, 'a'); copy t from stdin; select 1/0")), at("Z", data("80\tx\n"), done()), count),
		newScript("in, behind a commit in one text", at("G", Q("begin; insert into t values (10, 'a'); commit; copy t from stdin")), at("Z", data("80\tx\n"), done()), count),
		newScript("in, error position", at("Z", Q("select 1; copy t (nope) from stdin")), at("Z", Q("copy t from stdin wth csv"))),
		newScript("in, then queries in flight", at("GZZ", Q("copy t from stdin"), data("80\tx\n"), done(), Q("select count(*) from t")), count),
		newScript("in, binary", at("GZ", Q("copy t from stdin (format binary)"), data("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00\x50\x00\x00\x00\x01x\xff\xff"), done()), count),
		newScript("in, large", at("G", Q("copy t from stdin")), at("Z", Cat(manyRows(20000)...), done()), count),
		newScript("in, in a block, rolled back to a savepoint", at("Z", Q("begin; savepoint a")), at("G", Q("copy t from stdin")), at("Z", data("80\tx\n"), done()), at("Z", Q("rollback to a")), at("G", Q("copy t from stdin")), at("Z", data("81\tx\n"), done()), at("Z", Q("commit")), count),
		newScript("in, in a failed block", at("Z", Q("begin")), at("Z", Q("select 1/0")), at("Z", Q("copy t from stdin")), at("Z", data("80\tx\n"), done(), Q("select 1")), at("Z", Q("rollback")), count),
		newScript("in, with a trigger that fails", at("Z", Q("create function no() returns trigger language plpgsql as $$begin raise exception 'no' using detail = 'd', hint = 'h'; end$$; create trigger no before insert on t for each row execute function no()")), at("GEZ", Q("copy t from stdin"), data("80\tx\n"), done()), count),
		newScript("in, with notices", at("Z", Q("create function say() returns trigger language plpgsql as $$begin raise notice 'row %', new.id; return new; end$$; create trigger say before insert on t for each row execute function say()")), at("GZ", Q("copy t from stdin"), data("80\tx\n81\ty\n"), done()), count),
		newScript("in, twice executed", at("G", copyIn, Sync()), at("Z", done(), Sync()), at("G", Cat(Parse("c", "copy t from stdin"), Bind("", "c"), Exec("", 0), Flush())), at("Z", data("81\tx\n"), done(), Sync()), at("G", Bind("", "c"), Exec("", 0), Flush()), at("Z", data("82\tx\n"), done(), Sync()), count),
		newScript("in, sync right behind execute, then a query", at("G", copyIn, Sync()), at("Z", data("80\tx\n"), done(), Q("insert into t values (10, 'x')")), at("Z", Q("rollback")), count),
		newScript("in, a query inside", at("G", Q("copy t from stdin")), at("$", data("80\tx\n"), Q("select 1"))),
		newScript("in, a parse inside", at("G", copyIn, Flush()), at("$", data("80\tx\n"), Parse("", "select 1"), Sync())),
		newScript("in, terminate inside", at("G", Q("copy t from stdin")), at("$", data("80\tx\n"), wiretest.Terminate())),
		newScript("stray messages", at("Z", data("x"), done(), fail("x"), Q("select 1")), at("Z", data("x"), ins, done(), Sync()), count),
		newScript("out", at("Z", Q("copy (select * from t order by id) to stdout")), at("Z", Parse("", "copy t to stdout"), Bind("", ""), Desc('P', ""), Exec("", 0), Sync())),
		newScript("out, fails in the middle", at("Z", Q("copy (select 1 / (2 - g) from generate_series(1, 3) g) to stdout"))),
		newScript("out, among others", at("Z", Q("select 1; copy (select 2) to stdout; select 3")), at("Z", Run("copy (select 4) to stdout"), Run("select 5"), Sync())),
		newScript("out, of what writes", at("Z", Q("copy (insert into t values (10, 'x') returning *) to stdout")), at("Z", Q("copy (select wr(11)) to stdout")), count),
		newScript("out, large", at("Z", Q("copy (select repeat('x', 1000) from generate_series(1, 3000)) to stdout"))),
		newScript("to and from files", at("Z", Q("copy t to '/nowhere/x'")), at("Z", Q("copy t from program 'true'"))),
	)
}

func manyRows(n int) [][]byte {
	var rows [][]byte
	for i := range n {
		rows = append(rows, wiretest.CopyData(itoa(1000+i)+"\t"+strings.Repeat("x", i%50)+"\n"))
	}
	return [][]byte{bytes.Join(rows, nil)}
}

// TestProtocolSyncAfterBadCopyData: the server skips up to a Sync that stands among the data of a COPY which has failed.
func TestProtocolSyncAfterBadCopyData(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		direct, _ := wiretest.Connect(t, p.PG.Addr(), "user", pgtest.App, "database", db)
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int)")
		sent := Cat(Parse("", "copy t from stdin"), Bind("", ""), Exec("", 0), wiretest.CopyData("bad\n"), Sync(), Run("insert into t values (1)"), Sync(), wiretest.Terminate())
		for name, conn := range map[string]*wiretest.Conn{"Postgres": direct, "Fencepost": c} {
			conn.Send(sent)
			if said := conn.Rest(); fixture.Types(said) != "12GEZ12nCZ" {
				t.Errorf("%s said %v; want 12GEZ12nCZ", name, said)
			}
		}
	})
}
