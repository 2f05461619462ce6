package protocol

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestProtocolPipelines: many Syncs in flight, Flush, errors until Sync, and
// Queries between extended messages.
func TestProtocolPipelines(t *testing.T) {
	t.Parallel()
	ins := func(id string) []byte { return run("insert into t values ($1, 'x')", id) }
	many := func(n int) (b []byte) {
		for range n {
			b = append(b, cat(run("select 1"), sync_())...)
		}
		return b
	}
	compareScripts(t,
		newScript("twenty syncs in flight", at(strings.Repeat("Z", 20), many(20))),
		newScript("blocks over syncs in flight",
			at("ZZZZ", run("begin"), sync_(), ins("10"), sync_(), ins("11"), sync_(), run("commit"), sync_())),
		newScript("a failed block over syncs in flight",
			at("ZZZZZ", run("begin"), sync_(), ins("10"), sync_(), run("select 1/0"), sync_(), ins("11"), sync_(), run("commit"), sync_())),
		newScript("failed, then the next batch commits",
			at("ZZ", ins("10"), run("select 1/0"), ins("11"), sync_(), ins("12"), sync_())),
		newScript("a begin that is skipped",
			at("ZZ", run("select 1/0"), run("begin"), ins("10"), sync_(), ins("11"), sync_())),
		newScript("commit inside a batch",
			at("Z", run("begin"), ins("10"), run("commit"), ins("11"), sync_())),
		newScript("commit inside a batch, the rest fails",
			at("Z", run("begin"), ins("10"), run("commit"), ins("11"), run("select 1/0"), sync_())),
		newScript("rollback inside a batch",
			at("Z", run("begin"), ins("10"), run("rollback"), ins("11"), sync_())),
		newScript("commit without a block", at("Z", ins("10"), run("commit"), run("select 1/0"), sync_())),
		newScript("savepoints in a pipeline",
			at("ZZZZZZ", run("begin"), sync_(), run("savepoint a"), sync_(), run("select 1/0"), sync_(), run("rollback to a"), sync_(), ins("10"), sync_(), run("commit"), sync_())),
		newScript("a savepoint outside a block in a batch", at("Z", ins("10"), run("savepoint a"), ins("11"), sync_())),
		newScript("flush brings what is there",
			at("C", ins("10"), flush()), at("C", run("select * from t order by id"), flush()), at("Z", sync_())),
		newScript("flush in front of the first reply", at("1", parse("", "select 1"), flush()), at("2", bind("", ""), flush()), at("CZ", exec("", 0), sync_())),
		newScript("an error comes without flush", at("E", parse("", "select nothing")), at("Z", sync_())),
		newScript("an error of an execute comes without flush", at("E", ins("1")), at("Z", sync_())),
		newScript("nothing runs behind an error", at("E", ins("1")), at("", ins("10"), q("insert into t values (11, 'x')"), flush()), at("Z", sync_()), at("Z", q("select 1"))),
		newScript("a query behind a failed batch is skipped until sync", at("ZZ", run("select 1/0"), q("insert into t values (10, 'x')"), q("select 2"), sync_(), q("select 3"))),
		newScript("queries and batches mixed", at("ZZZZ", q("insert into t values (10, 'q')"), ins("11"), sync_(), q("select 1/0"), ins("12"), sync_())),
		newScript("a query in an open batch", at("ZZ", ins("10"), q("insert into t values (11, 'q')"), sync_())),
		newScript("a query that fails in an open batch", at("ZZ", ins("10"), q("select 1/0"), sync_()), at("Z", q("select count(*) from t"))),
		newScript("a batch of nothing but close", at("Z", shut('S', "a"), shut('P', "b"), sync_())),
		newScript("a function call in an open batch", at("ZZ", parse("s", "insert into t values (10, 'x')"), fnCall(1610), sync_()), at("Z", bind("", "s"), exec("", 0), sync_()), at("Z", q("select count(*) from t"))),
		newScript("deferred constraint at sync", at("ZZ", run("insert into d values (1, 99)"), sync_(), q("select count(*) from d"))),
		newScript("deferred constraint at a commit in a batch", at("Z", run("begin"), run("insert into d values (1, 99)"), run("commit"), run("select 1"), sync_())),
		newScript("set local in a batch", at("ZZ", run("set local work_mem = '3MB'"), run("show work_mem"), sync_(), q("show work_mem"))),
		newScript("begin read write behind nothing", at("ZZZ", run("begin isolation level serializable read write deferrable"), sync_(), run("show transaction_isolation"), sync_(), run("commit"), sync_())),
	)
}

