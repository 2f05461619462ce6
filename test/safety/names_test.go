package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
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
			"messages": {long, [][]byte{cat(wiretest.Close('S', long+"x"), parse(long+"y", stale), sync_())}},
			"SQL":      {long, [][]byte{q("deallocate " + long + "x"), q("prepare " + long + "y as " + stale)}},
			"WIN1252":  {euro, [][]byte{q("deallocate " + euro + "\x80"), q("select 1; prepare " + euro + "\x80 as " + stale)}},
		} {
			t.Run(name, func(t *testing.T) {
				s := provenCluster(t, pg)
				worker := s.Leader("w", "client_encoding", "WIN1252")
				fixture.MustPass(t, worker, q("select * from c"))
				awaitProofs(s, worker, "w")
				fixture.MustPass(t, worker, cat(parse(c.name, "select * from c"), sync_()))
				for _, piece := range c.before {
					fixture.MustPass(t, worker, piece)
				}
				s.Supersede()
				fixture.MustEnd(t, worker, "ZF001", cat(bind("", c.name), exec("", 0), sync_()))
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
	extended := func(sql string) []byte { return cat(wiretest.Run(sql), sync_()) }
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Leader("leader")
		for name, messages := range map[string][][]byte{
			"as Query":               {q(prepare), q(execute)},
			"in one text":            {q(prepare + ";" + execute)},
			"in a block":             {q("begin;" + prepare), q(execute), q("commit"), q(execute)},
			"as extended messages":   {extended(prepare), extended(execute)},
			"first as Query":         {q(prepare), extended(execute), cat(bind("", "\u00e4"), exec("", 0), sync_())},
			"by a Parse":             {cat(parse("\u00e4", stale), sync_()), q(execute), cat(bind("", "\u00e4"), exec("", 0), sync_())},
			"beside a prepared read": {cat(parse("s", "select 1"), sync_()), q(prepare), cat(bind("", "s"), exec("", 0), sync_()), q(execute)},
			"beside a prepared end":  {cat(parse("zz", "begin"), sync_()), q(prepare), q(execute), q("deallocate \"\u00e4\"")},
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
