package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyFollowersInABlock: what only a transaction block allows, or does at
// its end.
func TestSafetyFollowersInABlock(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	s.Exec("alter table c owner to app")
	s.Leader("leader")
	c := s.Connect("follower")
	fixture.MustPass(t, c, Q("begin"))
	fixture.MustFail(t, c, "ZF002", Q("lock table c in share mode"))
	fixture.MustPass(t, c, Q("rollback"))
	fixture.MustPass(t, c, Q("begin"))
	fixture.MustPass(t, c, Q("declare k cursor with hold for select wr('stale')"))
	fixture.MustFail(t, c, "ZF002", Q("commit"))
	if s.Rows("stale") != 0 {
		t.Error("the cursor wrote")
	}
}

// TestUnfencedConnections: without a resource a user reads, writes, or is sent
// away, as the configuration says.
func TestUnfencedConnections(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	reader, _ := wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB)
	fixture.MustPass(t, reader, Q("select * from c"))
	refused := []string{mine, "select wr('mine')", "do $$begin insert into t (v) values ('mine'); end$$", "vacuum c"}
	if s.Number("select current_setting('server_version_num')::int / 10000") < 16 {
		refused = append(refused, "reset transaction_read_only")
	} else { // the server does not let anybody undo it
		fixture.MustFail(t, reader, "0A000", Q("reset transaction_read_only"))
	}
	for _, sql := range refused {
		all := fixture.MustFail(t, reader, "ZF002", Q(sql))
		f := all[len(all)-2].Fields()
		if !strings.Contains(f['M'], "names no resource") {
			t.Errorf("%s: the error does not say why: %v", sql, f)
		}
		for _, want := range []string{"Waiting does not help.", "options='-c fencepost.resource=", "allow in unfenced.users"} {
			if !strings.Contains(f['H'], want) {
				t.Errorf("%s: the hint does not say %q: %v", sql, want, f)
			}
		}
		fixture.MustFail(t, reader, "ZF002", Run(sql), Sync())
	}
	writer, _ := wiretest.Connect(t, s.Addr, "user", pgtest.Superuser, "database", s.DB)
	fixture.MustPass(t, writer, Q(mine))
	if s.Rows("mine") != 1 {
		t.Errorf("%d rows; want the one of the user who may", s.Rows("mine"))
	}
}
