package protocol

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

// long is a text beyond what the proxy reads.
var long = strings.Repeat("x", 1<<20)

// reads are scripts that write nothing.
func reads() []script {
	return []script{
		newScript("simple", at("Z", q("select * from t order by id")), at("Z", q("select 1; select 2")), at("Z", q("")), at("Z", q("select nothing")), at("Z", q("select 1; select nothing; select 2")), at("Z", q("selec"))),
		newScript("extended", at("Z", run("select * from t where id = $1", "2"), sync_()), at("ZZZ", run("select 1"), sync_(), run("select 1/0"), run("select 2"), sync_(), run("select 3"), sync_())),
		newScript("named", at("Z", parse("s", "select * from t where id = $1::int"), desc('S', "s"), sync_()), at("Z", bind("p", "s", "1"), desc('P', "p"), exec("p", 0), sync_()), at("Z", bind("", "s", "x"), sync_()), at("Z", shut('S', "s"), sync_())),
		newScript("in pieces", at("Z", parse("", "select * from t order by id"), bind("p", ""), exec("p", 1), exec("p", 1), exec("p", 9), sync_()), at("Z", q("begin")), at("Z", parse("", "select * from t order by id"), bind("p", ""), exec("p", 1), sync_()), at("Z", exec("p", 0), sync_()), at("Z", q("commit"))),
		newScript("flushed", at("C", run("select 1"), flush()), at("C", run("select 2"), flush()), at("E", run("select 1/0"), flush()), at("Z", run("select 3"), sync_())),
		newScript("blocks", at("Z", q("begin")), at("Z", q("select count(*) from t")), at("Z", q("savepoint a")), at("Z", q("select 1/0")), at("Z", q("select 1")), at("Z", q("rollback to a")), at("Z", q("select 2")), at("Z", q("commit and chain")), at("Z", q("select 3")), at("Z", q("rollback"))),
		newScript("blocks in one text", at("Z", q("begin; select 1; commit; select 2; begin; select 3; rollback; select nothing"))),
		newScript("isolation", at("Z", q("begin isolation level serializable read only deferrable")), at("Z", q("select count(*) from t")), at("Z", q("commit")), at("Z", q("begin; set transaction isolation level repeatable read")), at("Z", q("show transaction_isolation")), at("Z", q("commit"))),
		newScript("cursors", at("Z", q("begin; declare c scroll cursor for select * from t order by id")), at("Z", q("fetch 2 from c")), at("Z", q("move backward 1 in c")), at("Z", run("fetch all from c"), sync_()), at("Z", q("close c; commit")), at("Z", q("fetch c"))),
		newScript("copy out", at("Z", q("copy t to stdout")), at("Z", run("copy (select 1) to stdout"), sync_())),
		newScript("settings", at("Z", q("set application_name = 'x'")), at("Z", q("show application_name")), at("Z", run("set timezone = 'Asia/Tokyo'"), sync_()), at("Z", q("reset all")), at("Z", q("discard all")), at("Z", q("select 1"))),
		newScript("notices", at("Z", q("commit")), at("Z", q("set escape_string_warning = on; select E'it\\'s'"))),
		newScript("listen", at("Z", q("listen ch")), then(func(s *session) { s.sql("notify ch, 'x'") }), at("A"), at("Z", q("unlisten *"))),
		newScript("explain", at("Z", q("explain (costs off) select * from t")), at("Z", run("explain (costs off) select * from t"), sync_())),
		newScript("seen", at("Z", q("select current_query()")), at("Z", run("select current_query()"), sync_())),
		newScript("ends", at("$", q("select 1"), run("select 2"), sync_(), wiretest.Terminate())),
	}
}

// TestProtocolReadsOfFollowers: who does not lead reads as from Postgres.
func TestProtocolReadsOfFollowers(t *testing.T) {
	t.Parallel()
	compareAs(t, pgtest.SharedMajor(t, 18), "follower", nil, reads()...)
}

