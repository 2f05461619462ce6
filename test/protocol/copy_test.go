package protocol

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestProtocolCopy: COPY in every position, and every way to end it or to get
// it wrong.
func TestProtocolCopy(t *testing.T) {
	t.Parallel()
	data, done, fail := wiretest.CopyData, wiretest.CopyDone, wiretest.CopyFail
	copyIn := cat(parse("", "copy t from stdin"), bind("", ""), exec("", 0))
	ins := run("insert into t values (10, 'x')")
	count := at("Z", q("select count(*) from t"))
	compareScripts(t,
		newScript("in, whole", at("G", q("copy t from stdin")), at("Z", data("80\tx\n81\ty\n"), done()), count),
		newScript("in, data in odd pieces", at("G", q("copy t from stdin")), at("", data("8")), at("", data("0\t")), at("", data(""), data("x\n81")), at("Z", data("\ty\n\\.\n"), done()), count),
		newScript("in, nothing", at("G", q("copy t from stdin")), at("Z", done()), count),
		newScript("in, failed by the client", at("G", q("copy t from stdin")), at("Z", data("80\tx\n"), fail("no more")), count),
		newScript("in, failed by the client, in a block", at("Z", q("begin")), at("G", q("copy t from stdin")), at("Z", fail("no more")), at("Z", q("select 1")), at("Z", q("rollback")), count),
		newScript("in, bad data, then late messages", at("G", q("copy t from stdin")), at("E", data("80\tx\nbad\n")), at("Z", data("81\ty\n"), data("82\tz\n"), done()), count),
		newScript("in, bad data, then a late failure", at("GE", q("copy t from stdin"), data("bad\n")), at("Z", data("81\ty\n"), fail("why")), count),
		newScript("in, bad data at the end, late done", at("GEZ", q("copy t from stdin"), data("80\tx\nbad\n")), at("", done()), count),
		newScript("in, with flush and sync inside", at("G", q("copy t from stdin")), at("Z", flush(), sync_(), data("80\tx\n"), sync_(), flush(), data("81\ty\n"), done()), count),
		newScript("in, by messages", at("GZ", copyIn, data("80\tx\n"), done(), sync_()), count),
		newScript("in, by messages, described", at("G", parse("", "copy t from stdin"), desc('S', ""), bind("", ""), desc('P', ""), exec("", 0), flush()), at("Z", data("80\tx\n"), done(), sync_()), count),
		newScript("in, by messages, no sync yet", at("G", copyIn, flush()), at("C", data("80\tx\n"), done(), flush()), at("Z", sync_()), count),
		newScript("in, sync right behind execute", at("G", copyIn, sync_()), at("Z", data("80\tx\n"), done(), sync_()), count),
		newScript("in, sync right behind execute, failed by the client", at("G", copyIn, sync_()), at("Z", data("80\tx\n"), fail("no"), sync_()), count),
		newScript("in, sync right behind execute, bad data", at("G", copyIn, sync_()), at("Z", data("bad\n"), done(), sync_()), count),
		newScript("in, sync right behind execute, missing table", at("ZZ", parse("", "copy nope from stdin"), bind("", ""), exec("", 0), sync_(), data("80\tx\n"), done(), sync_()), count),
		newScript("in, missing table", at("EZ", q("copy nope from stdin"), data("80\tx\n"), done()), count),
		newScript("in, missing table, by messages", at("E", parse("", "copy nope from stdin"), bind("", ""), exec("", 0), flush()), at("Z", data("80\tx\n"), done(), sync_()), count),
		newScript("in, no right", at("EZ", q("copy pg_authid from stdin"), data("x\n"), done()), count),
		newScript("in, behind an insert in one batch", at("GZ", ins, copyIn, data("80\tx\n"), done(), sync_()), count),
		newScript("in, in front of an insert in one batch", at("G", copyIn, flush()), at("Z", data("80\tx\n"), done(), ins, sync_()), count),
		newScript("in, its error undoes the batch", at("G", ins, copyIn, flush()), at("Z", data("bad\n"), done(), run("insert into t values (11, 'y')"), sync_()), count),
		newScript("in, twice in one batch", at("G", copyIn, flush()), at("G", data("80\tx\n"), done(), copyIn, flush()), at("Z", data("81\tx\n"), done(), sync_()), count),
		newScript("in, twice in one text", at("G", q("copy t from stdin; copy t from stdin")), at("G", data("80\tx\n"), done()), at("Z", data("81\ty\n"), done()), count),
		newScript("in, among others in one text", at("G", q("insert into t values (10, 'a'); copy t from stdin; commit; insert into t values (11, 'b')")), at("Z", data("80\tx\n"), done()), count),
		newScript("in, among others, the last fails", at("G", q("insert into t values (10, 'a'); copy t from stdin; select 1/0")), at("Z", data("80\tx\n"), done()), count),
		newScript("in, behind a commit in one text", at("G", q("begin; insert into t values (10, 'a'); commit; copy t from stdin")), at("Z", data("80\tx\n"), done()), count),
		newScript("in, error position", at("Z", q("select 1; copy t (nope) from stdin")), at("Z", q("copy t from stdin wth csv"))),
		newScript("in, then queries in flight", at("GZZ", q("copy t from stdin"), data("80\tx\n"), done(), q("select count(*) from t")), count),
		newScript("in, binary", at("GZ", q("copy t from stdin (format binary)"), data("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00\x50\x00\x00\x00\x01x\xff\xff"), done()), count),
		newScript("in, large", at("G", q("copy t from stdin")), at("Z", cat(manyRows(20000)...), done()), count),
		newScript("in, in a block, rolled back to a savepoint", at("Z", q("begin; savepoint a")), at("G", q("copy t from stdin")), at("Z", data("80\tx\n"), done()), at("Z", q("rollback to a")), at("G", q("copy t from stdin")), at("Z", data("81\tx\n"), done()), at("Z", q("commit")), count),
		newScript("in, in a failed block", at("Z", q("begin")), at("Z", q("select 1/0")), at("Z", q("copy t from stdin")), at("Z", data("80\tx\n"), done(), q("select 1")), at("Z", q("rollback")), count),
		newScript("in, with a trigger that fails", at("Z", q("create function no() returns trigger language plpgsql as $$begin raise exception 'no' using detail = 'd', hint = 'h'; end$$; create trigger no before insert on t for each row execute function no()")), at("GEZ", q("copy t from stdin"), data("80\tx\n"), done()), count),
		newScript("in, with notices", at("Z", q("create function say() returns trigger language plpgsql as $$begin raise notice 'row %', new.id; return new; end$$; create trigger say before insert on t for each row execute function say()")), at("GZ", q("copy t from stdin"), data("80\tx\n81\ty\n"), done()), count),
		newScript("in, a Close after its CopyFail", at("G", copyIn, flush()), at("E", wiretest.CopyFail("no"), flush()), at("Z", wiretest.Close('S', ""), sync_()), at("Z", q("select 1")), count),
		newScript("in, a Close and a Query after its CopyFail", at("G", copyIn, flush()), at("E", wiretest.CopyFail("no"), flush()), at("Z", wiretest.Close('S', ""), wiretest.Close('P', ""), q("select 1"), sync_()), count),
		newScript("in, twice executed", at("G", copyIn, sync_()), at("Z", done(), sync_()), at("G", cat(parse("c", "copy t from stdin"), bind("", "c"), exec("", 0), flush())), at("Z", data("81\tx\n"), done(), sync_()), at("G", bind("", "c"), exec("", 0), flush()), at("Z", data("82\tx\n"), done(), sync_()), count),
		newScript("in, a query inside", at("G", q("copy t from stdin")), at("$", data("80\tx\n"), q("select 1"))),
		newScript("in, a parse inside", at("G", copyIn, flush()), at("$", data("80\tx\n"), parse("", "select 1"), sync_())),
		newScript("in, a batch inside, sent ahead", at("$", copyIn, ins, sync_())),
		newScript("in, a query inside, sent ahead", at("$", q("copy t from stdin"), q("insert into t values (10, 'x')"), q("select 1"))),
		newScript("in, a batch inside behind a sync, sent ahead", at("$", copyIn, sync_(), ins, sync_())),
		newScript("in, an unknown message inside", at("G", q("copy t from stdin")), at("$", data("80\tx\n"), wiretest.Msg('p', []byte("x\x00")), q("select 1"))),
		newScript("in, an unknown message inside, sent ahead", at("$", q("copy t from stdin"), wiretest.Msg('p', []byte("x\x00")), q("select 1"))),
		newScript("in, terminate inside", at("G", q("copy t from stdin")), at("$", data("80\tx\n"), wiretest.Terminate())),
		newScript("stray messages", at("Z", data("x"), done(), fail("x"), q("select 1")), at("Z", data("x"), ins, done(), sync_()), count),
		newScript("out", at("Z", q("copy (select * from t order by id) to stdout")), at("Z", parse("", "copy t to stdout"), bind("", ""), desc('P', ""), exec("", 0), sync_())),
		newScript("out, fails in the middle", at("Z", q("copy (select 1 / (2 - g) from generate_series(1, 3) g) to stdout"))),
		newScript("out, among others", at("Z", q("select 1; copy (select 2) to stdout; select 3")), at("Z", run("copy (select 4) to stdout"), run("select 5"), sync_())),
		newScript("out, of what writes", at("Z", q("copy (insert into t values (10, 'x') returning *) to stdout")), at("Z", q("copy (select wr(11)) to stdout")), count),
		newScript("out, large", at("Z", q("copy (select repeat('x', 1000) from generate_series(1, 3000)) to stdout"))),
		newScript("to and from files", at("Z", q("copy t to '/nowhere/x'")), at("Z", q("copy t from program 'true'"))),
	)
}

func manyRows(n int) [][]byte {
	var rows [][]byte
	for i := range n {
		rows = append(rows, wiretest.CopyData(itoa(1000+i)+"\t"+strings.Repeat("x", i%50)+"\n"))
	}
	return [][]byte{bytes.Join(rows, nil)}
}

// TestProtocolSyncBehindBadCopyData: a Sync that the server may have read as part
// of a COPY leaves open what it skipped, so the session ends; Postgres goes on.
func TestProtocolSyncBehindBadCopyData(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		direct, _ := wiretest.Connect(t, p.PG.Addr(), "user", pgtest.App, "database", db)
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int)")
		sent := cat(parse("", "copy t from stdin"), bind("", ""), exec("", 0), wiretest.CopyData("bad\n"), sync_(), run("insert into t values (1)"), sync_(), wiretest.Terminate())
		for name, conn := range map[string]*wiretest.Conn{"Postgres": direct, "Fencepost": c} {
			conn.Send(sent)
			said := conn.Rest()
			if want := map[string]string{"Postgres": "12GEZ12nCZ", "Fencepost": "12GE"}[name]; fixture.Types(said) != want {
				t.Errorf("%s said %v; want %s", name, said, want)
			}
		}
	})
}
