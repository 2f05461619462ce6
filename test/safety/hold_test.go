package safety

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
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
		hold("simple", Q(blocked)),
		hold("extended", Batch(Run(blocked))),
		hold("in a transaction", Q(blocked), Q("begin")),
		hold("in a transaction by extended messages", Batch(Run(blocked)), Batch(Run("begin"))),
		hold("begin and write in one text", Q("begin; "+blocked+"; commit")),
		hold("behind a commit in one text", Q("insert into t (v) values ('own'); commit; "+blocked)),
		hold("behind a commit and chain", Q(blocked+"; commit"), Q("begin"), Q("commit and chain")),
		hold("behind a commit in a pipeline", Batch(Run("insert into t (v) values ('own')"), Run("commit"), Run(blocked))),
		hold("behind a rollback in a failed transaction", Q("rollback; "+blocked), Q("begin"), Q("select 1/0")),
		hold("behind a prepared rollback in a failed transaction", Batch(Bind("", "rb"), Exec("", 0), Run(blocked)),
			Batch(Parse("rb", "rollback")), Q("begin"), Q("select 1/0")),
		hold("behind rollback to in one text", Q("rollback to s; "+blocked), Q("begin; savepoint s"), Q("select 1/0")),
		hold("behind release", Q(blocked), Q("begin; savepoint s; release s")),
		hold("repeatable read", Q(blocked), Q("begin isolation level repeatable read")),
		hold("serializable in one text", Q("begin isolation level serializable; "+blocked+"; commit")),
		hold("several executes and one sync", Batch(Run("select 1"), Run("insert into t (v) values ('own')"), Run(blocked))),
		hold("statement prepared before", Batch(Bind("", "s"), Exec("", 0)), Batch(Parse("s", blocked))),
		hold("SQL prepare and execute", Q("execute s"), Q("prepare s as "+blocked)),
		hold("after discard all", Q(blocked), Q("discard all")),
		hold("discard all in front, pipelined", Cat(Run("discard all"), Sync(), Run(blocked), Sync())),
		hold("after deallocate all", Batch(Run(blocked)), Q("deallocate all")),
		hold("deallocate all in one text", Q("deallocate all; "+blocked)),
		hold("copy", Q("copy (select gate()) to stdout; "+blocked)),
		hold("call with an inner commit", Q("call late()")),
		hold("call by extended messages", Batch(Run("call late()"))),
		hold("call behind a pipelined query", Cat(Q("select 1"), Q("call late()"))),
		hold("prepared call", Batch(Bind("", "s"), Exec("", 0)), Batch(Parse("s", "call late()"))),
		hold("do with an inner commit", Q("do $$begin commit; perform pg_advisory_unlock_all(); perform gate(); insert into t (v) values ('stale'); end$$")),
		hold("a text that shows query texts", Q("select current_query(); commit; "+blocked)),
		hold("a text too long to read", Q("begin; commit; "+blocked+" -- "+long)),
		hold("a text too long to read in a failed transaction", Q("rollback; "+blocked+" -- "+long), Q("begin"), Q("select 1/0")),
		hold("strings read otherwise than the proxy knows yet",
			Cat(Q("set standard_conforming_strings = off"), Q(`select '\', $$'; commit; `+blocked+`; select '$$ --'`))),
		hold("strings read otherwise, flushed", Cat(Q(`select '\', $$'; commit; `+blocked+`; select '$$ --'`), Sync()),
			nil, Cat(Run("set standard_conforming_strings = off"), Flush())),
		hold("an open batch of which only the check ran", Cat(Parse("s", "select 1"), Q(blocked), Sync())),
		hold("a bound portal of rollback, its name freed unseen", Batch(Exec("x", 0), Run(blocked)),
			Batch(Run("begin"), Run("select 1"), Parse("rb", "rollback"), Bind("x", "rb"), Run("savepoint s")),
			Batch(Run("select 1/0"), Shut('P', "x")), Q("rollback to s")),
		hold("a bound portal of rollback, its name bound again in vain", Batch(Exec("x", 0), Run(blocked)),
			Batch(Run("begin"), Run("select 1"), Parse("rb", "rollback"), Bind("x", "rb"), Run("savepoint s")),
			Batch(Parse("", "select 2"), Bind("x", "")), Q("rollback to s")),
		hold("portal names equal to the server alone", Batch(Run("insert into t (v) values ('own')"),
			Parse("rb", "rollback"), Parse("w", "select 1"), Bind(name63+"a", "w"), Shut('P', name63+"b"), Bind(name63+"c", "rb"), Exec(name63+"a", 0), Run(blocked))),
		hold("statement names equal to the server alone", Batch(Bind("", name63+"a"), Exec("", 0)),
			Batch(Parse(name63+"a", "begin")), Batch(Shut('S', name63+"b"), Parse(name63+"c", blocked))),
		hold("statement names equal by another encoding", Batch(Bind("", "\u00e9"), Exec("", 0)),
			Batch(Parse("\u00e9", "begin")), Q("set client_encoding to latin1"),
			Batch(Shut('S', "\xe9"), Parse("\xe9", blocked)), Q("set client_encoding to utf8")),
		hold("deallocate by execute of a prepared one", Batch(Bind("", "s"), Exec("", 0)),
			Batch(Parse("s", "begin"), Parse("d", "deallocate s")), Q("execute d"), Q("prepare s as "+blocked)),
		hold("deallocate by execute in one text", Batch(Bind("", "s"), Exec("", 0)),
			Batch(Parse("s", "begin"), Parse("d", "deallocate s")), Q("select 1; execute d; prepare s as "+blocked)),
		hold("a name taken by SQL prepare", Batch(Bind("", "s"), Exec("", 0)), Q("prepare s as "+blocked), Batch(Parse("s", "begin"))),
		hold("a name freed by a statement whose Close was skipped", Batch(Bind("", "s"), Exec("", 0)),
			Batch(Parse("s", "begin"), Parse("d", "deallocate s")), Batch(Run("select 1/0"), Shut('S', "d")), Q("execute d"), Q("prepare s as "+blocked)),
		hold("the same, executed by Bind", Batch(Bind("", "s"), Exec("", 0)),
			Batch(Parse("s", "begin"), Parse("d", "deallocate s")), Batch(Run("select 1/0"), Shut('S', "d")), Batch(Bind("", "d"), Exec("", 0)), Q("prepare s as "+blocked)),
		hold("a name freed by a statement deallocated in vain", Batch(Bind("", "s"), Exec("", 0)),
			Batch(Parse("s", "begin"), Parse("d", "deallocate s")), Q("begin"), Q("select 1/0"), Q("deallocate d"), Q("rollback"), Q("execute d"), Q("prepare s as "+blocked)),
		hold("a name freed by a statement deallocated in a text that failed", Batch(Bind("", "s"), Exec("", 0)),
			Batch(Parse("s", "begin"), Parse("d", "deallocate s")), Q("select 1/0; deallocate d"), Q("execute d"), Q("prepare s as "+blocked)),
		hold("a name freed in a DO that does not say so", Batch(Bind("", "s"), Exec("", 0)),
			Batch(Parse("s", "begin")), Q("do $$begin execute 'deal' || 'locate s'; end$$"), Q("prepare s as "+blocked)),
		hold("a name prepared in vain, pipelined", Cat(Parse("s", "begin"), Sync(), Bind("", "s"), Exec("", 0), Sync()), Batch(Parse("s", blocked))),
		hold("a begin in vain, then the name", Batch(Bind("", "s"), Exec("", 0)), Batch(Parse("s", blocked)), Batch(Parse("s", "begin"))),
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
		if strings.HasSuffix(string(piece), string(Flush())) {
			client.Send(piece)
			client.Until('C')
			continue
		}
		if all, ended := fixture.Ask(client, piece); ended {
			s.T.Fatalf("%.200q: the connection ended: %v", piece, all)
		}
	}
	s.Exec("select pg_advisory_lock(42)")
	defer s.Exec("select pg_advisory_unlock_all()")
	answer := fixture.ReadReply(client, 1+strings.Count(string(c.last), string(Sync())))
	if _, err := client.Write(c.last); err != nil {
		s.T.Fatal(err)
	}
	backend := 0
	fixture.Eventually(s.T, "the write waits at the gate", func() bool {
		backend = atTheGate(s)
		return answer.Done() || backend != 0
	})
	s.Supersede()
	before := s.Rows("stale")
	s.Exec("select pg_advisory_unlock(42)")
	_, _ = client.Write(Q("commit")) // it may be gone
	_ = client.Close()
	awaitEnd(s, backend)
	if before != 0 || s.Rows("stale") != 0 {
		s.T.Errorf("%d rows of the old epoch were there when the grant returned, %d are there now", before, s.Rows("stale"))
	}
}
