package system

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// BenchmarkSilentPool measures how long nobody can write after the lease of a silent worker with 200 idle connections was
// released, until the first write of its successor at another proxy is committed. Postgres has to end 200 backends in that
// time: "alone" is how long it takes for that if one statement terminates them and nothing else is done.
func BenchmarkSilentPool(b *testing.B) {
	const size = 200
	h := newCluster(b, "postgres")
	one, two := h.proxy(), h.proxy()
	var alone, takeover time.Duration
	for i := range b.N {
		alone += h.endsBackends(b, size)
		c := &takeoverCase{cluster: *h, one: one, two: two, resource: fmt.Sprintf("pool-%d", i), timeout: "500ms"}
		var released time.Time
		took := c.measure(func(c *takeoverCase) time.Time {
			for range size - 1 {
				conn := c.join(c.one, "leader", "resource", c.resource, "worker_timeout", c.timeout)
				defer conn.leave()
			}
			released = c.one.Await(b, "released", "resource", c.resource, "worker", "leader").At(b)
			// The others leave when the successor has written.
			process.Eventually(b, process.Patience, "the takeover", func() bool { return len(c.two.Lines("takeover", "resource", c.resource)) > 0 })
			return released
		})
		takeover += took
	}
	n := time.Duration(b.N)
	b.ReportMetric(milliseconds(alone/n), "ms/alone")
	b.ReportMetric(milliseconds(takeover/n), "ms/takeover")
	b.ReportMetric(float64(takeover)/float64(alone), "takeover/alone")
	b.ReportMetric(0, "ns/op")
}

// endsBackends returns how long Postgres takes to end that many idle backends.
func (h *cluster) endsBackends(b *testing.B, n int) time.Duration {
	ctx := context.Background()
	admin := h.pg.Connect(b, pgtest.Superuser, h.db)
	var pids []int32
	for range n {
		conn, err := pgx.Connect(ctx, h.pg.DSN(pgtest.App, h.db))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close(ctx)
		pids = append(pids, int32(conn.PgConn().PID()))
	}
	began := time.Now()
	if _, err := admin.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid", pids); err != nil {
		b.Fatal(err)
	}
	for left := n; left > 0; {
		if err := admin.QueryRow(ctx, "SELECT count(*) FROM pg_stat_get_activity(NULL) WHERE pid = ANY ($1)", pids).Scan(&left); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}