// fnCall is a fast path call without arguments.
func fnCall(oid int) []byte {
	return wiretest.Msg('F', binary.BigEndian.AppendUint32(nil, uint32(oid)), []byte{0, 0, 0, 0, 0, 1})
}

// long70 is a name of which the server keeps 63 bytes.
var long70 = strings.Repeat("n", 70)

// TestProtocolNames: statements and portals, named and not, again and gone.
func TestProtocolNames(t *testing.T) {
	t.Parallel()
	compareScripts(t,
		newScript("a name again in one batch", at("Z", parse("s", "select 1"), parse("s", "select 2"), bind("", "s"), exec("", 0), sync_()), at("Z", bind("", "s"), exec("", 0), sync_())),
		newScript("a name freed and given again in one batch", at("Z", parse("s", "select 1"), shut('S', "s"), parse("s", "insert into t values (10, 'x')"), bind("", "s"), exec("", 0), sync_())),
		newScript("a name freed by deallocate in one batch", at("Z", parse("s", "select 1"), run("deallocate s"), parse("s", "insert into t values (10, 'x')"), bind("", "s"), exec("", 0), sync_())),
		newScript("a name whose parse failed", at("Z", parse("s", "select nothing"), sync_()), at("Z", bind("", "s"), exec("", 0), sync_()), at("Z", parse("s", "insert into t values (10, 'x')"), bind("", "s"), exec("", 0), sync_())),
		newScript("a name whose parse was skipped", at("Z", run("select 1/0"), parse("s", "insert into t values (10, 'x')"), sync_()), at("Z", bind("", "s"), exec("", 0), sync_()), at("Z", parse("s", "insert into t values (11, 'x')"), sync_()), at("Z", bind("", "s"), exec("", 0), sync_())),
		newScript("names survive a failed transaction", at("Z", q("begin")), at("Z", parse("s", "insert into t values ($1, 'x')"), sync_()), at("Z", q("select 1/0")), at("Z", q("rollback")), at("Z", bind("", "s", "10"), exec("", 0), sync_())),
		newScript("close of unknown names", at("Z", shut('S', "nope"), shut('P', "nope"), sync_()), at("Z", q("select 1"))),
		newScript("close in a failed block", at("Z", parse("s", "select 1"), sync_()), at("Z", q("begin")), at("Z", q("select 1/0")), at("Z", shut('S', "s"), sync_()), at("Z", q("rollback")), at("Z", bind("", "s"), sync_())),
		newScript("unnamed statement kept over batches", at("Z", parse("", "insert into t values ($1, 'x')"), sync_()), at("Z", bind("", "", "10"), exec("", 0), sync_()), at("Z", bind("", "", "11"), exec("", 0), sync_())),
		newScript("unnamed statement lost by a query", at("Z", parse("", "select 1"), sync_()), at("Z", q("select 2")), at("Z", bind("", ""), exec("", 0), sync_())),
		newScript("unnamed statement kept over an error", at("Z", parse("", "select $1::int"), sync_()), at("Z", bind("", "", "x"), exec("", 0), sync_()), at("Z", bind("", "", "7"), exec("", 0), sync_())),
		newScript("unnamed statement of a failed parse", at("Z", parse("", "select 1"), sync_()), at("Z", parse("", "select nothing"), sync_()), at("Z", bind("", ""), exec("", 0), sync_())),
		newScript("unnamed portal over a sync in a block", at("Z", q("begin")), at("Z", parse("", "select * from t order by id"), bind("", ""), exec("", 1), sync_()), at("Z", exec("", 1), sync_()), at("Z", q("commit"))),
		newScript("unnamed portal replaced", at("Z", parse("", "select 1"), bind("", ""), bind("", ""), exec("", 0), exec("", 0), sync_())),
		newScript("a portal's name again", at("Z", parse("", "select 1"), bind("p", ""), bind("p", ""), sync_())),
		newScript("statement closed under its portal", at("Z", parse("s", "select * from t order by id"), bind("p", "s"), shut('S', "s"), exec("p", 0), sync_())),
		newScript("statement parsed anew under its portal", at("Z", parse("", "insert into t values (10, 'x')"), bind("p", ""), parse("", "select 1"), exec("p", 0), sync_())),
		newScript("execute twice", at("Z", parse("", "insert into t values (10, 'x')"), bind("p", ""), exec("p", 0), exec("p", 0), sync_())),
		newScript("a statement and a portal of one name", at("Z", parse("x", "select 1"), bind("x", "x"), desc('S', "x"), desc('P', "x"), exec("x", 0), shut('P', "x"), desc('S', "x"), sync_())),
		newScript("deallocate all in a block", at("Z", parse("s", "select 1"), sync_()), at("Z", q("begin")), at("Z", q("insert into t values (10, 'x')")), at("Z", q("deallocate all")), at("Z", q("insert into t values (11, 'x')")), at("Z", q("commit")), at("Z", bind("", "s"), sync_())),
		newScript("names of 63 bytes and more", at("Z", parse(long70, "insert into t values (10, 'x')"), sync_()), at("Z", bind("", strings.Repeat("n", 63)), exec("", 0), sync_()), at("Z", bind("", long70), exec("", 0), sync_())),
		newScript("names outside ascii in SQL", at("Z", parse("s", "insert into t values ($1, 'x')"), sync_()), at("Z", q("select 1; prepare é as insert into t values (10, 'x')")), at("Z", q("deallocate é; insert into t values (11, 'x')")), at("Z", bind("", "s", "12"), exec("", 0), run("insert into t values (13, 'x')"), sync_())),
		newScript("long names in SQL", at("Z", parse(long70+"x", "insert into t values ($1, 'x')"), sync_()), at("Z", q("execute "+long70+"y(10)")), at("Z", q("deallocate "+long70+"z")), at("Z", q("prepare "+long70+" as select 1")), at("Z", bind("", long70+"x"), exec("", 0), sync_())),
		newScript("long names of portals", at("Z", parse("", "select * from t order by id"), bind(long70+"x", ""), exec(long70+"y", 1), desc('P', long70), shut('P', long70+"z"), exec(long70+"x", 1), sync_())),
		newScript("names outside ascii", at("Z", parse("é", "insert into t values (10, 'x')"), sync_()), at("Z", bind("ü", "é"), exec("ü", 0), sync_())),
		newScript("sql execute of a protocol name", at("Z", parse("s", "insert into t values ($1, 'x')"), sync_()), at("Z", q("execute s(10)")), at("Z", run("execute s(11)"), sync_()), at("Z", q("execute s(10)")), at("Z", q("begin; execute s(12); commit; execute s(13)"))),
		newScript("protocol bind of an sql name", at("Z", q("prepare s(int) as insert into t values ($1, 'x')")), at("Z", desc('S', "s"), bind("", "s", "10"), exec("", 0), sync_()), at("Z", q("deallocate s")), at("Z", bind("", "s", "11"), exec("", 0), sync_())),
	)
}

