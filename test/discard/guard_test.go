package discard

import (
	"context"
	"testing"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAVerdictClaimsTheEpoch: a leader writes a guarded table under the claim of the verdict, and
// what it writes later, when it was superseded, is discarded there, too.
func TestAVerdictClaimsTheEpoch(t *testing.T) {
	t.Parallel()
	onVersions(t, func(c *fixture.Cluster) {
		c.Exec("create table guarded (a int); grant all on guarded to app")
		c.Connect("first")
		c.Grant("first")
		o := guard.Options{Resource: "r", Table: "public.guarded", Stamp: "fence_epoch"}
		if _, _, err := guard.Add(context.Background(), c.PG.Connect(c.T, pgtest.Superuser, c.DB), o); err != nil {
			c.T.Fatal(err)
		}
		conn := c.Leader("w")
		fixture.MustPass(c.T, conn, q("insert into guarded values (1)"))
		fixture.MustPass(c.T, conn, ends(run("insert into guarded values (2)")))
		c.Supersede()
		for _, piece := range [][]byte{q("update guarded set a = 3"), ends(run("delete from guarded"))} {
			fixture.MustPass(c.T, conn, piece)
		}
		if n := c.Number("select count(*) from guarded where a < 3 and fence_epoch = 2"); n != 2 {
			c.T.Errorf("%d rows under epoch 2, want 2", n)
		}
	})
}
