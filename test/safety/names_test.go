package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyOneNameInManySpellings: the server keeps 63 bytes of a name, and of one in
// SQL only whole characters of its own encoding. Whoever gives a statement's name away
// in another spelling does not get a write past the check of a leader whose proven
// reads go unchecked.
func TestSafetyOneNameInManySpellings(t *testing.T) {
	eachVersion(t, func(t *testing.T, pg *pgtest.Server) {
		long, euro := strings.Repeat("n", 63), strings.Repeat("n", 61)
		for name, c := range map[string]struct {
			name   string
			before [][]byte
		}{
			"messages": {long, [][]byte{Batch(wiretest.Close('S', long+"x"), Parse(long+"y", stale))}},
			"SQL":      {long, [][]byte{Q("deallocate " + long + "x"), Q("prepare " + long + "y as " + stale)}},
			"WIN1252":  {euro, [][]byte{Q("deallocate " + euro + "\x80"), Q("select 1; prepare " + euro + "\x80 as " + stale)}},
		} {
			t.Run(name, func(t *testing.T) {
				s := provenCluster(t, pg)
				worker := s.Leader("w", "client_encoding", "WIN1252")
				fixture.MustPass(t, worker, Q("select * from c"))
				awaitProofs(s, worker, "w")
				fixture.MustPass(t, worker, Batch(Parse(c.name, "select * from c")))
				for _, piece := range c.before {
					fixture.MustPass(t, worker, piece)
				}
				s.Supersede()
				fixture.MustEnd(t, worker, "ZF001", Batch(Bind("", c.name), Exec("", 0)))
				if n := s.Rows("stale"); n != 0 {
					t.Errorf("%d rows were written", n)
				}
			})
		}
	})
}

// TestStatementsNamedOutsideASCII prepares and executes statements by such names, under the
// observer of the sessions, as a leader and as a follower.
func TestStatementsNamedOutsideASCII(t *testing.T) {
	t.Parallel()
	const prepare, execute = "prepare \"\u00e4\" as insert into t (v) values ('x')", "execute \"\u00e4\""
	extended := func(sql string) []byte { return Batch(wiretest.Run(sql)) }
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Leader("leader")
		for name, messages := range map[string][][]byte{
			"as Query":               {Q(prepare), Q(execute)},
			"in one text":            {Q(prepare + ";" + execute)},
			"in a block":             {Q("begin;" + prepare), Q(execute), Q("commit"), Q(execute)},
			"as extended messages":   {extended(prepare), extended(execute)},
			"first as Query":         {Q(prepare), extended(execute), Batch(Bind("", "\u00e4"), Exec("", 0))},
			"by a Parse":             {Batch(Parse("\u00e4", stale)), Q(execute), Batch(Bind("", "\u00e4"), Exec("", 0))},
			"beside a prepared read": {Batch(Parse("s", "select 1")), Q(prepare), Batch(Bind("", "s"), Exec("", 0)), Q(execute)},
			"beside a prepared end":  {Batch(Parse("zz", "begin")), Q(prepare), Q(execute), Q("deallocate \"\u00e4\"")},
		} {
			t.Run(name, func(t *testing.T) {
				leader, follower, before := s.Connect("leader"), s.Connect("follower"), s.Number("select count(*) from t")
				for _, message := range messages {
					fixture.MustPass(t, leader, message)
				}
				wrote := s.Number("select count(*) from t")
				for _, message := range messages {
					fixture.Ask(follower, message)
				}
				if after := s.Number("select count(*) from t"); wrote == before || after != wrote {
					t.Errorf("%d rows, %d after the leader, %d after the follower", before, wrote, after)
				}
			})
		}
	})
}