// TestProtocolPortals: max_rows, cursors, and Describe of everything.
func TestProtocolPortals(t *testing.T) {
	t.Parallel()
	compareScripts(t,
		newScript("suspended and gone on", at("Z", parse("", "select * from t order by id"), bind("p", ""), exec("p", 1), exec("p", 1), exec("p", 0), exec("p", 0), sync_())),
		newScript("suspended, then something else", at("Z", parse("", "select * from t order by id"), bind("p", ""), exec("p", 1), run("insert into t values (10, 'x')"), exec("p", 1), sync_())),
		newScript("suspended with exactly all rows", at("Z", parse("", "select * from t order by id"), bind("p", ""), exec("p", 3), exec("p", 3), sync_())),
		newScript("a write in pieces", at("Z", parse("", "insert into t select g, 'x' from generate_series(10, 14) g returning id"), bind("p", ""), exec("p", 2), exec("p", 2), exec("p", 2), sync_())),
		newScript("a write in pieces, left open", at("Z", parse("", "insert into t select g, 'x' from generate_series(10, 14) g returning id"), bind("p", ""), exec("p", 2), sync_())),
		newScript("a function that writes, in pieces", at("Z", parse("", "select wr(g) from generate_series(10, 14) g"), bind("p", ""), exec("p", 2), sync_())),
		newScript("a portal over a savepoint", at("Z", q("begin")), at("Z", parse("", "select * from t order by id"), bind("p", ""), exec("p", 1), sync_()), at("Z", q("savepoint a")), at("Z", exec("p", 1), sync_()), at("Z", q("rollback to a")), at("Z", exec("p", 1), sync_()), at("Z", q("commit"))),
		newScript("a portal made in a savepoint", at("Z", q("begin")), at("Z", q("savepoint a")), at("Z", parse("", "select * from t order by id"), bind("p", ""), exec("p", 1), sync_()), at("Z", q("rollback to a")), at("Z", exec("p", 1), sync_()), at("Z", q("rollback"))),
		newScript("a cursor of sql by messages", at("Z", q("begin")), at("Z", q("declare c cursor for select * from t order by id")), at("Z", desc('P', "c"), exec("c", 1), sync_()), at("Z", exec("c", 0), sync_()), at("Z", shut('P', "c"), sync_()), at("Z", q("fetch c")), at("Z", q("rollback"))),
		newScript("a portal of messages by sql", at("Z", q("begin")), at("Z", parse("", "select * from t order by id"), bind("p", ""), sync_()), at("Z", q("fetch 2 from p")), at("Z", q("close p")), at("Z", exec("p", 0), sync_()), at("Z", q("rollback"))),
		newScript("a cursor for writing through", at("Z", q("begin")), at("Z", q("declare c cursor for select * from t order by id for update")), at("Z", q("fetch c")), at("Z", q("update t set v = 'cur' where current of c")), at("Z", q("commit"))),
		newScript("a binary cursor", at("Z", q("begin")), at("Z", q("declare c binary cursor for select id from t order by id")), at("Z", q("fetch 2 from c")), at("Z", q("fetch 1 from c; fetch 1 from c")), at("Z", q("commit"))),
		newScript("a cursor that holds, with a function that writes", at("Z", q("declare c cursor with hold for select wr(g) from generate_series(10, 12) g")), at("Z", q("fetch 2 from c")), at("Z", q("close c"))),
		newScript("a cursor that holds, over a commit", at("Z", q("begin; declare c cursor with hold for select * from t order by id; commit")), at("Z", q("fetch all from c")), at("Z", exec("c", 0), sync_())),
		newScript("a cursor outside a block by messages", at("Z", run("declare c cursor for select 1"), sync_())),
		newScript("describe of everything", at("Z", parse("a", "select 1 as x, 'y' as y"), desc('S', "a"), parse("b", "insert into t values ($1, $2)"), desc('S', "b"), parse("c", "insert into t values ($1, $2) returning id"), desc('S', "c"), parse("d", "begin"), desc('S', "d"), parse("e", "show work_mem"), desc('S', "e"), parse("f", "explain select 1"), desc('S', "f"), parse("g", "copy t to stdout"), desc('S', "g"), parse("h", "call twice($1)"), desc('S', "h"), parse("i", ""), desc('S', "i"), parse("j", "fetch all from cc"), desc('S', "j"), sync_()), at("Z", bind("pa", "a"), desc('P', "pa"), bind("pd", "d"), desc('P', "pd"), bind("pe", "e"), desc('P', "pe"), bind("pi", "i"), desc('P', "pi"), desc('P', "none"), sync_())),
		newScript("describe in a failed block", at("Z", parse("s", "select 1"), parse("c", "rollback"), sync_()), at("Z", q("begin")), at("Z", q("select 1/0")), at("Z", desc('S', "s"), sync_()), at("Z", desc('S', "c"), sync_()), at("Z", bind("", "s"), sync_()), at("Z", bind("", "c"), exec("", 0), sync_())),
		newScript("describe without execute", at("Z", parse("", "insert into t values (10, 'x') returning *"), desc('S', ""), sync_()), at("Z", parse("", "select nothing"), desc('S', ""), sync_())),
		newScript("zero columns", at("Z", parse("", "select from t"), desc('S', ""), bind("", ""), desc('P', ""), exec("", 2), exec("", 0), sync_()), at("Z", q("select from t")), at("Z", q("select; select"))),
		newScript("empty texts", at("Z", parse("", " "), desc('S', ""), bind("", ""), desc('P', ""), exec("", 0), exec("", 0), sync_()), at("Z", parse("", "-- only"), bind("", ""), exec("", 0), sync_()), at("Z", q("/* a /* b */ c */ ;")), at("Z", q("\t\n"))),
		newScript("empty texts in a block", at("Z", q("begin")), at("Z", q("")), at("Z", parse("", ""), bind("", ""), exec("", 0), sync_()), at("Z", q("select 1/0")), at("Z", q("")), at("Z", parse("", ""), bind("", ""), exec("", 0), sync_()), at("Z", q("rollback"))),
		newScript("more parameters than there are", at("Z", parse("", "insert into t values ($1, $2)"), bind("", "", "10"), exec("", 0), sync_()), at("Z", q("insert into t values ($1, $2)"))),
		newScript("bind that fails", at("Z", parse("s", "insert into t values ($1, $2)"), bind("", "s", "ten", "x"), exec("", 0), sync_()), at("Z", bind("", "s", "10", "x"), exec("", 0), sync_())),
	)
}

