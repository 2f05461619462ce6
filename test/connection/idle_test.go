//go:build linux && !fencepost_plainnet

package connection

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestAnIdleConnectionHasNoGoroutine, whatever its session is, and is served and ended nevertheless. The test is not
// parallel: it counts the goroutines of the process.
func TestAnIdleConnectionHasNoGoroutine(t *testing.T) {
	pg := pgtest.Shared(t)
	plain, db, secured := fixture.NewProxy(t, pg, nil), pg.Database(t), newSides(t, sidesConfig{})
	plain.Elector.Enter(db, "r", "w").Grant()
	secured.Elector.Enter(secured.db, "r", "w").Grant()
	own := func(worker string) []string {
		return []string{"user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", worker}
	}
	for name, dial := range map[string]func() *wiretest.Conn{
		"leader":             func() *wiretest.Conn { c, _ := wiretest.Connect(t, plain.Addr, own("w")...); return c },
		"follower":           func() *wiretest.Conn { c, _ := wiretest.Connect(t, plain.Addr, own("f")...); return c },
		"without a resource": func() *wiretest.Conn { c, _ := wiretest.Connect(t, plain.Addr, own("")[:4]...); return c },
		"left to the server": func() *wiretest.Conn {
			c, _ := wiretest.Connect(t, plain.Addr, "user", pgtest.Superuser, "database", db)
			return c
		},
		"TLS on both sides": func() *wiretest.Conn { return secured.worker(t, "w") },
	} {
		t.Run(name, func(t *testing.T) {
			conns := []*wiretest.Conn{dial()} // the first one starts what they have in common
			use := func(c *wiretest.Conn) {
				c.Send(Q("select 1"))
				c.Until('Z')
			}
			use(conns[0])
			before := runtime.NumGoroutine()
			const more = 20
			for range more {
				c := dial()
				use(c)
				conns = append(conns, c)
			}
			fixture.Eventually(t, "the idle connections to have no goroutines", func() bool { return runtime.NumGoroutine() < before+more/2 })
			for _, c := range conns {
				use(c)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, p := range []*fixture.Proxy{plain, secured.Proxy} {
		if err := p.Server.Shutdown(ctx); err != nil {
			t.Errorf("idle sessions were not ended: %v", err)
		}
	}
}
