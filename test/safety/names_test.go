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
