package shadow

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

const insert = "insert into t (v) values ('stale')"

func shadowed(t *testing.T, pg *pgtest.Server) *fixture.Cluster {
	t.Helper()
	return fixture.NewCluster(t, pg, fixture.WithPolicy(proxy.SessionPolicy{Shadow: true}))
}

// supersede has another worker granted an epoch, and tells w's proxy.
func supersede(t *testing.T, c *fixture.Cluster) {
	t.Helper()
	w := c.Candidacy(c.DB, "r", "w")
	c.Supersede()
	if !w.CheckSuperseded(t.Context()) {
		t.Fatal("the worker is not superseded")
	}
}

// told returns what was recorded: kind, SQLSTATE and the start of the statement.
func told(t *testing.T, c *fixture.Cluster) (lines []string) {
	t.Helper()
	for _, r := range c.Audited(t, c.DB) {
		if !r.Shadow {
			t.Errorf("it was refused: %+v", r)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", r.Summary(), r.SQLState, r.Statement))
	}
	c.Audit.Forget()
	return lines
}

func expect(t *testing.T, c *fixture.Cluster, want ...string) {
	t.Helper()
	if got := told(t, c); !slices.Equal(got, want) {
		t.Errorf("recorded\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAShadowClaimsNothing, also where tables are guarded: nothing is added to what the client sends, so
// the trigger refuses the leader as it refuses everybody who claims no epoch.
func TestAShadowClaimsNothing(t *testing.T) {
	t.Parallel()
	c := shadowed(t, pgtest.Shared(t))
	c.Connect("first") // so that the resource has a fence
	c.Guard(guard.Options{Resource: "r", Table: "public.t"})
	conn := c.Leader("w")
	for _, sends := range [][]byte{Batch(Shut('S', "none")), Batch(Run("select 1")), Q("select 1"), Q("do 'begin end'"), Batch(Run("do 'begin end'"))} {
		fixture.MustPass(t, conn, sends)
	}
	fixture.MustFail(t, conn, "ZF002", Q(insert))
}

// TestAGrantDoesNotWaitForAShadow: nothing of the worker's transaction is in its way, and the
// transaction commits. That is recorded.
func TestAGrantDoesNotWaitForAShadow(t *testing.T) {
	t.Parallel()
	c := shadowed(t, pgtest.Shared(t))
	conn := c.Leader("w")
	fixture.MustPass(t, conn, Q("begin"))
	fixture.MustPass(t, conn, Q(insert))
	fixture.MustPass(t, conn, Q("do $$begin perform 1; end$$"))
	if n := c.Number("select count(*) from fencepost.running") + c.Number("select count(*) from pg_locks l join pg_class r on r.oid = l.relation where r.relnamespace = 'fencepost'::regnamespace and l.pid in (select pid from pg_stat_activity where datname = current_database() and usename = 'app')"); n != 0 {
		t.Errorf("%d entries and locks of a transaction in shadow", n)
	}
	supersede(t, c)
	fixture.MustPass(t, conn, Q("commit"))
	got := told(t, c)
	fixture.MustPass(t, conn, Q("select 1"))
	if want := []string{"stale write would be rejected ZF001 commit"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	if n := c.Rows("stale"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// TestWhatWouldBeRefusedIsRecorded: of a follower, of one who was not told that it leads, and what
// cannot be fenced.
func TestWhatWouldBeRefusedIsRecorded(t *testing.T) {
	t.Parallel()
	c := shadowed(t, pgtest.Shared(t))
	conn := c.Connect("w")
	fixture.MustPass(t, conn, Q("select 1"))
	fixture.MustPass(t, conn, Q(insert))
	fixture.MustPass(t, conn, Batch(Run(insert)))
	expect(t, c, "write would be refused: not the leader ZF002 "+insert, "write would be refused: not the leader ZF002 "+insert)
	c.Grant("w")
	fixture.MustPass(t, conn, Q(insert))
	fixture.MustPass(t, conn, Q(insert)) // the refusal would have told it
	expect(t, c, "write would be refused: its connection did not know that the worker leads ZF003 "+insert)
	fixture.Ask(conn, Q("prepare transaction 'x'"))
	fixture.MustPass(t, conn, Q("vacuum t"))
	expect(t, c, "write would be refused: cannot be fenced ZF005 prepare transaction 'x'")
	fixture.MustFail(t, conn, "42704", Q("show fencepost.role"))
}

// TestNoConnectionIsRefused: a database without a fence serves, which is recorded once.
func TestNoConnectionIsRefused(t *testing.T) {
	t.Parallel()
	c := shadowed(t, pgtest.Shared(t))
	c.Exec("drop schema fencepost cascade")
	conn := c.Connect("w")
	fixture.MustPass(t, conn, Q(insert))
	fixture.Eventually(t, "it is recorded", func() bool {
		all := c.Audit.All()
		return len(all) == 1 && all[0].Shadow && all[0].SQLState == "ZF004" && strings.Contains(all[0].Message, "the connection would be refused")
	})
}

// TestRolesThatMayNotLeadAreRecorded: with enforce: on, each of these connections would be refused.
func TestRolesThatMayNotLeadAreRecorded(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	for _, r := range []struct {
		name, user, message string
		policy              proxy.SessionPolicy
	}{
		{"a superuser", pgtest.Superuser, "is a superuser", proxy.SessionPolicy{Shadow: true}},
		{"a member of the control role", "member", "is a member of Fencepost's control role", proxy.SessionPolicy{Shadow: true}},
		{"a resource without guards", pgtest.App, "guards no table", proxy.SessionPolicy{Shadow: true, Fence: proxy.FenceTables}},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			c := fixture.NewCluster(t, pg, fixture.WithPolicy(r.policy))
			if r.user == "member" {
				r.user = c.DB + "_member"
				c.Exec(fmt.Sprintf(`create role "%s" login in role %s`, r.user, pgtest.Control))
			}
			conn := wiretest.Dial(t, c.Addr)
			conn.Send(wiretest.Startup("user", r.user, "database", c.DB, "fencepost.resource", "r", "fencepost.worker", "w"))
			conn.Until('Z')
			fixture.Eventually(t, "it is recorded", func() bool { return len(c.Audit.All()) > 0 })
			all := c.Audit.All()
			if one := all[0]; len(all) != 1 || !one.Shadow || one.SQLState != fencing.StateNoFence || !strings.Contains(one.Message, "the connection would be refused") || !strings.Contains(one.Message, r.message) {
				t.Errorf("recorded %+v", all)
			}
		})
	}
}
