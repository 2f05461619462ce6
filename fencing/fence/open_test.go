package fence_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestNoDefaultSpoilsAGrant(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	h := fencetest.New(t, s)
	settings := []string{"default_transaction_read_only = on", "default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on",
		"lock_timeout = '1ms'", "statement_timeout = '50ms'", "idle_in_transaction_session_timeout = '1ms'", "idle_session_timeout = '50ms'",
		"search_path = public", "synchronous_commit = off", "client_encoding = 'LATIN1'", "standard_conforming_strings = off"}
	own := []string{"statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"} // these would end the holder itself
	if fencetest.Ask[int](h, "SELECT current_setting('server_version_num')::int") >= 170000 {           // shorter than the grace below, and long enough to connect
		settings = append(settings, "transaction_timeout = '2s'")
		own = append(own, "transaction_timeout")
	}
	for _, setting := range settings {
		s.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+h.DB+" SET "+setting)
	}
	h.Fence = h.NewFence(h.Open(func(c *fence.Config) { c.Grace = 2500 * time.Millisecond }))
	a := h.Award("Grüße 漢字")
	if _, err := h.Fence.Grant(h.Ctx(), a); err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(s.DSN(pgtest.App, h.DB))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range own {
		cfg.RuntimeParams[name] = "0"
	}
	conn, err := pgx.ConnectConfig(h.Ctx(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	holder := &fencetest.Worker{Conn: conn, Fence: h.Fence, Term: fencing.Term{Award: a, Epoch: 1}}
	holder.Claim(h.Ctx(), t, "")
	if _, err := h.Fence.Grant(h.Ctx(), h.Award("b")); err != nil {
		t.Errorf("a grant that has to wait for the grace: %v", err)
	}
	rec, err := h.Fence.Record(h.Ctx())
	if err != nil || rec.Epoch != 2 {
		t.Errorf("record %+v, %v; want epoch 2", rec, err)
	}
}

// TestCatalogRestsWithItsStore: a database that no one uses is asked for nothing, so
// that it can be dropped or renamed. Asked again, it is read again.
func TestCatalogRestsWithItsStore(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	admin := h.Server.Connect(t, pgtest.Superuser, "postgres")
	connected := func() (n int) {
		const sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'fencepost'"
		if err := admin.QueryRow(h.Ctx(), sql, h.DB).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	st := h.Open()
	f := h.NewFence(st)
	f.RefreshCatalog(h.Ctx())
	others := connected()
	st.CloseIdle()
	fixture.Eventually(t, "no connection is left", func() bool { return connected() < others })
	left := connected()
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if now := connected(); now > left {
			t.Fatalf("%d connections were opened for nobody", now-left)
		}
	}
	f.RefreshCatalog(h.Ctx())
	if f.Catalog() == nil {
		t.Error("nothing is known after the rest")
	}
}
