package protocol

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolPipelines: many Syncs in flight, Flush, errors until Sync, and
// Queries between extended messages.
func TestProtocolPipelines(t *testing.T) {
	t.Parallel()
	ins := func(id string) []byte { return Run("insert into t values ($1, 'x')", id) }
	many := func(n int) (b []byte) {
		for range n {
			b = append(b, Batch(Run("select 1"))...)
		}
		return b
	}
	compareScripts(t,
		newScript("twenty syncs in flight", at(strings.Repeat("Z", 20), many(20))),
		newScript("blocks over syncs in flight",
			at("ZZZZ", Run("begin"), Sync(), ins("10"), Sync(), ins("11"), Sync(), Run("commit"), Sync())),
		newScript("a failed block over syncs in flight",
			at("ZZZZZ", Run("begin"), Sync(), ins("10"), Sync(), Run("select 1/0"), Sync(), ins("11"), Sync(), Run("commit"), Sync())),
		newScript("failed, then the next batch commits",
			at("ZZ", ins("10"), Run("select 1/0"), ins("11"), Sync(), ins("12"), Sync())),
		newScript("a begin that is skipped",
			at("ZZ", Run("select 1/0"), Run("begin"), ins("10"), Sync(), ins("11"), Sync())),
		newScript("commit inside a batch",
			at("Z", Run("begin"), ins("10"), Run("commit"), ins("11"), Sync())),
		newScript("commit inside a batch, the rest fails",
			at("Z", Run("begin"), ins("10"), Run("commit"), ins("11"), Run("select 1/0"), Sync())),
		newScript("rollback inside a batch",
			at("Z", Run("begin"), ins("10"), Run("rollback"), ins("11"), Sync())),
		newScript("commit without a block", at("Z", ins("10"), Run("commit"), Run("select 1/0"), Sync())),
		newScript("savepoints in a pipeline",
			at("ZZZZZZ", Run("begin"), Sync(), Run("savepoint a"), Sync(), Run("select 1/0"), Sync(), Run("rollback to a"), Sync(), ins("10"), Sync(), Run("commit"), Sync())),
		newScript("a savepoint outside a block in a batch", at("Z", ins("10"), Run("savepoint a"), ins("11"), Sync())),
		newScript("flush brings what is there",
			at("C", ins("10"), Flush()), at("C", Run("select * from t order by id"), Flush()), at("Z", Sync())),
		newScript("flush in front of the first reply", at("1", Parse("", "select 1"), Flush()), at("2", Bind("", ""), Flush()), at("CZ", Exec("", 0), Sync())),
		newScript("an error comes without flush", at("E", Parse("", "select nothing")), at("Z", Sync())),
		newScript("an error of an execute comes without flush", at("E", ins("1")), at("Z", Sync())),
		newScript("nothing runs behind an error", at("E", ins("1")), at("", ins("10"), Q("insert into t values (11, 'x')"), Flush()), at("Z", Sync()), at("Z", Q("select 1"))),
		newScript("a query behind a failed batch is skipped until sync", at("ZZ", Run("select 1/0"), Q("insert into t values (10, 'x')"), Q("select 2"), Sync(), Q("select 3"))),
		newScript("queries and batches mixed", at("ZZZZ", Q("insert into t values (10, 'q')"), ins("11"), Sync(), Q("select 1/0"), ins("12"), Sync())),
		newScript("a query in an open batch", at("ZZ", ins("10"), Q("insert into t values (11, 'q')"), Sync())),
		newScript("a query that fails in an open batch", at("ZZ", ins("10"), Q("select 1/0"), Sync()), at("Z", Q("select count(*) from t"))),
		newScript("a batch of nothing but close", at("Z", Shut('S', "a"), Shut('P', "b"), Sync())),
		newScript("a function call in an open batch", at("ZZ", Parse("s", "insert into t values (10, 'x')"), fnCall(1610), Sync()), at("Z", Bind("", "s"), Exec("", 0), Sync()), at("Z", Q("select count(*) from t"))),
		newScript("deferred constraint at sync", at("ZZ", Run("insert into d values (1, 99)"), Sync(), Q("select count(*) from d"))),
		newScript("deferred constraint at a commit in a batch", at("Z", Run("begin"), Run("insert into d values (1, 99)"), Run("commit"), Run("select 1"), Sync())),
		newScript("set local in a batch", at("ZZ", Run("set local work_mem = '3MB'"), Run("show work_mem"), Sync(), Q("show work_mem"))),
		newScript("begin read write behind nothing", at("ZZZ", Run("begin isolation level serializable read write deferrable"), Sync(), Run("show transaction_isolation"), Sync(), Run("commit"), Sync())),
	)
}