// TestProtocolLongNamesOfFollowers: the server keeps 63 bytes of a name, and names that
// differ only after them are one.
func TestProtocolLongNamesOfFollowers(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		var scripts []script
		for _, n := range []string{long70[:62], long70[:63], long70[:64], long70} {
			use := at("Z", desc('S', n), bind(n, n), exec(n, 0), sync_())
			scripts = append(scripts, newScript(fmt.Sprintf("%d bytes", len(n)),
				at("Z", parse(n, "select 1"), bind("", n), exec("", 0), sync_()), use,
				at("Z", shut('S', n), parse(n, "select 3"), sync_()), use,
				at("Z", q("deallocate "+n)), at("Z", parse(n, "select 4"), sync_()), use))
		}
		compareAs(t, pg, "follower", nil, append(scripts,
			newScript("taken", at("Z", parse(long70[:63], "select 1"), sync_()), at("Z", parse(long70, "select 2"), sync_())),
			newScript("closed by another end", at("Z", parse(long70, "select 1"), sync_()),
				at("Z", shut('S', long70+"x"), parse(long70+"y", "select 2"), bind("", long70+"z"), exec("", 0), sync_())),
			newScript("not ASCII after 63 bytes", at("Z", parse(long70+"é", "select 1"), sync_()), at("Z", bind("", long70+"ü"), exec("", 0), sync_())),
		)...)
	})
}

// TestProtocolUnreadByFollowers: what cannot be read may be a write, so who does
// not lead is refused it, though Postgres would have run it or said 26000.
func TestProtocolUnreadByFollowers(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	fixture.LeaderConn(t, p, db)
	c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "follower")
	fixture.MustPass(t, c, q("prepare p as select 1"))
	fixture.MustPass(t, c, parse("s", "select 1"), sync_())
	fixture.MustFail(t, c, "42P05", parse("s", "select 1"), sync_())
	for name, sent := range map[string][]byte{
		"a prepared statement by SQL": q("execute p"), "a name nobody prepared": cat(bind("", "nope"), sync_()),
		"a name outside ASCII": cat(parse("é", "select 1"), bind("", "é"), sync_()), "a name that was given again": cat(bind("", "s"), sync_()),
		"text longer than what is read": q("select 1; select 2 -- " + long),
	} {
		if state := wiretest.ErrorOf(fixture.MustFail(t, c, "ZF002", sent)); state != "ZF002" {
			t.Errorf("%s: %s", name, state)
		}
	}
	fixture.MustPass(t, c, q("set standard_conforming_strings = off"))
	fixture.MustFail(t, c, "ZF002", q(`select 'it\'s'`))
	fixture.MustPass(t, c, q(`select 'its'`))
}

// TestProtocolProvenReads: a leader whose proven reads go unchecked sees no other
// replies, in reads and around them.
func TestProtocolProvenReads(t *testing.T) {
	t.Parallel()
	around := []script{
		newScript("reads and writes in flight", at("ZZZZ", run("select 1"), sync_(), run("insert into t values (10, 'x')"), sync_(), q("select 2"), q("insert into t values (11, 'x')"))),
		newScript("a read, then a write in one batch", at("Z", run("select * from t order by id"), run("insert into t values (10, 'x')"), run("select * from t order by id"), sync_())),
		newScript("a read that is a write, then a query", at("ZZ", parse("s", "select 1"), q("insert into t values (10, 'x')"), sync_()), at("Z", q("select count(*) from t"))),
		newScript("begin behind a read", at("Z", run("select 1"), run("begin"), run("insert into t values (10, 'x')"), sync_()), at("Z", q("commit"))),
		newScript("functions that write", at("Z", q("select wr(10)")), at("Z", run("select wr(11)"), sync_()), at("Z", q("select * from w"))),
	}
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		compareAs(t, pg, "w", func(c *proxy.Config) {
			c.Policy = func(fencing.JoinRequest) proxy.SessionPolicy { return proxy.SessionPolicy{ProvenReads: true} }
		}, append(reads(), around...)...)
	})
}

