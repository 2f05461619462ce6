package protocol_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// tables are what the tests read and try to write.
const tables = `
create table c (id int primary key, v text); insert into c values (1, 'one'), (2, 'two');
create table t (id serial primary key, v text);
create table big (a int, v text); insert into big select i, repeat('x', 200) from generate_series(1, 3000) i;
alter table c set (autovacuum_enabled = off); alter table t set (autovacuum_enabled = off); alter table big set (autovacuum_enabled = off);
create type mood as enum ('sad', 'ok');
grant all on all tables in schema public to public; grant all on all sequences in schema public to public;
grant create on schema public to public`

// script is what a client sends, step by step: each is answered before the next.
type script struct {
	name    string
	steps   [][]byte
	reports bool // when parameters are reported does not matter
}

func of(name string, steps ...[]byte) script { return script{name: name, steps: steps} }

// scripts read only, and in every way.
func scripts() []script {
	q := func(sql string) script { return of(sql, Q(sql)) }
	x := func(sql string, params ...string) script {
		return of("extended "+sql, Batch(Run(sql, params...)))
	}
	all := []script{
		q(""), q(";"), q("-- nothing"), q("select 1"), q("select * from c order by id"), q("select * from big"), q("values (1), (2)"), q("table c"),
		q("select 1; select 2"), q("select 1; select 1/0; select 2"), q("selec 1"), q("select 'abc"), q("select ("), q("select 1 /* open"),
		q("select 1;\nselect 'ä' fro"), q("explain select * from c"), q("explain (costs off, format json) select 1"), q("show work_mem"), q("set work_mem = '2MB'"), q("set work_mem = 'x'"),
		q("copy c to stdout"), q("copy (select * from big) to stdout"), q("copy (select 1/0) to stdout"), q("copy c to stdout binary"),
		q("savepoint a"), q("commit"), q("rollback"), q("select 1; commit; select 2"), q("begin; select 1; commit; select 2; selec"),
		q("select 1; commit; select 1/0; select 3"), q("begin; select 1; rollback; begin; select 2; commit"), q("select 'ä'; commit; select nothing from c"),
		q("reset work_mem"), q("listen ch"), q("unlisten *"), q("select now() = now()"), q("select pg_typeof($1)"), q("fetch 1 from nothing"),
		x("select 1"), x("select $1::int + 1", "41"), x("select * from c where id = $1", "1"), x("select * from c where id = $1", "x"), x("select 1/0"), x("selec"), x("show work_mem"), x("copy c to stdout"), x("begin"),
		of("blocks", Q("begin"), Q("select * from c"), Q("savepoint a"), Q("select 1/0"), Q("select 1"), Q("rollback to a"), Q("select 2"), Q("release a"), Q("commit"), Q("select 3")),
		of("failed block", Q("begin"), Q("select 1/0"), Q("insert into c values (3, 'x')"), Q("notify x"), Batch(Run("select 1")), Q("commit"), Q("select 1")),
		of("failed block, ended in a text", Q("begin"), Q("select 1/0"), Q("select 1; rollback"), Q("rollback; select 1; begin; select 2"), Q("end")),
		of("chain", Q("begin isolation level repeatable read"), Q("select 1"), Q("commit and chain"), Q("show transaction_isolation"), Q("rollback and chain"), Q("select 1; rollback and chain; select 2"), Q("commit")),
		of("isolation", Q("begin"), Q("set transaction isolation level serializable"), Q("select 1"), Q("show transaction_isolation"), Q("set transaction isolation level read committed"), Q("rollback")),
		of("isolation in begin", Q("begin isolation level serializable, read only, deferrable"), Q("select 1"), Q("commit")),
		of("read write", Q("begin read write"), Q("set transaction isolation level serializable"), Q("select 1"), Q("show transaction_isolation"), Q("savepoint a"), Q("select 1/0"), Q("rollback to a"), Q("select 2"), Q("commit")),
		of("read write in a text", Q("start transaction isolation level repeatable read, read write; select 1; show transaction_isolation; commit; select 2"), Q("begin read write; select 1; select 1/0; commit"), Q("rollback")),
		of("read write in a batch", Batch(Run("begin read write")), Batch(Run("select 1"), Run("select 2")), Batch(Run("commit"))),
		of("read write, set", Q("begin"), Q("set transaction read write"), Q("select 1"), Q("commit"), Q("begin"), Q("set transaction isolation level repeatable read, read write"), Batch(Run("select 1")), Q("commit")),
		of("cursor", Q("begin"), Q("declare k cursor for select * from big"), Q("fetch 3 from k"), Q("move 2 from k"), Q("fetch backward 1 from k"), Q("close k"), Q("fetch 1 from k"), Q("rollback")),
		of("cursor with hold", Q("declare k cursor with hold for select * from c order by id"), Q("fetch 1 from k"), Q("close all")),
		of("portal in steps", Cat(Q("begin"), Parse("", "select * from c order by id"), Bind("p", ""), Exec("p", 1), Sync()), Batch(Exec("p", 1)), Batch(Exec("p", 0)), Batch(Exec("p", 0), Shut('P', "p")), Q("commit")),
		of("named", Batch(Parse("s", "select $1::int"), Desc('S', "s")), Batch(Bind("", "s", "1"), Desc('P', ""), Exec("", 0)), Batch(Bind("", "s", "2"), Exec("", 0), Bind("", "s", "3"), Exec("", 0)), Batch(Parse("s", "select 1")), Batch(Shut('S', "s")), Batch(Bind("", "s", "1"), Exec("", 0)), Batch(Parse("s", "select 'x'")), Batch(Bind("", "s"), Exec("", 0))),
		of("named transactions", Batch(Parse("b", "begin"), Parse("c", "commit"), Parse("r", "select 1")), Batch(Bind("", "b"), Exec("", 0), Bind("", "r"), Exec("", 0)), Batch(Bind("", "r"), Exec("", 0), Bind("", "c"), Exec("", 0)), Q("select 2")),
		of("pipeline", Batch(Run("select 1"), Run("select 2"), Run("select * from c"), Run("select 3"))),
		of("pipeline of batches", Cat(Batch(Run("select 1")), Batch(Run("select 1/0"), Run("select 2")), Q("select 3"), Batch(Run("begin")), Q("select 4"), Batch(Run("commit")))),
		of("pipeline with begin", Batch(Run("begin"), Run("select 1"), Run("commit"))),
		of("pipeline with an error", Batch(Run("select 1"), Run("select 1/0"), Run("select 2"), Run("commit"), Run("select 3"))),
		// pgjdbc, with autosave and with a fetch size; bun and go-pg, after a statement was closed
		of("a Query ends a batch with BEGIN", Cat(Parse("", "begin"), Bind("", ""), Exec("", 0), Q("savepoint a")), Batch(Run("select 1")), Q("rollback to a"), Q("commit")),
		of("a Query ends a batch that has closed", Batch(Parse("s", "select 1"), Bind("p", "s"), Exec("p", 0)), Cat(Shut('P', "p"), Q("select 1")), Cat(Shut('S', "s"), Flush(), Q("select 2")), Cat(Shut('S', "s"), Q("begin; select 3; commit; select 4"))),
		of("a Query ends a batch that has read", Cat(Run("select 1"), Run("select 2"), Q("select 3"), Run("select 4"), Q("selec"), Run("select 5"), Sync())),
		of("a Query ends a batch in a failed block", Q("begin"), Q("select 1/0"), Cat(Shut('S', "s"), Q("select 1")), Q("rollback")),
		of("back to a savepoint in a batch", Q("begin"), Q("savepoint a"), Q("select 1/0"), Batch(Run("rollback to a"), Run("release a")), Q("select 1"), Q("commit")),
		of("after the end in a batch", Q("begin"), Batch(Run("rollback"), Run("deallocate all")), Q("begin"), Batch(Run("commit"), Run("commit")), Q("select 1")),
		of("syncs", Cat(Sync(), Sync(), Flush(), Sync())),
		of("close what is not there", Batch(Shut('S', "x"), Shut('P', "y"))),
		of("describe what is not there", Batch(Desc('S', "x"))),
		of("several statements in a Parse", Batch(Parse("", "select 1; select 2"), Bind("", ""), Exec("", 0))),
		of("copy data out of place", Cat(Q("select 1"), wiretest.CopyData("x"), wiretest.CopyDone(), Q("select 2"))),
		of("settings", Q("set application_name = 'x'"), Q("set extra_float_digits = 0; select 0.1::float8; reset extra_float_digits"), Q("set client_encoding = latin1"), Q("select chr(228)"), Q("reset client_encoding"), Q("begin"), Q("set datestyle = german"), Q("rollback"), Q("reset all"), Q("select 1"), Q("discard all"), Q("select 2"), Batch(Run("discard all")), Q("discard plans; select 1")),
		of("inert", Cat(wiretest.Msg('Q', []byte("select 1\x00x")), Q("select 1"))),
		of("long text", Q("select '"+strings.Repeat("x", 5000)+"'"), Batch(Run("select length('"+strings.Repeat("y", 70000)+"')"))),
		of("enum", Batch(Run("select 'ok'::mood, enum_range(null::mood)"))),
		of("commit behind a part that fails", Q("begin"), Q("select 1; commit; select 2; select 1/0; select 3"), Q("select 4")),
		of("a positioned error in a later part", Q("begin; select 1; commit; select x from c")),
	}
	return all
}

