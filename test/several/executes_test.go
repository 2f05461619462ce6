package several

import (
	"encoding/binary"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyAChainByExecute: SQL EXECUTE of a prepared COMMIT AND CHAIN has its effect at the end of the text or
// batch, behind any check in that. No tag says so where a function has run it. Nothing has checked the
// transaction that follows.
func TestSafetyAChainByExecute(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create function f() returns int language plpgsql as $$begin execute 'execute p1'; return 1; end$$")
		for name, execute := range map[string][]byte{
			"EXECUTE":               Q("execute p1"),
			"EXECUTE in a text":     Q("execute p1; do $$begin end$$; select 1"),
			"EXECUTE in a batch":    Batch(Run("execute p1"), Run("do $$begin end$$"), Run("select 1")),
			"a DO":                  Q("do $$begin execute 'execute p1'; end$$"),
			"a function":            Q("select f()"),
			"a function in a batch": Batch(Run("select f()"), Run("select 1")),
			"a fast path call":      wiretest.Msg('F', binary.BigEndian.AppendUint32(nil, uint32(s.Number("select 'f'::regproc::oid::int"))), make([]byte, 6)),
		} {
			for _, end := range []string{"commit and chain", "rollback and chain"} {
				worker := another(s)
				c := chooserAs(s, worker, "r")
				fixture.MustPass(t, c, Batch(Parse("p1", end)))
				fixture.MustPass(t, c, Q("begin; select 1"))
				fixture.MustPass(t, c, execute)
				s.Supersede()
				all, ended := fixture.Ask(c, Q(write("stale")))
				if wiretest.ErrorOf(all) == "" {
					t.Errorf("%s, by %s: a write of a superseded worker is answered by %v", end, name, all)
				}
				if !ended {
					fixture.Ask(c, Q("commit"))
				}
			}
		}
		if n := s.Rows("stale"); n != 0 {
			t.Errorf("%d rows of superseded workers", n)
		}
	})
}
