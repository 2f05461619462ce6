package failover

import (
	"context"
	"sync"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/upstream"
)

// configuration is that of a proxy inside this process.
func (h *pair) configuration(addresses ...string) config.Config {
	cfg := config.Default()
	cfg.Control.User = pgtest.Control
	cfg.Upstream.Address = nil
	for _, a := range addresses {
		cfg.Upstream.Address = append(cfg.Upstream.Address, config.Address(a))
	}
	return cfg
}

// run looks at the hosts until the test ends.
func (h *pair) run(cfg config.Config) *upstream.Servers {
	h.t.Helper()
	servers, err := hosts.New(cfg, zaptest.NewLogger(h.t))
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { servers.Run(ctx) })
	h.t.Cleanup(func() { cancel(); wg.Wait() })
	return servers
}

// awaitPrimary waits until a server is the primary.
func (h *pair) awaitPrimary(servers *upstream.Servers, want *pgtest.Server) {
	h.t.Helper()
	fixture.Eventually(h.t, want.Addr()+" to be the primary", func() bool {
		p, err := servers.Primary(h.t.Context())
		return err == nil && p.Address == want.Addr()
	})
}

// TestSafetyALeaderFromBeforeAFailoverCannotWrite: the fence moves with the database. A worker
// led at the old primary, which is frozen, and another one was granted an epoch at the new one. The proxy still
// believes that the first one leads.
func TestSafetyALeaderFromBeforeAFailoverCannotWrite(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	cfg := h.configuration(h.b.Addr(), h.a.Addr())
	servers := h.run(cfg)
	st, err := hosts.Open(t.Context(), cfg, servers, h.db, zaptest.NewLogger(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := fixture.NewProxy(t, h.b, func(c *proxy.Config) { c.Upstream = servers })
	p.Elector.UseStore(h.db, st)
	c := &fixture.Cluster{Proxy: p, T: t, DB: h.db}
	old := c.Leader("old")
	fixture.MustExec(t, old, "INSERT INTO work VALUES ('before')")

	h.fail(func(t testing.TB) { h.a.Freeze(t) })
	h.awaitPrimary(servers, h.b)
	fixture.Eventually(t, "another worker to be granted an epoch at the new primary", func() bool {
		conn := wiretest.Dial(t, c.Addr)
		defer conn.Close()
		conn.Send(wiretest.Startup("user", pgtest.App, "database", h.db, "fencepost.resource", "r", "fencepost.worker", "new"))
		for {
			m, err := conn.Next()
			if err != nil || m.Type == 'E' {
				return false
			}
			if m.Type == 'Z' {
				break
			}
		}
		_, err := c.Candidacy(h.db, "r", "new").TryGrant()
		return err == nil
	})
	if !c.Candidacy(h.db, "r", "old").Status().CanWrite() {
		t.Fatal("the proxy knows that the old leader was superseded, so the test proves nothing")
	}
	again := wiretest.Dial(t, c.Addr)
	again.Send(wiretest.Startup("user", pgtest.App, "database", h.db, "fencepost.resource", "r", "fencepost.worker", "old"),
		wiretest.Query("INSERT INTO work VALUES ('stale')"), wiretest.Terminate())
	if state := wiretest.ErrorOf(again.Rest()); state != fencing.StateNotLeader { // of a new candidacy
		t.Errorf("the write by a new connection of the old leader ends with %q, want %s", state, fencing.StateNotLeader)
	}
	if got := h.works(); got != "before" {
		t.Errorf("the table contains %q", got)
	}
}
