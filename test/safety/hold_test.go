package safety

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// blocked writes a row once the gate is open.
const blocked = "insert into t (v) select gate()"

// holdCase is a way in which a leader, told and checked, sends a write that is
// under way in the server when the next worker is granted.
type holdCase struct {
	name string
	// before is sent piece by piece, each answered up to ReadyForQuery; errors
	// in the answers are part of the case.
	before [][]byte
	last   []byte
}

func hold(name string, last []byte, before ...[]byte) holdCase {
	return holdCase{name: name, before: before, last: last}
}

// long is a text beyond what the proxy reads.
var long = strings.Repeat("x", 1<<20)

func holdCases() []holdCase {
	name63 := strings.Repeat("n", 63)
	return []holdCase{
		hold("simple", q(blocked)),
		hold("extended", cat(run(blocked), sync_())),
		hold("in a transaction", q(blocked), q("begin")),
		hold("in a transaction by extended messages", cat(run(blocked), sync_()), cat(run("begin"), sync_())),
		hold("begin and write in one text", q("begin; "+blocked+"; commit")),
		hold("behind a commit in one text", q("insert into t (v) values ('own'); commit; "+blocked)),
		hold("behind a commit and chain", q(blocked+"; commit"), q("begin"), q("commit and chain")),
		hold("behind a commit in a pipeline", cat(run("insert into t (v) values ('own')"), run("commit"), run(blocked), sync_())),
		hold("behind a rollback in a failed transaction", q("rollback; "+blocked), q("begin"), q("select 1/0")),
		hold("behind a prepared rollback in a failed transaction", cat(bind("", "rb"), exec("", 0), run(blocked), sync_()),
			cat(parse("rb", "rollback"), sync_()), q("begin"), q("select 1/0")),
		hold("behind rollback to in one text", q("rollback to s; "+blocked), q("begin; savepoint s"), q("select 1/0")),
		hold("behind release", q(blocked), q("begin; savepoint s; release s")),
		hold("repeatable read", q(blocked), q("begin isolation level repeatable read")),
		hold("serializable in one text", q("begin isolation level serializable; "+blocked+"; commit")),
		hold("several executes and one sync", cat(run("select 1"), run("insert into t (v) values ('own')"), run(blocked), sync_())),
		hold("statement prepared before", cat(bind("", "s"), exec("", 0), sync_()), cat(parse("s", blocked), sync_())),
		hold("SQL prepare and execute", q("execute s"), q("prepare s as "+blocked)),
		hold("after discard all", q(blocked), q("discard all")),
		hold("discard all in front, pipelined", cat(run("discard all"), sync_(), run(blocked), sync_())),
		hold("after deallocate all", cat(run(blocked), sync_()), q("deallocate all")),
		hold("deallocate all in one text", q("deallocate all; "+blocked)),
		hold("copy", q("copy (select gate()) to stdout; "+blocked)),
		hold("call with an inner commit", q("call late()")),
		hold("call by extended messages", cat(run("call late()"), sync_())),
		hold("call behind a pipelined query", cat(q("select 1"), q("call late()"))),
		hold("prepared call", cat(bind("", "s"), exec("", 0), sync_()), cat(parse("s", "call late()"), sync_())),
		hold("do with an inner commit", q("do $$begin commit; perform pg_advisory_unlock_all(); perform gate(); insert into t (v) values ('stale'); end$$")),
		hold("a text that shows query texts", q("select current_query(); commit; "+blocked)),
		hold("a text too long to read", q("begin; commit; "+blocked+" -- "+long)),
		hold("a text too long to read in a failed transaction", q("rollback; "+blocked+" -- "+long), q("begin"), q("select 1/0")),
		hold("strings read otherwise than the proxy knows yet",
			cat(q("set standard_conforming_strings = off"), q(`select '\', $$'; commit; `+blocked+`; select '$$ --'`))),
		hold("strings read otherwise, flushed", cat(q(`select '\', $$'; commit; `+blocked+`; select '$$ --'`), sync_()),
			nil, cat(run("set standard_conforming_strings = off"), flush())),
		hold("an open batch of which only the check ran", cat(parse("s", "select 1"), q(blocked), sync_())),
		hold("a bound portal of rollback, its name freed unseen", cat(exec("x", 0), run(blocked), sync_()),
			cat(run("begin"), run("select 1"), parse("rb", "rollback"), bind("x", "rb"), run("savepoint s"), sync_()),
			cat(run("select 1/0"), shut('P', "x"), sync_()), q("rollback to s")),
		hold("a bound portal of rollback, its name bound again in vain", cat(exec("x", 0), run(blocked), sync_()),
			cat(run("begin"), run("select 1"), parse("rb", "rollback"), bind("x", "rb"), run("savepoint s"), sync_()),
			cat(parse("", "select 2"), bind("x", ""), sync_()), q("rollback to s")),
		hold("portal names equal to the server alone", cat(run("insert into t (v) values ('own')"),
			parse("rb", "rollback"), parse("w", "select 1"), bind(name63+"a", "w"), shut('P', name63+"b"), bind(name63+"c", "rb"), exec(name63+"a", 0), run(blocked), sync_())),
		hold("statement names equal to the server alone", cat(bind("", name63+"a"), exec("", 0), sync_()),
			cat(parse(name63+"a", "begin"), sync_()), cat(shut('S', name63+"b"), parse(name63+"c", blocked), sync_())),
		hold("statement names equal by another encoding", cat(bind("", "\u00e9"), exec("", 0), sync_()),
			cat(parse("\u00e9", "begin"), sync_()), q("set client_encoding to latin1"),
			cat(shut('S', "\xe9"), parse("\xe9", blocked), sync_()), q("set client_encoding to utf8")),
		hold("deallocate by execute of a prepared one", cat(bind("", "s"), exec("", 0), sync_()),
			cat(parse("s", "begin"), parse("d", "deallocate s"), sync_()), q("execute d"), q("prepare s as "+blocked)),
		hold("deallocate by execute in one text", cat(bind("", "s"), exec("", 0), sync_()),
			cat(parse("s", "begin"), parse("d", "deallocate s"), sync_()), q("select 1; execute d; prepare s as "+blocked)),
		hold("a name taken by SQL prepare", cat(bind("", "s"), exec("", 0), sync_()), q("prepare s as "+blocked), cat(parse("s", "begin"), sync_())),
		hold("a name freed by a statement whose Close was skipped", cat(bind("", "s"), exec("", 0), sync_()),
			cat(parse("s", "begin"), parse("d", "deallocate s"), sync_()), cat(run("select 1/0"), shut('S', "d"), sync_()), q("execute d"), q("prepare s as "+blocked)),
		hold("the same, executed by Bind", cat(bind("", "s"), exec("", 0), sync_()),
			cat(parse("s", "begin"), parse("d", "deallocate s"), sync_()), cat(run("select 1/0"), shut('S', "d"), sync_()), cat(bind("", "d"), exec("", 0), sync_()), q("prepare s as "+blocked)),
		hold("a name freed by a statement deallocated in vain", cat(bind("", "s"), exec("", 0), sync_()),
			cat(parse("s", "begin"), parse("d", "deallocate s"), sync_()), q("begin"), q("select 1/0"), q("deallocate d"), q("rollback"), q("execute d"), q("prepare s as "+blocked)),
		hold("a name freed by a statement deallocated in a text that failed", cat(bind("", "s"), exec("", 0), sync_()),
			cat(parse("s", "begin"), parse("d", "deallocate s"), sync_()), q("select 1/0; deallocate d"), q("execute d"), q("prepare s as "+blocked)),
		hold("a name freed in a DO that does not say so", cat(bind("", "s"), exec("", 0), sync_()),
			cat(parse("s", "begin"), sync_()), q("do $$begin execute 'deal' || 'locate s'; end$$"), q("prepare s as "+blocked)),
		hold("a name prepared in vain, pipelined", cat(parse("s", "begin"), sync_(), bind("", "s"), exec("", 0), sync_()), cat(parse("s", blocked), sync_())),
		hold("a begin in vain, then the name", cat(bind("", "s"), exec("", 0), sync_()), cat(parse("s", blocked), sync_()), cat(parse("s", "begin"), sync_())),
		hold("function call", wiretest.Msg('F', nil), nil), // filled in by the test
	}
}

