package protocol

import (
	"strconv"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// A client's function can bring Fencepost to count one ReadyForQuery too few. If each reply then counted for the
// statement behind the one that it answers, a statement could run unchecked in what seems to be a checked
// transaction. The tests make the server wait in each statement (see gates), so that a session which goes on does
// so in that order.

// opens begins a block behind a statement whose tag is that of a check, and waits in a gate.
const opens = "select 0; begin; select "

// gates are advisory locks in which the statements of a test wait, one after the other.
type gates struct {
	s *fixture.Cluster
	n int
}

// wait returns the call that waits in the next gate, which is closed.
func (g *gates) wait() string {
	g.n++
	g.s.Exec("select pg_advisory_lock(" + strconv.Itoa(g.n) + ")")
	return "pg_advisory_xact_lock(" + strconv.Itoa(g.n) + ")"
}

// open opens a gate.
func (g *gates) open(n int) { g.s.Exec("select pg_advisory_unlock(" + strconv.Itoa(n) + ")") }

// newShifted returns a cluster and its leader.
func newShifted(t *testing.T, pg *pgtest.Server, functions string) (*fixture.Cluster, *wiretest.Conn) {
	t.Helper()
	s := fixture.NewCluster(t, pg)
	s.Exec("create function ex(v text) returns text language plpgsql as $$begin execute v; return v; end$$;" + functions)
	c := s.Leader("w")
	fixture.MustPass(t, c, Batch(Parse("ends", "commit")))
	return s, c
}

// runs reports whether a statement with this text runs on the server.
func runs(s *fixture.Cluster, text string) bool {
	return s.Number("select count(*) from pg_stat_activity where datname = current_database() and state = 'active' and pid <> pg_backend_pid() and query like '%' || $1", text) > 0
}

// commitsStale grants another worker an epoch while the session's statement that writes, if it came so far, waits
// in a gate, and reports whether it writes afterwards.
func commitsStale(t *testing.T, s *fixture.Cluster, g *gates, gate int) bool {
	t.Helper()
	s.Connect("w2")
	if _, err := s.Candidacy(s.DB, "r", "w2").TryGrant(); err != nil {
		t.Fatal(err)
	}
	before := s.Rows("stale")
	g.open(gate)
	fixture.Eventually(t, "the statement has ended", func() bool { return !runs(s, "wr('stale')") })
	return s.Rows("stale") > before
}

// TestACopyInAFunctionShiftsNothing: a function executes a COPY and catches its error. The server then takes the
// Sync behind the data for a Sync.
func TestACopyInAFunctionShiftsNothing(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"in a select": "select caught('execute copies')", "in another COPY": "copy (select caught('execute copies')) to stdout",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) { copyInAFunction(t, pg, text) })
		})
	}
}

func copyInAFunction(t *testing.T, pg *pgtest.Server, text string) {
	s, c := newShifted(t, pg, "create function caught(v text) returns text language plpgsql as $$begin begin execute v; exception when others then null; end; return v; end$$")
	fixture.MustPass(t, c, Batch(Parse("copies", "copy t (v) from stdin")))
	g := &gates{s: s}
	goesOn := func() bool { return !endsBeforeReady(c) }
	c.Send(Q(text))
	c.Until('G')
	c.Send(wiretest.CopyData("a\tb\n"), Sync(), wiretest.CopyDone(), Q(opens+g.wait()))
	if !goesOn() || !goesOn() { // the function, and its Sync
		return
	}
	_, _ = c.Write(Q("select " + g.wait())) // the session may have ended
	g.open(1)
	if !goesOn() {
		return
	}
	_, _ = c.Write(Q("select ex('execute ends'), " + g.wait()))
	g.open(2)
	if !goesOn() {
		return
	}
	_, _ = c.Write(Q("select wr('stale') from (select " + g.wait() + ") g"))
	g.open(3)
	for !runs(s, "wr('stale')") {
		if !goesOn() {
			break
		}
	}
	if commitsStale(t, s, g, 4) {
		t.Error("a stale row was committed")
	}
}

// endsBeforeReady reads up to the next ReadyForQuery, and reports whether the connection has ended before.
func endsBeforeReady(c *wiretest.Conn) bool {
	for {
		m, err := c.Next()
		if err != nil {
			return true
		}
		if m.Type == 'Z' {
			return false
		}
	}
}

// TestWordsOfACopyShiftNothing: the name of a trigger's function has a line that looks like the context of a COPY
// that has read data, so that the Sync in front of the data seems to be ignored, and the Query behind the data
// skipped.
func TestWordsOfACopyShiftNothing(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		const name = "\"f\nCOPY x, line 5: \""
		s, c := newShifted(t, pg, "create table cp (v text); grant all on cp to public;"+
			"create function "+name+"() returns trigger language plpgsql as $$begin raise exception 'no'; end$$;"+
			"create trigger tr before insert on cp for each statement execute function "+name+"()")
		g := &gates{s: s}
		c.Send(Run("copy cp from stdin"), Sync(), wiretest.CopyData("x\n"), Q(opens+g.wait()), Sync())
		if endsBeforeReady(c) { // the first Sync
			return
		}
		_, _ = c.Write(Batch(Q("select ex('execute ends'), " + g.wait()))) // the session may have ended
		g.open(1)
		if endsBeforeReady(c) || endsBeforeReady(c) { // the first Query, and the Sync behind it
			return
		}
		_, _ = c.Write(Q("select wr('stale') from (select " + g.wait() + ") g"))
		g.open(2)
		for !runs(s, "wr('stale')") { // the session may end meanwhile
			if endsBeforeReady(c) {
				break
			}
		}
		if commitsStale(t, s, g, 3) {
			t.Error("a stale row was committed")
		}
	})
}
