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

// TestNobodyMakesResourcesWithoutEnd lets one role ask for five times as many resources as there may be. It is
// stopped at the limit, and when it has left, nothing but the rows remains.
func TestNobodyMakesResourcesWithoutEnd(t *testing.T) {
	t.Parallel()
	const limit, asked = 40, 200
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
