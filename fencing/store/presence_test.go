package store_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAProxyIsGoneWhenItsConnectionsAre, and nobody but a control role can make it look alive.
func TestAProxyIsGoneWhenItsConnectionsAre(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	called := func(id string) func(*store.Config) { return func(c *store.Config) { c.PresenceID = id } }
	one, two := h.open(called("one-"+h.db)), h.open(called("two-"+h.db))
	gone := func(id string) bool {
		t.Helper()
		g, err := two.Gone(h.ctx(), id)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if gone(one.PresenceID()) || gone(two.PresenceID()) {
		t.Error("a proxy that is there is said to be gone")
	}
	cfg, err := pgx.ParseConfig(h.server.DSN(pgtest.App, h.db))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = "fencepost " + one.PresenceID()
	worker, err := pgx.ConnectConfig(h.ctx(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close(h.ctx())
	one.Close()
	for deadline := time.Now().Add(patience); !gone(one.PresenceID()); {
		if time.Now().After(deadline) {
			t.Fatal("a proxy that is gone is said to be there")
		}
	}
}