// TestProtocolOfNewServers: what only newer servers know.
func TestProtocolOfNewServers(t *testing.T) {
	t.Parallel()
	ins := "insert into t values (10, 'x')"
	compareAs(t, pgtest.SharedMajor(t, 18), "w", nil,
		// All in one write, so that the time goes by where the client waits.
		newScript("a transaction for too long", at("$", q("begin"), q(ins), q("set transaction_timeout = '1s'"))),
		newScript("a transaction for too long, while it runs", at("Z", q("set transaction_timeout = '500ms'")), at("$", q("select pg_sleep(60)"))),
		newScript("old and new", at("Z", q("insert into t values (10, 'x') returning old.id, new.id")), at("Z", q("update t set v = 'y' where id = 10 returning old.v, new.v"))),
		newScript("merge with returning", at("Z", q("merge into t using (values (10)) s (i) on t.id = s.i when not matched then insert values (s.i, 'm') returning merge_action(), t.*"))),
		newScript("copy with errors ignored", at("G", q("copy t from stdin (on_error ignore, log_verbosity verbose)")), at("Z", wiretest.CopyData("bad\tx\n80\ty\n"), wiretest.CopyDone()), at("Z", q("select count(*) from t"))),
		newScript("json and virtual columns", at("Z", q("create table g (a int, b int generated always as (a * 2) virtual); insert into g values (2); select json_object('b': b) from g"))),
		newScript("pipelined with close", at("ZZ", run(ins), shut('P', ""), shut('S', ""), sync_(), run("select 1"), sync_())),
	)
}

// TestProtocolErrorsOfTheCheckStandInTheirPlace: what a refused worker gets is
// what Postgres would say, had the check been a statement that fails.
func TestProtocolErrorsOfTheCheckStandInTheirPlace(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		fixture.MustExec(t, fixture.LeaderConn(t, p, db), "create table t (id int)")
		c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "follower")
		const ins = "insert into t values (1)"
		for _, s := range []struct {
			sent []byte
			want string // types of the replies
		}{
			{q(ins), "EZ"}, {q("show work_mem; " + ins + "; select 1"), "TDCEZ"}, {q("begin; " + ins + "; commit"), "CEZ"}, {q("rollback"), "CZ"},
			{cat(run(ins), sync_()), "EZ"}, {cat(run("begin"), run(ins), run("commit"), sync_()), "12nCEZ"}, {q("rollback"), "CZ"},
			{cat(run("show work_mem"), run(ins), run("select 1"), sync_(), run("show work_mem"), sync_()), "12TDCEZ12TDCZ"},
			{cat(run(ins), q("select 1"), sync_(), q("show work_mem")), "EZTDCZ"},
			{cat(q("copy t from stdin"), wiretest.CopyData("1\n"), wiretest.CopyDone(), q("show work_mem")), "EZTDCZ"},
			{cat(parse("", "copy t from stdin"), bind("", ""), exec("", 0), wiretest.CopyData("1\n"), wiretest.CopyDone(), sync_()), "EZ"},
			{fnCall(1610), "EZ"}, {cat(fnCall(1610), q("show work_mem")), "EZTDCZ"}, {cat(parse("s", ins), desc('S', "s"), flush(), sync_()), "EZ"},
			{q("prepare transaction 'x'"), "EZ"}, {q("vacuum t"), "EZ"}, {q("call p()"), "EZ"}, {q("listen ch; " + ins), "CEZ"},
		} {
			c.Send(s.sent)
			var got strings.Builder
			for range strings.Count(s.want, "Z") {
				for _, m := range c.Until('Z') {
					if got.WriteByte(m.Type); m.Type == 'E' && !strings.HasPrefix(m.Fields()['C'], "ZF") {
						t.Errorf("%q: %v", s.sent, m)
					}
				}
			}
			if got.String() != s.want {
				t.Errorf("%q: replies %s, want %s", s.sent, got.String(), s.want)
			}
		}
		if n := fixture.FirstValue(t, c.Exec("select count(*) from t")); n != "0" {
			t.Errorf("%s rows, want none", n)
		}
	})
}