// fnCall is a fast path call without arguments.
func fnCall(oid int) []byte {
	return wiretest.Msg('F', binary.BigEndian.AppendUint32(nil, uint32(oid)), []byte{0, 0, 0, 0, 0, 1})
}

// TestProtocolPortals: max_rows, cursors, and Describe of everything.
func TestProtocolPortals(t *testing.T) {
	t.Parallel()
	compareScripts(t,
		newScript("suspended and gone on", at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Exec("p", 1), Exec("p", 1), Exec("p", 0), Exec("p", 0), Sync())),
		newScript("suspended, then something else", at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Exec("p", 1), Run("insert into t values (10, 'x')"), Exec("p", 1), Sync())),
		newScript("suspended with exactly all rows", at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Exec("p", 3), Exec("p", 3), Sync())),
		newScript("a write in pieces", at("Z", Parse("", "insert into t select g, 'x' from generate_series(10, 14) g returning id"), Bind("p", ""), Exec("p", 2), Exec("p", 2), Exec("p", 2), Sync())),
		newScript("a write in pieces, left open", at("Z", Parse("", "insert into t select g, 'x' from generate_series(10, 14) g returning id"), Bind("p", ""), Exec("p", 2), Sync())),
		newScript("a function that writes, in pieces", at("Z", Parse("", "select wr(g) from generate_series(10, 14) g"), Bind("p", ""), Exec("p", 2), Sync())),
		newScript("a portal over a savepoint", at("Z", Q("begin")), at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Exec("p", 1), Sync()), at("Z", Q("savepoint a")), at("Z", Exec("p", 1), Sync()), at("Z", Q("rollback to a")), at("Z", Exec("p", 1), Sync()), at("Z", Q("commit"))),
		newScript("a portal made in a savepoint", at("Z", Q("begin")), at("Z", Q("savepoint a")), at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Exec("p", 1), Sync()), at("Z", Q("rollback to a")), at("Z", Exec("p", 1), Sync()), at("Z", Q("rollback"))),
		newScript("a cursor of sql by messages", at("Z", Q("begin")), at("Z", Q("declare c cursor for select * from t order by id")), at("Z", Desc('P', "c"), Exec("c", 1), Sync()), at("Z", Exec("c", 0), Sync()), at("Z", Shut('P', "c"), Sync()), at("Z", Q("fetch c")), at("Z", Q("rollback"))),
		newScript("a portal of messages by sql", at("Z", Q("begin")), at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Sync()), at("Z", Q("fetch 2 from p")), at("Z", Q("close p")), at("Z", Exec("p", 0), Sync()), at("Z", Q("rollback"))),
		newScript("a cursor for writing through", at("Z", Q("begin")), at("Z", Q("declare c cursor for select * from t order by id for update")), at("Z", Q("fetch c")), at("Z", Q("update t set v = 'cur' where current of c")), at("Z", Q("commit"))),
		newScript("a binary cursor", at("Z", Q("begin")), at("Z", Q("declare c binary cursor for select id from t order by id")), at("Z", Q("fetch 2 from c")), at("Z", Q("fetch 1 from c; fetch 1 from c")), at("Z", Q("commit"))),
		newScript("a cursor that holds, with a function that writes", at("Z", Q("declare c cursor with hold for select wr(g) from generate_series(10, 12) g")), at("Z", Q("fetch 2 from c")), at("Z", Q("close c"))),
		newScript("a cursor that holds, over a commit", at("Z", Q("begin; declare c cursor with hold for select * from t order by id; commit")), at("Z", Q("fetch all from c")), at("Z", Exec("c", 0), Sync())),
		newScript("a cursor outside a block by messages", at("Z", Run("declare c cursor for select 1"), Sync())),
		newScript("describe of everything", at("Z", Parse("a", "select 1 as x, 'y' as y"), Desc('S', "a"), Parse("b", "insert into t values ($1, $2)"), Desc('S', "b"), Parse("c", "insert into t values ($1, $2) returning id"), Desc('S', "c"), Parse("d", "begin"), Desc('S', "d"), Parse("e", "show work_mem"), Desc('S', "e"), Parse("f", "explain select 1"), Desc('S', "f"), Parse("g", "copy t to stdout"), Desc('S', "g"), Parse("h", "call twice($1)"), Desc('S', "h"), Parse("i", ""), Desc('S', "i"), Parse("j", "fetch all from cc"), Desc('S', "j"), Sync()), at("Z", Bind("pa", "a"), Desc('P', "pa"), Bind("pd", "d"), Desc('P', "pd"), Bind("pe", "e"), Desc('P', "pe"), Bind("pi", "i"), Desc('P', "pi"), Desc('P', "none"), Sync())),
		newScript("describe in a failed block", at("Z", Parse("s", "select 1"), Parse("c", "rollback"), Sync()), at("Z", Q("begin")), at("Z", Q("select 1/0")), at("Z", Desc('S', "s"), Sync()), at("Z", Desc('S', "c"), Sync()), at("Z", Bind("", "s"), Sync()), at("Z", Bind("", "c"), Exec("", 0), Sync())),
		newScript("describe without execute", at("Z", Parse("", "insert into t values (10, 'x') returning *"), Desc('S', ""), Sync()), at("Z", Parse("", "select nothing"), Desc('S', ""), Sync())),
		newScript("zero columns", at("Z", Parse("", "select from t"), Desc('S', ""), Bind("", ""), Desc('P', ""), Exec("", 2), Exec("", 0), Sync()), at("Z", Q("select from t")), at("Z", Q("select; select"))),
		newScript("empty texts", at("Z", Parse("", " "), Desc('S', ""), Bind("", ""), Desc('P', ""), Exec("", 0), Exec("", 0), Sync()), at("Z", Parse("", "-- only"), Bind("", ""), Exec("", 0), Sync()), at("Z", Q("/* a /* b */ c */ ;")), at("Z", Q("\t\n"))),
		newScript("empty texts in a block", at("Z", Q("begin")), at("Z", Q("")), at("Z", Parse("", ""), Bind("", ""), Exec("", 0), Sync()), at("Z", Q("select 1/0")), at("Z", Q("")), at("Z", Parse("", ""), Bind("", ""), Exec("", 0), Sync()), at("Z", Q("rollback"))),
		newScript("more parameters than there are", at("Z", Parse("", "insert into t values ($1, $2)"), Bind("", "", "10"), Exec("", 0), Sync()), at("Z", Q("insert into t values ($1, $2)"))),
		newScript("bind that fails", at("Z", Parse("s", "insert into t values ($1, $2)"), Bind("", "s", "ten", "x"), Exec("", 0), Sync()), at("Z", Bind("", "s", "10", "x"), Exec("", 0), Sync())),
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
		newScript("binary parameters and results", at("Z", Parse("", "insert into t values ($1, $2) returning id, v"), bindAs("", "", []int{1, 0}, []string{four, "x"}, []int{1, 0}), Desc('P', ""), Exec("", 0), Sync())),
		newScript("all binary", at("Z", Parse("", "select $1::int8, now() = now(), 1.5::float8, 'x'::bytea"), bindAs("", "", []int{1}, []string{"\x00\x00\x00\x00\x00\x00\x00\x07"}, []int{1}), Exec("", 0), Sync())),
		newScript("nulls", at("Z", Parse("", "insert into t values ($1, $2) returning v"), bindAs("", "", nil, []string{"10", "NULL"}, nil), Exec("", 0), Sync()), at("Z", bindAs("", "", nil, []string{"NULL", "x"}, nil), Exec("", 0), Sync())),
		newScript("wrong formats", at("Z", Parse("", "select $1::int"), bindAs("", "", []int{7}, []string{"1"}, nil), Sync()), at("Z", bindAs("", "", []int{1}, []string{"1"}, nil), Sync()), at("Z", bindAs("", "", nil, []string{"1"}, []int{9}), Exec("", 0), Sync()), at("Z", bindAs("", "", []int{1, 1, 1}, []string{"1"}, nil), Sync())),
		newScript("a large parameter", at("Z", Parse("", "insert into t values (10, $1) returning length(v), md5(v)"), Bind("", "", large), Exec("", 0), Sync())),
		newScript("a large text", at("Z", Q("insert into t values (10, '"+large+"') returning length(v), md5(v)"))),
		newScript("a large result", at("Z", Q("select repeat('x', 5000000) from generate_series(1, 3)")), at("Z", Run("select repeat('y', 5000000)"), Sync())),
		newScript("many columns", at("Z", Q("select "+strings.TrimSuffix(strings.Repeat("1,", 1600), ",")))),
		newScript("many parameters", at("Z", Parse("", "select count(*) from (values "+strings.TrimSuffix(strings.Repeat("(1),", 3000), ",")+") v"), Bind("", ""), Exec("", 0), Sync())),
		newScript("declared types", at("Z", wiretest.Msg('P', []byte("s\x00insert into t values ($1, $2)\x00"), []byte{0, 2, 0, 0, 0, 23, 0, 0, 0, 25}), Desc('S', "s"), Bind("", "s", "10", "x"), Exec("", 0), Sync())),
		newScript("unknown types", at("Z", wiretest.Msg('P', []byte("s\x00select $1\x00"), []byte{0, 1, 0x7f, 0, 0, 1}), Sync())),
	)
}
