package system

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestNobodyMakesResourcesWithoutEnd lets one role ask for a thousand resources. It is
// stopped at the limit, and when it has left, nothing but the rows remains.
func TestNobodyMakesResourcesWithoutEnd(t *testing.T) {
	t.Parallel()
	const limit, asked = 100, 1000
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with(fmt.Sprintf("LIMITS_MAX_RESOURCES=%d", limit+1), "LIMITS_RESOURCE_IDLE=1s"))
			p := h.proxy()
			h.join(p, "before").leave() // opens the database; its resource exceeds the limit by one
			process.Eventually(t, process.Patience, "it to be forgotten", func() bool { return metricLines(t, p) == 0 })
			before := goroutines(t, p)
			var made, refused atomic.Int64
			var group errgroup.Group
			group.SetLimit(8)
			for i := range asked {
				group.Go(func() error {
					c, err := h.tryJoin(process.Patience, p, "mallory", "resource", fmt.Sprint("made-up-", i))
					var failure *pgconn.PgError
					switch {
					case err == nil:
						made.Add(1)
						c.leave()
					case errors.As(err, &failure) && failure.Code == "53400" && strings.Contains(failure.Hint, "limits.max_resources"):
						refused.Add(1)
					default:
						return err
					}
					return nil
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatalf("neither connected nor refused by the limit: %v", err)
			}
			if made.Load() != limit || refused.Load() != asked-limit {
				t.Errorf("%d were created and %d refused, want %d and %d", made.Load(), refused.Load(), limit, asked-limit)
			}
			if rows := ask[int](h, "SELECT count(*) FROM fencepost.fence"); rows != limit+1 {
				t.Errorf("the fence table has %d rows", rows)
			}
			process.Eventually(t, process.Patience, "all lines of metrics to be gone", func() bool { return metricLines(t, p) == 0 })
			// The proxy keeps up to eight idle connections to Consul for longer than this
			// test waits, with two goroutines each; one left for each resource would exceed
			// the margin.
			process.Eventually(t, process.Patience, "all goroutines to be gone", func() bool { return goroutines(t, p) < before+limit/2 })
			exists := ask[string](h, "SELECT max(resource) FROM fencepost.fence")
			h.join(p, "after", "resource", exists).must("INSERT INTO work VALUES ('after')") // existing resources keep working
		})
	}
}

var (
	goroutineLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)
	resourceLine  = regexp.MustCompile(`(?m)^fencepost_.*resource=.*$`)
)

// goroutines returns how many goroutines the proxy has.
func goroutines(t testing.TB, p *process.Server) int {
	t.Helper()
	_, metrics := p.Get(t, "/metrics")
	n, err := strconv.Atoi(goroutineLine.FindStringSubmatch(metrics)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// metricLines returns how many lines of metrics are about resources.
func metricLines(t testing.TB, p *process.Server) int {
	t.Helper()
	_, metrics := p.Get(t, "/metrics")
	return len(resourceLine.FindAllString(metrics, -1))
}

// choosing is a configuration with a resource for which nobody may campaign.
const choosing = "resources: {closed: {users: [nobody]}}\nlimits: {resources_per_connection: 3}\n"

// writeAs writes a row in a transaction that chooses resources, in one text.
func (c *client) writeAs(resources, what string) (state string) {
	c.t.Helper()
	err := c.exec("BEGIN; SET LOCAL fencepost.resource = '" + resources + "'; INSERT INTO work VALUES ('" + what + "'); COMMIT")
	if err != nil {
		c.must("ROLLBACK")
	}
	return stateOf(err)
}

// TestSafetyWorkersChooseShards: two workers at two proxies, with elections of their own. Who names a
// shard first leads it at once; the other one is told so, and leads it when the first has gone.
func TestSafetyWorkersChooseShards(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(choosing)
	q, _ := h.configured(choosing)
	a, b := h.join(p, "a", "resource", "of-a"), h.join(q, "b", "resource", "of-b")
	for _, w := range []struct {
		c                *client
		resources, state string
	}{
		{a, "shard-1", ""}, {b, "shard-1", "ZF002"}, {b, "shard-2", ""}, {b, "shard-1, shard-2", "ZF002"}, {a, "shard-2,shard-1", "ZF002"},
		{a, "shard-1, of-a", ""}, {b, "closed", "28000"}, {b, "shard-3", ""}, {b, "shard-4", "53400"}, {b, "shard-3, shard-2", ""},
	} {
		if got := w.c.writeAs(w.resources, w.resources+w.state); got != w.state {
			t.Errorf("%s: %q, want %q", w.resources, got, w.state)
		}
	}
	if n := ask[int](h, "SELECT count(*)::int FROM work WHERE what LIKE '%ZF%' OR what LIKE '%28000'"); n != 0 {
		t.Errorf("%d rows were written for a shard that its writer does not lead", n)
	}
	if epochs := ask[int](h, "SELECT count(*)::int FROM fencepost.fence WHERE resource LIKE 'shard-%' AND epoch = 1"); epochs != 3 {
		t.Errorf("%d shards have epoch 1, want 3", epochs)
	}
	a.leave()
	process.Eventually(t, process.Patience, "the other worker leads both shards", func() bool {
		state := b.writeAs("shard-1, shard-2", "both")
		if state != "" && state != "ZF002" && state != "ZF003" {
			t.Fatalf("a write of both shards: %s", state)
		}
		return state == ""
	})
	// A session that has chosen a shard stays with it, and its pool resets that.
	b.must("SET fencepost.resource = 'shard-1'", "INSERT INTO work VALUES ('chosen')")
	if role, epoch := b.show("role"), b.show("epoch"); role != "leader" || epoch != "2" {
		t.Errorf("the worker is %s with epoch %s, want leader and 2", role, epoch)
	}
	b.must("DISCARD ALL")
	if resource := b.show("resource"); resource != "of-b" {
		t.Errorf("after DISCARD ALL, the resource is %s, want of-b", resource)
	}
}
