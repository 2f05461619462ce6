package safety

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
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
	return []holdCase{
		hold("simple", Q(blocked)),
		hold("extended", Batch(Run(blocked))),
		hold("in a transaction", Q(blocked), Q("begin")),
		hold("behind a commit in one text", Q("insert into t (v) values ('own'); commit; "+blocked)),
		hold("behind a commit in a pipeline", Batch(Run("insert into t (v) values ('own')"), Run("commit"), Run(blocked))),
		hold("behind rollback to in one text", Q("rollback to s; "+blocked), Q("begin; savepoint s"), Q("select 1/0")),
		hold("serializable in one text", Q("begin isolation level serializable; "+blocked+"; commit")),
		hold("statement prepared before", Batch(Bind("", "s"), Exec("", 0)), Batch(Parse("s", blocked))),
		hold("SQL prepare and execute", Q("execute s"), Q("prepare s as "+blocked)),
		hold("after discard all", Q(blocked), Q("discard all")),
		hold("call with an inner commit", Q("call late()")),
		hold("prepared call", Batch(Bind("", "s"), Exec("", 0)), Batch(Parse("s", "call late()"))),
		hold("do with an inner commit", Q("do $$begin commit; perform pg_advisory_unlock_all(); perform gate(); insert into t (v) values ('stale'); end$$")),
		hold("a text too long to read", Q("begin; commit; "+blocked+" -- "+long)),
		hold("strings read otherwise than the proxy knows yet",
			Cat(Q("set standard_conforming_strings = off"), Q(`select '\', $$'; commit; `+blocked+`; select '$$ --'`))),
		hold("function call", wiretest.Msg('F', nil), nil), // filled in by the test
	}
}

// TestSafetyGrantWhileAWriteIsUnderWay: whatever the shape of the write, a grant
// that lands while it runs returns only when it cannot commit any more.
func TestSafetyGrantWhileAWriteIsUnderWay(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create function wgate() returns void language sql as $$insert into t (v) select gate()$$")
		for i, c := range holdCases() {
			t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
				if c.name == "function call" {
					oid := s.Number("select 'wgate'::regproc::oid::int8::int")
					c.last = wiretest.Msg('F', []byte{byte(oid >> 24), byte(oid >> 16), byte(oid >> 8), byte(oid), 0, 0, 0, 0, 0, 0})
				}
				s := s.With(t)
				s.Exec("truncate t")
				holdsGrant(s, fmt.Sprintf("w%d", i), c)
			})
		}
	})
}

// holdsGrant runs the case: the write waits at the gate, the grant returns, the gate
// opens, and nothing of the write may be there.
func holdsGrant(s *fixture.Cluster, worker string, c holdCase) {
	s.T.Helper()
	client := s.Leader(worker)
	for _, piece := range c.before {
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