// since16 are scripts of what is proven before 16 only in part.
func since16() []script {
	q := func(sql string) script { return of(sql, Q(sql)) }
	return []script{
		q("select * from nothing"), of("extended from nothing", Batch(Run("select * from nothing"))),
		of("insert that is wrong", Q("insert into nothing values (1)"), Q("insert into c (nothing) values (1)"), Q("insert into c values (1, ("), Batch(Run("update c set x = 1"))),
		of("prepared insert, described", Batch(Parse("s", "insert into c values ($1, $2) returning id"), Desc('S', "s"))),
		of("prepare and execute", Q("prepare p as select * from c where id = $1"), Q("execute p(1)"), Q("execute p(1); execute p(2)"), Q("deallocate p"), Q("execute p(1)"), Q("select name from pg_prepared_statements")),
		of("constraints", Q("begin"), Q("set constraints all deferred"), Q("set constraints all immediate"), Q("commit")),
		of("functions", Q("select pg_advisory_lock(1), pg_advisory_unlock(1)"), Q("select current_setting('work_mem')"), Q("select set_config('work_mem', '3MB', false)"), Q("show work_mem"), Q("do_nothing")),
		of("function in a pipeline", Batch(Run("select set_config('work_mem', '4MB', true)"), Run("show work_mem"))),
	}
}

