package protocol

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// long is a text beyond what the proxy reads.
var long = strings.Repeat("x", 1<<20)

// reads are scripts that write nothing.
func reads() []script {
	return []script{
		newScript("simple", at("Z", Q("select * from t order by id")), at("Z", Q("select 1; select 2")), at("Z", Q("")), at("Z", Q("select nothing")), at("Z", Q("select 1; select nothing; select 2")), at("Z", Q("selec"))),
		newScript("extended", at("Z", Run("select * from t where id = $1", "2"), Sync()), at("ZZZ", Run("select 1"), Sync(), Run("select 1/0"), Run("select 2"), Sync(), Run("select 3"), Sync())),
		newScript("named", at("Z", Parse("s", "select * from t where id = $1::int"), Desc('S', "s"), Sync()), at("Z", Bind("p", "s", "1"), Desc('P', "p"), Exec("p", 0), Sync()), at("Z", Bind("", "s", "x"), Sync()), at("Z", Shut('S', "s"), Sync())),
		newScript("in pieces", at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Exec("p", 1), Exec("p", 1), Exec("p", 9), Sync()), at("Z", Q("begin")), at("Z", Parse("", "select * from t order by id"), Bind("p", ""), Exec("p", 1), Sync()), at("Z", Exec("p", 0), Sync()), at("Z", Q("commit"))),
		newScript("flushed", at("C", Run("select 1"), Flush()), at("C", Run("select 2"), Flush()), at("E", Run("select 1/0"), Flush()), at("Z", Run("select 3"), Sync())),
		newScript("blocks", at("Z", Q("begin")), at("Z", Q("select count(*) from t")), at("Z", Q("savepoint a")), at("Z", Q("select 1/0")), at("Z", Q("select 1")), at("Z", Q("rollback to a")), at("Z", Q("select 2")), at("Z", Q("commit and chain")), at("Z", Q("select 3")), at("Z", Q("rollback"))),
		newScript("blocks in one text", at("Z", Q("begin; select 1; commit; select 2; begin; select 3; rollback; select nothing"))),
		newScript("isolation", at("Z", Q("begin isolation level serializable read only deferrable")), at("Z", Q("select count(*) from t")), at("Z", Q("commit")), at("Z", Q("begin; set transaction isolation level repeatable read")), at("Z", Q("show transaction_isolation")), at("Z", Q("commit"))),
		newScript("cursors", at("Z", Q("begin; declare c scroll cursor for select * from t order by id")), at("Z", Q("fetch 2 from c")), at("Z", Q("move backward 1 in c")), at("Z", Run("fetch all from c"), Sync()), at("Z", Q("close c; commit")), at("Z", Q("fetch c"))),
		newScript("copy out", at("Z", Q("copy t to stdout")), at("Z", Run("copy (select 1) to stdout"), Sync())),
		newScript("settings", at("Z", Q("set application_name = 'x'")), at("Z", Q("show application_name")), at("Z", Run("set timezone = 'Asia/Tokyo'"), Sync()), at("Z", Q("reset all")), at("Z", Q("discard all")), at("Z", Q("select 1"))),
		newScript("notices", at("Z", Q("commit")), at("Z", Q("set escape_string_warning = on; select E'it\\'s'"))),
		newScript("listen", at("Z", Q("listen ch")), then(func(s *session) { s.sql("notify ch, 'x'") }), at("A"), at("Z", Q("unlisten *"))),
		newScript("explain", at("Z", Q("explain (costs off) select * from t")), at("Z", Run("explain (costs off) select * from t"), Sync())),
		newScript("seen", at("Z", Q("select current_query()")), at("Z", Run("select current_query()"), Sync())),
		newScript("ends", at("$", Q("select 1"), Run("select 2"), Sync(), wiretest.Terminate())),
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
			use := at("Z", Desc('S', n), Bind(n, n), Exec(n, 0), Sync())
			scripts = append(scripts, newScript(fmt.Sprintf("%d bytes", len(n)),
				at("Z", Parse(n, "select 1"), Bind("", n), Exec("", 0), Sync()), use,
				at("Z", Shut('S', n), Parse(n, "select 3"), Sync()), use,
				at("Z", Q("deallocate "+n)), at("Z", Parse(n, "select 4"), Sync()), use))
		}
		compareAs(t, pg, "follower", nil, append(scripts,
			newScript("taken", at("Z", Parse(long70[:63], "select 1"), Sync()), at("Z", Parse(long70, "select 2"), Sync())),
			newScript("closed by another end", at("Z", Parse(long70, "select 1"), Sync()),
				at("Z", Shut('S', long70+"x"), Parse(long70+"y", "select 2"), Bind("", long70+"z"), Exec("", 0), Sync())),
			newScript("not ASCII after 63 bytes", at("Z", Parse(long70+"é", "select 1"), Sync()), at("Z", Bind("", long70+"ü"), Exec("", 0), Sync())),
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
	fixture.MustPass(t, c, Q("prepare p as select 1"))
	fixture.MustPass(t, c, Parse("s", "select 1"), Sync())
	fixture.MustFail(t, c, "42P05", Parse("s", "select 1"), Sync())
	for name, sent := range map[string][]byte{
		"text longer than what is read": Q("select 1; select 2 -- " + long),
	} {
		if state := wiretest.ErrorOf(fixture.MustFail(t, c, "ZF002", sent)); state != "ZF002" {
			t.Errorf("%s: %s", name, state)
		}
	}
	fixture.MustPass(t, c, Q("set standard_conforming_strings = off"))
	fixture.MustFail(t, c, "ZF002", Q(`select 'it\'s'`))
	fixture.MustPass(t, c, Q(`select 'its'`))
}

// TestProtocolOfNewServers: what only newer servers know.
func TestProtocolOfNewServers(t *testing.T) {
	t.Parallel()
	ins := "insert into t values (10, 'x')"
	compareAs(t, pgtest.SharedMajor(t, 18), "w", nil,
		// All in one write, so that the time goes by where the client waits.
		newScript("a transaction for too long", at("$", Q("begin"), Q(ins), Q("set transaction_timeout = '2s'"))),
		newScript("a transaction for too long, while it runs", at("Z", Q("set transaction_timeout = '2s'")), at("$", Q("select pg_sleep(60)"))),
		newScript("old and new", at("Z", Q("insert into t values (10, 'x') returning old.id, new.id")), at("Z", Q("update t set v = 'y' where id = 10 returning old.v, new.v"))),
		newScript("merge with returning", at("Z", Q("merge into t using (values (10)) s (i) on t.id = s.i when not matched then insert values (s.i, 'm') returning merge_action(), t.*"))),
		newScript("copy with errors ignored", at("G", Q("copy t from stdin (on_error ignore, log_verbosity verbose)")), at("Z", wiretest.CopyData("bad\tx\n80\ty\n"), wiretest.CopyDone()), at("Z", Q("select count(*) from t"))),
		newScript("json and virtual columns", at("Z", Q("create table g (a int, b int generated always as (a * 2) virtual); insert into g values (2); select json_object('b': b) from g"))),
		newScript("pipelined with close", at("ZZ", Run(ins), Shut('P', ""), Shut('S', ""), Sync(), Run("select 1"), Sync())),
	)
}

// TestALeaderSeesNothingOfFencepost: not in the texts, times, cursors, plans and messages in which a statement
// of Fencepost's in the client's stream would show.
func TestALeaderSeesNothingOfFencepost(t *testing.T) {
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
			name string
			sent []byte
			z    int
			want string // a word of the replies
		}{
			{"PREPARE among others", Cat(Q("prepare a as select 1; select 2"), Q("select statement from pg_prepared_statements where name = 'a'")), 2, "Dprepare a as"},
			{"the text of a query, which a function shows", Cat(Q("create or replace function shown() returns text language plpgsql as $$begin return current_query(); end$$"), Q("select shown()")), 2,
				"Dselect shown()"},
			{"times of a query that goes as messages", Q("execute times"), 1, "Dt"},
			{"a parameter in a DECLARE", Q("declare c cursor with hold for select $1::int"), 1, "42P02"},
			{"cursors, listed by a query that goes as messages", Q("execute cursors"), 1, "D0"},
			{"a function that runs what must be alone", Cat(Q("create or replace function v() returns int language plpgsql as $$begin execute 'vacuum t'; return 1; end$$"), Q("select v()")), 2,
				"25001 VACUUM cannot be executed from a function"},
			{"a function that frees a name", Cat(Parse("freed", "set a.b = 'x'"), Sync(),
				Q("create or replace function free() returns int language plpgsql as $$begin execute 'deallocate freed'; return 1; end$$"), Q("select free()")), 3, "D1"},
			{"a prepared SET", Cat(Parse("set", "set a.b = 'x'"), Sync(), Q("select 1")), 2, "D1"},
			{"it, described where nobody knows yet of a failure", Cat(Q("begin; select 1/0"), wiretest.Describe('S', "set"), Sync(), Q("rollback")), 3, "22012 division by zeroROLLBACK"},
			{"plans of a prepared SET", Cat(Q("select 1"), Bind("", "set"), Exec("", 0), Sync(), Q("select 40 + generic_plans from pg_prepared_statements where name = 'set'")), 3, "D41"},
			{"names in debug messages", Cat(Q("set client_min_messages = debug2"), Run("insert into t values (1)"), Sync(), Q("reset client_min_messages")), 3, "bind <unnamed> to <unnamed>"},
			{"the freed name", Batch(Bind("", "freed"), Exec("", 0)), 1, "26000 prepared statement \"freed\" does not exist"},
		} {
			for _, conn := range []*wiretest.Conn{direct, c} {
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
				if !strings.Contains(said.String(), s.want) {
					t.Errorf("%s: %q, want %q in it", s.name, said.String(), s.want)
				}
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
