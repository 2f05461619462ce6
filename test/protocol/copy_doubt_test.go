package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolCopyThatFailsInDoubt: a COPY by messages fails, and its error does not show which of the
// client's Syncs it has read. What the client sends next waits until that is known: it is not left out
// where Postgres runs it, and no reply is missing.
func TestProtocolCopyThatFailsInDoubt(t *testing.T) {
	t.Parallel()
	data, done, fail := wiretest.CopyData, wiretest.CopyDone, wiretest.CopyFail
	copyIn := Cat(Parse("", "copy t from stdin"), Bind("", ""), Exec("", 0))
	ins := Run("insert into t values (10, 'x')")
	closes := at("Z", wiretest.Close('S', "nope"), Sync())
	count := at("Z", Q("select count(*) from t"))
	failing := at("Z", Q("create function no() returns trigger language plpgsql as $$begin raise exception 'no'; end$$;"+
		"create trigger no before insert on t for each statement execute function no()"))
	failsLast := at("Z", Q("create function no() returns trigger language plpgsql as $$begin raise exception 'no'; end$$;"+
		"create trigger no after insert on t for each statement execute function no()"))
	undone := at("Z", Q("drop trigger no on t"))
	// The rollback of many tables takes long, so that the next message comes before ReadyForQuery.
	slow := at("Z", Q("create function many(n int) returns int language plpgsql as $$begin for i in 1..n loop "+
		"execute format('create temp table m%s (id int primary key, v text)', i); end loop; return n; end$$"))
	many := Run("select many(300)")
	compareScripts(t,
		newScript("behind what was skipped, a Close", at("E", copyIn, Sync(), data("bad\n"), done(), Parse("", "select 1")), closes, count),
		newScript("behind a Bind, a Close", at("EZ", copyIn, Sync(), data("bad\n"), Sync(), done(), Parse("", "rollback"), Bind("", "")), closes, count),
		newScript("statement trigger, two Syncs, and more", failing, at("ZZZ", copyIn, Sync(), data("80\tx\n"), done(), Sync(), Run("drop trigger no on t"), Sync()), count),
		newScript("statement trigger, CopyFail, two Syncs, and more", failing, at("ZZZ", copyIn, Sync(), data("80\tx\n"), fail("no"), Sync(), Run("drop trigger no on t"), Sync()), count),
		newScript("statement trigger, slow rollback, a Query", slow, failing, at("E", many, copyIn, Sync(), data("80\tx\n"), done()), at("ZZ", Q("select 'behind'")), undone, at("Z", ins, Sync()), count),
		newScript("statement trigger, slow rollback, a batch", slow, failing, at("E", many, copyIn, Sync(), data("80\tx\n"), done()), at("ZZ", Run("select 'behind'"), Sync()), undone, count),
		newScript("bad data and a Sync, slow rollback, a Query", slow, at("E", many, copyIn, data("bad\n"), Sync(), done()), at("ZZ", Q("select 'behind'")), count),
		newScript("bad data and a Sync, slow rollback, a batch", slow, at("E", many, copyIn, data("bad\n"), Sync(), done()), at("ZZ", ins, Sync()), count),
		newScript("two Syncs, slow rollback, a Query", slow, failing, at("E", many, copyIn, Sync(), Sync(), data("80\tx\n"), done()), at("ZZZ", Q("select 'behind'")), undone, count),
		newScript("a Sync in front, another among the data, slow rollback, a batch", slow, at("E", many, copyIn, Sync(), data("bad\n"), Sync(), done()), at("ZZ", ins, Sync()), count),
		newScript("a Sync behind the error, and a Query", at("E", copyIn, Sync(), data("bad\n"), done()), at("ZZ", Sync(), Q("select 'behind'")), count),
		newScript("behind what was skipped, Closes with their Syncs", failsLast, at("E", copyIn, Sync(), data("80\tx\n"), done()), at("ZZ", Cat(wiretest.Close('S', "x"), Sync(), wiretest.Close('S', "x"), Sync())), at("EZ", Exec("", 0), Sync()), count),
		newScript("behind what was skipped, a Close, and a batch", failsLast, at("E", copyIn, Sync(), data("80\tx\n"), done()), at("ZZ", wiretest.Close('S', "x"), Run("select 'behind'"), Sync(), Run("select 'behind'"), Sync()), count),
		newScript("two Syncs among bad data, and a batch", at("ZZZZ", copyIn, data("bad\n"), Sync(), Sync(), done(), Sync(), ins, Sync()), count),
		newScript("a Sync that a simple COPY reads, behind an Execute", failsLast, at("EZ", Run("select 7"), Q("copy t from stdin"), Sync(), data("80\tx\n"), done()), at("Z", Parse("s", "select 1"), Q("delete from t")), at("Z", Q("select 1/0")), count),
		newScript("DISCARD ALL in the batch of a COPY that reads a Sync", at("G", copyIn, Flush()), at("EZ", Sync(), data("80\tx\n"), done(), Parse("s1", "select 1"), Run("discard all"), Sync()), count),
		newScript("VACUUM in the batch of a COPY that reads a Sync", at("G", copyIn, Flush()), at("Z", Sync(), data("80\tx\n"), done(), Parse("s1", "select 1"), Q("vacuum t")), at("Z", Sync()), count),
		newScript("a Sync among the data, slow rollback, a batch and its Sync", slow, at("E", many, copyIn, data("80\tx\n"), Sync(), data("bad\n"), done()), at("", ins), at("Z", Sync()), at("Z", ins, Sync()), count),
	)
	t.Run("at once", func(t *testing.T) { // before 18, this ends the session: see D8
		t.Parallel()
		compareAs(t, pgtest.SharedMajor(t, 18), "w", nil,
			newScript("statement trigger, then an insert", failing, at("ZZ", copyIn, Sync(), data("80\tx\n"), done(), Run("drop trigger no on t"), Sync()), count),
			newScript("statement trigger, then a Query", failing, at("ZZ", copyIn, Sync(), data("80\tx\n"), done(), Q("drop trigger no on t")), count),
			newScript("bad data and a Sync, then an insert", at("ZZ", copyIn, data("bad\n"), Sync(), done(), ins, Sync()), count),
			newScript("bad data and a Sync, then a Query", at("ZZ", copyIn, data("bad\n"), Sync(), done(), Q("insert into t values (10, 'x')")), count),
		)
	})
}

