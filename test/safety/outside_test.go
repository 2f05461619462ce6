package safety

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyDeclareOutsideABlock: Postgres analyzes a cursor's query before it
// says that the cursor needs a block, and a constant of a domain runs the
// domain's check then. A sequence it has moved stays moved.
func TestSafetyDeclareOutsideABlock(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		s.Exec(`create sequence moved; grant all on moved to app;
			create function moves(v int) returns boolean language sql volatile as 'select nextval(''moved'') > 0';
			create domain dom as int check (moves(value))`)
		const declare = "declare c cursor for select '{1}'::dom[]"
		leader := s.Leader("leader")
		superseded := s.Leader("superseded")
		s.Supersede()
		nobody, _ := wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB)
		for who, c := range map[string]*wiretest.Conn{"a follower": s.Connect("follower"), "no worker": nobody} {
			for _, text := range []string{declare, "/* once more */ " + declare + ";"} {
				all, _ := fixture.Ask(c, Q(text))
				if state := wiretest.ErrorOf(all); state != "25P01" && state != "ZF002" { // the latter before 16: it is not proven harmless
					t.Errorf("%s got %v", who, all)
				}
			}
			fixture.MustPass(t, c, Q("select 1"))
			if n := s.Number("select last_value from moved where is_called union all select 0 limit 1"); n != 0 {
				t.Errorf("%s moved the sequence to %d", who, n)
			}
		}
		for i, c := range []*wiretest.Conn{leader, superseded} {
			if all, _ := fixture.Ask(c, Q(declare)); wiretest.ErrorOf(all) != "ZF001" {
				t.Errorf("worker %d, which was superseded, got %v", i, all)
			}
		}
		if n := s.Number("select last_value from moved where is_called union all select 0 limit 1"); n != 0 {
			t.Errorf("the sequence was moved to %d", n)
		}
		now := s.Leader("now")
		fixture.MustFail(t, now, "25P01", Q(declare)) // as by Postgres, whose analysis has moved it
		if n := s.Number("select last_value from moved"); n != 1 {
			t.Errorf("the leader's statement moved the sequence to %d", n)
		}
	})
}

// TestALapsedLeaseIsNamed: a worker whose lease is not confirmed, though nobody
// else was granted one, is told just that.
func TestALapsedLeaseIsNamed(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for i, write := range [][]byte{Q(mine), Batch(Run(mine)), Q("select 1; " + mine), Q("vacuum c")} {
		worker := fmt.Sprintf("w%d", i)
		c := s.Leader(worker)
		fixture.MustPass(t, c, Q(mine))
		lapsed := *s.Candidacy(s.DB, "r", worker).Status()
		lapsed.Role, lapsed.Lapsed = fencing.Follower, true
		s.Candidacy(s.DB, "r", worker).SetStatus(&lapsed)
		all := fixture.MustFail(t, c, "ZF002", write)
		for _, m := range all {
			if got := m.Fields()['M']; m.Type == 'E' && !strings.Contains(got, "is not confirmed now") {
				t.Errorf("%q is refused with %q", write, got)
			}
		}
	}
}