// TestSafetyGrantWhileAWriteIsUnderWay: whatever the shape of the write, a grant
// that lands while it runs returns only when it cannot commit any more.
func TestSafetyGrantWhileAWriteIsUnderWay(t *testing.T) {
	t.Parallel()
	servers := map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": own18(t)}
	for name, pg := range servers {
		s := fixture.NewCluster(t, pg)
		s.Exec("create function wgate() returns void language sql as $$insert into t (v) select gate()$$")
		for i, c := range holdCases() {
			t.Run(name+"/"+strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
				if c.name == "function call" {
					oid := s.Number("select 'wgate'::regproc::oid::int8::int")
					c.last = wiretest.Msg('F', []byte{byte(oid >> 24), byte(oid >> 16), byte(oid >> 8), byte(oid), 0, 0, 0, 0, 0, 0})
				}
				s := s.With(t)
				s.Exec("truncate t")
				holdsGrant(s, fmt.Sprintf("w%d", i), c)
			})
		}
	}
}

// holdsGrant runs the case: the write waits at the gate, the grant returns, the gate
// opens, and nothing of the write may be there.
func holdsGrant(s *fixture.Cluster, worker string, c holdCase) {
	s.T.Helper()
	client := s.Leader(worker)
	for _, piece := range c.before {
		if piece == nil {
			continue
		}
		if strings.HasSuffix(string(piece), string(flush())) {
			client.Send(piece)
			client.Until('C')
			continue
		}
		if all, ended := fixture.Ask(client, piece); ended {
			s.T.Fatalf("%.200q: the connection ended: %v", piece, all)
		}
	}
	backends := countBackends(s) // one will come, and one will go
	s.Exec("select pg_advisory_lock(42)")
	defer s.Exec("select pg_advisory_unlock_all()")
	answer := fixture.ReadReply(client, 1+strings.Count(string(c.last), string(sync_())))
	if _, err := client.Write(c.last); err != nil {
		s.T.Fatal(err)
	}
	fixture.Eventually(s.T, "the write waits at the gate", func() bool { return answer.Done() || lockWaiters(s, "advisory") > 0 })
	s.Supersede()
	before := s.Rows("stale")
	s.Exec("select pg_advisory_unlock(42)")
	_, _ = client.Write(q("commit")) // it may be gone
	_ = client.Close()
	fixture.Eventually(s.T, "the worker's backend has ended", func() bool { return countBackends(s) <= backends })
	if before != 0 || s.Rows("stale") != 0 {
		s.T.Errorf("%d rows of the old epoch were there when the grant returned, %d are there now", before, s.Rows("stale"))
	}
}