// TestProtocolDifferencesThatRemain: what docs/protocol.md says of a leader.
func TestProtocolDifferencesThatRemain(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		params := []string{"user", pgtest.App, "database", db}
		direct, _ := wiretest.Connect(t, p.PG.Addr(), params...)
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int)")
		for _, conn := range []*wiretest.Conn{direct, c} {
			fixture.MustExec(t, conn, "prepare times as select now() = statement_timestamp()")
			fixture.MustExec(t, conn, "prepare cursors as select count(*) from pg_cursors")
		}
		for _, s := range []struct {
			name      string
			sent      []byte
			z         int
			want, got string // a word of the replies
		}{
			{"PREPARE among others", cat(q("prepare a as select 1; select 2"), q("select statement from pg_prepared_statements where name = 'a'")), 2, "Dprepare a as", "DEXECUTE fencepost_check_"},
			{"the text of a query, which a function shows", cat(q("create or replace function shown() returns text language plpgsql as $$begin return current_query(); end$$"), q("select shown()")), 2,
				"Dselect shown()", ";select shown()"},
			{"times of a query that goes as messages", q("execute times"), 1, "Dt", "Df"},
			{"a parameter in a DECLARE", q("declare c cursor with hold for select $1::int"), 1, "42P02", "08P01"},
			{"cursors, listed by a query that goes as messages", q("execute cursors"), 1, "D0", "D1"},
			{"a function that runs what must be alone", cat(q("create or replace function v() returns int language plpgsql as $$begin execute 'vacuum t'; return 1; end$$"), q("select v()")), 2,
				"25001 VACUUM cannot be executed from a function", "25001 VACUUM cannot run inside a transaction block"},
			{"a function that frees a name", cat(parse("freed", "set a.b = 'x'"), sync_(),
				q("create or replace function free() returns int language plpgsql as $$begin execute 'deallocate freed'; return 1; end$$"), q("select free()")), 3, "D1", "D1"},
			{"a prepared SET", cat(parse("set", "set a.b = 'x'"), sync_(), q("select 1")), 2, "D1", "D1"},
			{"it, described where nobody knows yet of a failure", cat(q("begin; select 1/0"), wiretest.Describe('S', "set"), sync_(), q("rollback")), 3, "22012 division by zeroROLLBACK", "25P02"},
			{"plans of a prepared SET", cat(q("select 1"), bind("", "set"), exec("", 0), sync_(), q("select 40 + generic_plans from pg_prepared_statements where name = 'set'")), 3, "D41", "D40"},
			{"names in debug messages", cat(q("set client_min_messages = debug2"), run("insert into t values (1)"), sync_(), q("reset client_min_messages")), 3, "bind <unnamed> to <unnamed>", "to fencepost_check_"},
			{"the freed name", cat(bind("", "freed"), exec("", 0), sync_()), 1, "26000 prepared statement \"freed\" does not exist", "SET"},
		} {
			for conn, want := range map[*wiretest.Conn]string{direct: s.want, c: s.got} {
				conn.Send(s.sent)
				var said strings.Builder
				for range s.z {
					for _, m := range conn.Until('Z') {
						switch m.Type {
						case 'E', 'N':
							said.WriteString(m.Fields()['C'] + " " + m.Fields()['M'])
						case 'D':
							said.WriteString("D" + strings.Join(values(m), ""))
						case 'C':
							said.Write(m.Body)
						}
					}
				}
				if !strings.Contains(said.String(), want) {
					t.Errorf("%s: %q, want %q in it", s.name, said.String(), want)
				}
			}
		}
	})
}

// TestProtocolAParameterOfPLpgSQL is D35: a check may load PL/pgSQL, which Postgres does when the session first
// needs it.
func TestProtocolAParameterOfPLpgSQL(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		direct, _ := wiretest.Connect(t, p.PG.Addr(), "user", pgtest.App, "database", db)
		c := fixture.LeaderConn(t, p, db)
		fixture.MustExec(t, c, "create table t (id int)")
		for conn, want := range map[*wiretest.Conn]string{direct: "", c: "42501"} {
			conn.Send(q("set plpgsql.variable_conflict = error"), q("begin isolation level repeatable read"), q("insert into t values (1)"), q("commit"))
			said := ""
			for range 4 {
				for _, m := range conn.Until('Z') {
					if m.Type == 'E' || m.Type == 'N' {
						said += m.Fields()['C']
					}
				}
			}
			if said != want {
				t.Errorf("errors and notices: %q, want %q", said, want)
			}
		}
	})
}

// values are the texts of a DataRow.
func values(m wiretest.Message) (all []string) {
	for b := m.Body[2:]; len(b) >= 4; {
		n := int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3])
		all = append(all, string(b[4:4+n]))
		b = b[4+n:]
	}
	return all
}
