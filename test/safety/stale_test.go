package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

const stale = "insert into t (v) values ('stale')"

// staleCase is a write that a worker sends after another was granted, of which
// its proxy knows nothing yet.
type staleCase struct {
	name   string
	before [][]byte // sent while it led, each answered without an error
	write  []byte
}

func late(name string, write []byte, before ...[]byte) staleCase {
	return staleCase{name: name, write: write, before: before}
}

func oidBytes(oid int) []byte {
	return []byte{byte(oid >> 24), byte(oid >> 16), byte(oid >> 8), byte(oid)}
}

// call is a fast path call of a function without arguments.
func call(oid int) []byte {
	return wiretest.Msg('F', oidBytes(oid), []byte{0, 0, 0, 0, 0, 0})
}

// copyWithSyncs copies into a table of its own, with Syncs among the data, which the server ignores, and sends the
// rest behind that.
func copyWithSyncs(rest ...[]byte) []byte {
	return Cat(Run("create temp table mine (v text)"), Run("copy mine from stdin"), Sync(), wiretest.CopyData("x\n"), Sync(), wiretest.CopyDone(), Cat(rest...))
}

func staleCases(s *fixture.Cluster) []staleCase {
	return []staleCase{
		late("simple", Q(stale)),
		late("extended", Batch(Run(stale))),
		late("prepared under the old epoch", Batch(Bind("", "s"), Exec("", 0)), Batch(Parse("s", stale))),
		late("begun before, nothing done", Q(stale), Q("begin")),
		late("between the write and commit", Q("commit"), Q("begin"), Q(stale)),
		late("between the write and commit, extended", Batch(Run("commit")), Batch(Run("begin"), Run(stale))),
		late("rolled back to a savepoint", Q("rollback to a; "+stale+"; commit"), Q("begin; savepoint a"), Q(stale)),
		late("repeatable read, old snapshot", Q(stale+"; commit"), Q("begin isolation level repeatable read"), Q("select * from c")),
		late("pipeline of several syncs", Cat(Run(stale), Sync(), Run(stale), Sync())),
		late("parse alone of a domain that writes", Batch(Parse("", "select 'stale'::wd"))),
		late("describe of a statement", Batch(Desc('S', "s")), Batch(Parse("s", stale))),
		late("bind alone of a domain that writes", Batch(Parse("", "select $1::wd"), Bind("", "", "stale"))),
		late("fast path call in a block", Cat(call(oidOf(s, "'wstale'::regproc")), Q("commit")), Q("begin")),
		late("copy, extended", Batch(Run("copy t (v) from stdin"), wiretest.CopyData("stale\n"), wiretest.CopyDone())),
		late("extended, behind a copy with syncs", Batch(Run(stale)), copyWithSyncs(Sync())),
		late("simple, behind a copy with syncs in a block", Q(stale), Q("begin"), copyWithSyncs(Run("commit"), Sync())),
	}
}

// TestSafetyStaleWriteIsRefused: the worker led, another was granted since, and
// its proxy knows nothing of that: the next write is answered by FATAL ZF001,
// leaves nothing behind, and the connection ends.
func TestSafetyStaleWriteIsRefused(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create function wstale() returns void language sql as $$insert into t (v) values ('stale')$$")
		for _, c := range staleCases(s) {
			t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) { refusesStale(s.With(t), c) })
		}
	})
}

func refusesStale(s *fixture.Cluster, c staleCase) {
	s.T.Helper()
	client := s.Leader("w" + strings.ReplaceAll(c.name, " ", ""))
	for _, piece := range c.before {
		fixture.MustPass(s.T, client, piece)
	}
	s.Supersede()
	f := fixture.MustEnd(s.T, client, "ZF001", c.write)
	if !strings.Contains(f['M'], "superseded on resource") || f['H'] == "" || f['D'] == "" || f['W'] != "" {
		s.T.Errorf("the error does not say what there is to say: %v", f)
	}
	if n := s.Number("select count(*) from t"); n != 0 {
		s.T.Errorf("the refused write left %d rows behind", n)
		s.Exec("truncate t")
	}
}

// TestSafetyStaleThoughTheSuccessorHasLeft: being superseded is for good; a new
// connection is a new candidacy, which may lead but has to begin anew.
func TestSafetyStaleThoughTheSuccessorHasLeft(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	client := s.Leader("w")
	successor := s.Connect("v")
	s.Grant("v")
	fixture.MustFail(t, successor, "ZF003", Q("insert into t (v) values ('told by this')"))
	fixture.MustPass(t, successor, Q("insert into t (v) values ('new')"))
	successor.Send(wiretest.Terminate())
	successor.Rest()

	fixture.MustEnd(t, client, "ZF001", Q(stale))
	s.Connect("w")
	s.Grant("w")
	again := s.Connect("w")
	fixture.MustFail(t, again, "ZF003", Q(stale))
	fixture.MustPass(t, again, Q("insert into t (v) values ('anew')"))
	if s.Rows("stale") != 0 || s.Rows("new") != 1 || s.Rows("anew") != 1 {
		t.Errorf("rows: stale %d, new %d, anew %d; want 0, 1, 1", s.Rows("stale"), s.Rows("new"), s.Rows("anew"))
	}
}