// bindAs is a Bind with formats for parameters and results.
func bindAs(portal, stmt string, paramFormats []int, params []string, resultFormats []int) []byte {
	body := append([]byte(portal+"\x00"), stmt+"\x00"...)
	add := func(n ...int) {
		for _, v := range n {
			body = binary.BigEndian.AppendUint16(body, uint16(v))
		}
	}
	add(len(paramFormats))
	add(paramFormats...)
	add(len(params))
	for _, p := range params {
		if p == "NULL" {
			body = append(body, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		body = binary.BigEndian.AppendUint32(body, uint32(len(p)))
		body = append(body, p...)
	}
	add(len(resultFormats))
	add(resultFormats...)
	return wiretest.Msg('B', body)
}

// TestProtocolFormats: binary and mixed formats, NULLs, large values.
func TestProtocolFormats(t *testing.T) {
	t.Parallel()
	four := string([]byte{0, 0, 0, 10})
	large := strings.Repeat("0123456789abcdef", 5<<16) // 5 MiB
	compareScripts(t,
		newScript("binary parameters and results", at("Z", parse("", "insert into t values ($1, $2) returning id, v"), bindAs("", "", []int{1, 0}, []string{four, "x"}, []int{1, 0}), desc('P', ""), exec("", 0), sync_())),
		newScript("all binary", at("Z", parse("", "select $1::int8, now() = now(), 1.5::float8, 'x'::bytea"), bindAs("", "", []int{1}, []string{"\x00\x00\x00\x00\x00\x00\x00\x07"}, []int{1}), exec("", 0), sync_())),
		newScript("nulls", at("Z", parse("", "insert into t values ($1, $2) returning v"), bindAs("", "", nil, []string{"10", "NULL"}, nil), exec("", 0), sync_()), at("Z", bindAs("", "", nil, []string{"NULL", "x"}, nil), exec("", 0), sync_())),
		newScript("wrong formats", at("Z", parse("", "select $1::int"), bindAs("", "", []int{7}, []string{"1"}, nil), sync_()), at("Z", bindAs("", "", []int{1}, []string{"1"}, nil), sync_()), at("Z", bindAs("", "", nil, []string{"1"}, []int{9}), exec("", 0), sync_()), at("Z", bindAs("", "", []int{1, 1, 1}, []string{"1"}, nil), sync_())),
		newScript("a large parameter", at("Z", parse("", "insert into t values (10, $1) returning length(v), md5(v)"), bind("", "", large), exec("", 0), sync_())),
		newScript("a large text", at("Z", q("insert into t values (10, '"+large+"') returning length(v), md5(v)"))),
		newScript("a large result", at("Z", q("select repeat('x', 5000000) from generate_series(1, 3)")), at("Z", run("select repeat('y', 5000000)"), sync_())),
		newScript("many columns", at("Z", q("select "+strings.TrimSuffix(strings.Repeat("1,", 1600), ",")))),
		newScript("many parameters", at("Z", parse("", "select count(*) from (values "+strings.TrimSuffix(strings.Repeat("(1),", 3000), ",")+") v"), bind("", ""), exec("", 0), sync_())),
		newScript("declared types", at("Z", wiretest.Msg('P', []byte("s\x00insert into t values ($1, $2)\x00"), []byte{0, 2, 0, 0, 0, 23, 0, 0, 0, 25}), desc('S', "s"), bind("", "s", "10", "x"), exec("", 0), sync_())),
		newScript("unknown types", at("Z", wiretest.Msg('P', []byte("s\x00select $1\x00"), []byte{0, 1, 0x7f, 0, 0, 1}), sync_())),
	)
}