// TestRepliesAreThoseOfPostgres compares each reply with that of a direct connection, byte by byte.
func TestRepliesAreThoseOfPostgres(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		h.exec(tables)
		h.readCatalog()
		all := scripts()
		if h.major >= 16 {
			all = append(all, since16()...)
		}
		want := make([][]string, len(all))
		for i, pieces := range []int{0, 0, 1, 7} {
			h.lazy.Store(i == 1)
			h.pieces.Store(int32(pieces))
			for j, s := range all {
				if pieces == 1 && strings.Contains(s.name, "big") {
					continue
				}
				t.Run(fmt.Sprintf("%.40s", s.name), func(t *testing.T) {
					h.in(t)
					if want[j] == nil {
						want[j] = s.run(h.direct())
					}
					s.compare(t, want[j], s.run(h.connect()))
				})
			}
		}
		if len(h.rejected) > 0 || len(h.errs) > 0 {
			t.Errorf("refused %v, errors %v", h.rejected, h.errs)
		}
	})
}

// run returns what each step is answered.
func (s script) run(c *wiretest.Conn) (all []string) {
	for _, step := range s.steps {
		all = append(all, strings.Join(answers(c, step, s.reports), "\n"))
	}
	return all
}

func (s script) compare(t *testing.T, want, got []string) {
	t.Helper()
	for i, step := range s.steps {
		if want[i] != got[i] {
			t.Errorf("step %d (%.80q): got\n%.1500s\nwant\n%.1500s", i, step, got[i], want[i])
		}
	}
}

// answers sends messages and returns the replies up to the last ReadyForQuery that they are owed.
func answers(c *wiretest.Conn, messages []byte, reports bool) (all []string) {
	c.Send(messages)
	for range owed(messages) {
		for _, m := range c.Until('Z') {
			if body := string(m.Body); m.Type == 'S' && (reports || strings.HasPrefix(body, "default_transaction_read_only\x00") || strings.HasPrefix(body, "fencepost.")) {
				continue
			}
			if m.Type == 'E' || m.Type == 'N' {
				m.Body = sourceLine.ReplaceAll(m.Body, nil)
			}
			all = append(all, fmt.Sprintf("%c %q", m.Type, m.Body))
		}
	}
	return all
}

// sourceLine is the line of the server's source, the only thing that differs where a text is sent in parts
// (a COMMIT outside a block), or with a word after it (a syntax error at its end).
var sourceLine = regexp.MustCompile("\x00L[0-9]+")

// owed is how many ReadyForQuery messages answer messages.
func owed(messages []byte) (n int) {
	for len(messages) > 0 {
		if messages[0] == 'Q' || messages[0] == 'S' || messages[0] == 'F' {
			n++
		}
		messages = messages[1+int(messages[1])<<24+int(messages[2])<<16+int(messages[3])<<8+int(messages[4]):]
	}
	return n
}
