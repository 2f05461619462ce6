package discard

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestPlanningADiscardedWriteRunsFunctions: docs/discard.md says so, and that what they notify is
// delivered.
func TestPlanningADiscardedWriteRunsFunctions(t *testing.T) {
	t.Parallel()
	since16(t, func(c *fixture.Cluster) {
		c.Exec(`create function tells(v text) returns boolean language plpgsql as $$begin perform pg_notify('planned', v); return true; end$$;
			create function tells_early(v text) returns int language plpgsql immutable as $$begin perform pg_notify('planned', v); return 1; end$$;
			create domain told as text check (tells(value)); create table n (a told); grant all on n to app`)
		listener := c.PG.Connect(c.T, pgtest.Superuser, c.DB)
		if _, err := listener.Exec(context.Background(), "listen planned"); err != nil {
			c.T.Fatal(err)
		}
		conn := c.Leader("w")
		c.Supersede()
		for payload, piece := range map[string][]byte{
			"a domain":    Batch(Run("insert into n values ($1)", "a domain")),
			"a condition": Batch(Run("update t set v = 'x' where id = tells_early('a condition')")),
		} {
			fixture.MustPass(c.T, conn, piece)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			got, err := listener.WaitForNotification(ctx)
			cancel()
			if err != nil || got.Payload != payload {
				c.T.Errorf("%s: notified %v, %v", payload, got, err)
			}
		}
		if n := c.Number("select count(*) from n"); n != 0 {
			c.T.Errorf("%d rows, want none", n)
		}
	})
}