// TestAMessageBehindACopyInDoubtIsAnswered: messages are pending behind a Sync of which it is open whether a COPY that has
// failed has read it. The next message, which waits for their replies, is answered, or the session ends: see D8.
func TestAMessageBehindACopyInDoubtIsAnswered(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		admin := p.PG.Connect(t, pgtest.Superuser, db)
		if _, err := admin.Exec(t.Context(), "create table public.t (id int, v text); grant all on public.t to app"); err != nil {
			t.Fatal(err)
		}
		copyIn := Cat(Parse("", "copy t from stdin"), Bind("", ""), Exec("", 0))
		for _, next := range [][]byte{Cat(Run("vacuum t"), Sync()), Cat(Run("begin isolation level serializable"), Sync()), Cat(wiretest.Close('S', "x"), Sync())} {
			conn := fixture.LeaderConn(t, p, db)
			conn.Send(copyIn, wiretest.CopyData("1\tx\n"), Sync(), wiretest.CopyData("bad\n"), wiretest.CopyDone(), Parse("", "select 1"))
			conn.Until('E')
			conn.Send(next)
			for {
				m, err := conn.Next()
				if err != nil {
					t.Fatalf("%q: %v", next, err)
				}
				if m.Type == 'Z' || m.Type == 'E' && m.Fields()['C'] == "08P01" {
					break
				}
			}
			_ = conn.Close()
		}
	})
}
