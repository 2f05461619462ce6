package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/upstream"
)

// awaitStates waits until the hosts have been looked at and have these states.
func (h *pair) awaitStates(servers *upstream.Servers, want ...upstream.State) []upstream.HostStatus {
	h.t.Helper()
	var views []upstream.HostStatus
	fixture.Eventually(h.t, fmt.Sprintf("the states %s", want), func() bool {
		views = servers.Statuses()
		for i, v := range views {
			if v.State != want[i] {
				return false
			}
		}
		return true
	})
	return views
}

// TestEachHostShowsItsOwnName: with verify-full, each host is expected to have a certificate of
// the name under which it is listed.
func TestEachHostShowsItsOwnName(t *testing.T) {
	t.Parallel()
	ca := pgtest.NewAuthority(t)
	own := func(name string) pgtest.Option {
		return pgtest.WithTLS(ca.Issue(t, pgtest.Subject{Name: "server", Hosts: []string{name}}), ca)
	}
	h := &pair{t: t, a: pgtest.Start(t, own("localhost"))}
	h.db = h.a.Database(t)
	h.b = h.a.Standby(t, own("127.0.0.1"))
	at := func(s *pgtest.Server, name string) string { return fmt.Sprintf("%s:%d", name, s.Port()) }
	secured := func(serverName string, addresses ...string) config.Config {
		cfg := h.configuration(addresses...)
		cfg.Upstream.TLS.Mode, cfg.Upstream.TLS.CAFile, cfg.Upstream.TLS.ServerName = "verify-full", ca.File, serverName
		return cfg
	}

	cfg := secured("", at(h.b, "127.0.0.1"), at(h.a, "localhost"))
	servers := h.run(cfg)
	h.awaitStates(servers, upstream.Standby, upstream.IsPrimary)
	if err := hosts.Try(t.Context(), servers); err != nil {
		t.Errorf("connect as workers do: %v", err)
	}
	st, err := hosts.Open(t.Context(), cfg, servers, h.db, zaptest.NewLogger(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var encrypted bool
	if err := st.Pool().QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted); err != nil || !encrypted {
		t.Errorf("the control connection is under TLS: %t, %v", encrypted, err)
	}

	swapped := h.run(secured("", at(h.b, "localhost"), at(h.a, "127.0.0.1")))
	fixture.Eventually(t, "both to be refused for their certificates", func() bool { // a look may also have taken too long
		return !slices.ContainsFunc(swapped.Statuses(), func(v upstream.HostStatus) bool {
			return v.State != upstream.Unreachable || !strings.Contains(v.Is, "certificate")
		})
	})
	h.awaitStates(h.run(secured("localhost", at(h.b, "127.0.0.1"), at(h.a, "127.0.0.1"))), upstream.Unreachable, upstream.IsPrimary)
}

// TestControlConnectionsLeaveAFrozenHost: a statement of Fencepost's own ends there, and the next
// one runs at the new primary, which is at a Unix socket.
func TestControlConnectionsLeaveAFrozenHost(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	cfg := h.configuration(filepath.Join(h.b.SocketDir(), fmt.Sprintf(".s.PGSQL.%d", h.b.Port())), h.a.Addr())
	servers := h.run(cfg)
	h.awaitStates(servers, upstream.Standby, upstream.IsPrimary)
	st, err := hosts.Open(t.Context(), cfg, servers, h.db, zaptest.NewLogger(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := st.Pool().Exec(context.Background(), "SELECT pg_sleep(600)")
		ended <- err
	}()
	fixture.Eventually(t, "a statement to run", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == 1
	})
	h.fail(func(t testing.TB) { h.a.Freeze(t) })
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the statement at the frozen server succeeded")
		}
	case <-time.After(fixture.Patience): // otherwise, it would wait for ever
		h.a.Thaw(t)
		t.Fatal("the statement waits for the frozen server")
	}
	var port string
	fixture.Eventually(t, "a statement at the new primary", func() bool {
		return st.Pool().QueryRow(t.Context(), "SELECT current_setting('port') || coalesce(inet_server_port()::text, ' local')").Scan(&port) == nil
	})
	if want := fmt.Sprint(h.b.Port(), " local"); port != want {
		t.Errorf("it ran at port %s, want %s", port, want)
	}
	if err := hosts.Try(t.Context(), servers); err != nil {
		t.Errorf("connect as workers do: %v", err)
	}
}

// TestCommandsFindThePrimary, and the doctor says what is risky about several hosts.
func TestCommandsFindThePrimary(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	h.a.Exec(t, pgtest.Control, h.db, "SELECT fencepost.register('billing')")
	expect := func(code int, args []string, want ...string) {
		t.Helper()
		got, out := h.command(args...)
		for _, w := range want {
			if got != code || !strings.Contains(out, w) {
				t.Errorf("fencepost %v: code %d, want %d and %q:\n%s", args, got, code, w, out)
			}
		}
	}
	a, b := h.a.Addr(), h.b.Addr()
	// The migration that an error suggests is run as it says.
	empty := h.a.EmptyDatabase(t)
	cfg := h.configuration(b, a)
	act := func() (err error) {
		aim := hosts.Aim{Reads: true, Notes: t.Output(), Warnings: t.Output(), Out: t.Output()}
		nothing := func(context.Context, *fence.Database, io.Writer) error { return nil }
		h.undisturbed(func() string {
			err = hosts.Act(t.Context(), cfg, empty, aim, nothing)
			return fmt.Sprint(err)
		})
		return err
	}
	var refusal *fencing.Refusal
	if err := act(); !errors.As(err, &refusal) {
		t.Fatalf("without a schema: %v", err)
	}
	_, dsn, _ := strings.Cut(refusal.Hint, "fencepost migrate --dsn ")
	expect(0, []string{"migrate", "--dsn", strings.Trim(dsn, "'")}, "")
	if err := act(); err != nil {
		t.Fatalf("after the migration: %v", err)
	}

	expect(0, []string{"pause", "billing", "--database", h.db}, "billing", "host "+a+" is the primary")
	expect(1, []string{"doctor"}, "asynchronous-replica", "synchronous_standby_names is empty")
	two := fmt.Sprintf("postgres://%s@/%s?host=127.0.0.1,127.0.0.1&port=%d,%d", pgtest.Control, h.db, h.b.Port(), h.a.Port())
	expect(2, []string{"resource", "list", "--dsn", two}, "several hosts")
	expect(1, []string{"resume", "billing", "--database", h.db, "--at", b}, a+" is the primary, and "+b+" is a standby")
	expect(1, []string{"resume", "billing", "--database", h.db, "--at", "db9:5432"}, "db9:5432, which is not in upstream.address")
	h.b.Stop(t, pgtest.Fast)
	expect(1, []string{"doctor"}, "upstream-host", b+" cannot be looked at", "upstream.address has several hosts")
	for _, change := range [][]string{{"resume", "billing"}, {"evict", "billing"}, {"resource", "rm", "billing"}, {"ledger", "prune", "--keep", "90d"}, {"generation", "bump"}} {
		expect(1, append(change, "--database", h.db), "nothing changed", b+" cannot be looked at", "again with --at "+a)
	}
	expect(0, []string{"resource", "list", "--database", h.db}, "paused since", "warning: "+b+" cannot be looked at", "host "+a+" is the primary")
	expect(0, []string{"resume", "billing", "--database", h.db, "--at", a}, "host "+a+" is the primary", "is not paused any more")
	expect(0, []string{"generation", "bump", "--database", h.db, "--at", a}, "host "+a+" is the primary")
	h.a.Stop(t, pgtest.Fast)
	expect(1, []string{"resume", "billing", "--database", h.db}, "none of the 2 hosts is the primary")
}

// TestAStandbyKnowsTheNewestTimeline: the new primary does not answer, but a standby of it does.
// Nobody who has not seen the new one takes the former primary for the primary.
func TestAStandbyKnowsTheNewestTimeline(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	h.c = h.a.Standby(t)
	h.a.Exec(t, pgtest.Control, h.db, "SELECT fencepost.register('billing')")
	// The standby streams from the other one before that is promoted, so that it has received nothing more:
	// otherwise, it could not follow it.
	h.c.Exec(t, pgtest.Superuser, "postgres", fmt.Sprintf("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=%d user=%s application_name=standby'", h.b.Port(), pgtest.Superuser),
		"SELECT pg_reload_conf()")
	fixture.Eventually(t, "the standby to stream from the other one", func() bool {
		return ask[int](h, h.c, "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming' AND sender_port = $1", h.b.Port()) == 1
	})
	h.awaitReplay(h.b, h.c)
	h.fail(func(t testing.TB) { h.a.Freeze(t) })
	fixture.Eventually(t, "the standby to receive the new timeline", func() bool {
		return ask[int](h, h.c, "SELECT coalesce(max(received_tli), 0) FROM pg_stat_wal_receiver") == 2
	})
	if known := ask[int](h, h.c, "SELECT timeline_id FROM pg_control_checkpoint()"); known != 1 {
		t.Logf("the standby has had a restartpoint on timeline %d already", known)
	}
	h.b.Freeze(t)
	h.a.Thaw(t)
	servers := h.run(h.configuration(h.a.Addr(), h.b.Addr(), h.c.Addr()))
	views := h.awaitStates(servers, upstream.FormerPrimary, upstream.Unreachable, upstream.Standby)
	if says := "timeline 1, but 2 was seen at " + h.c.Addr(); !strings.Contains(views[0].Is, says) {
		t.Errorf("the former primary %s", views[0].Is)
	}
	if p, err := servers.Primary(t.Context()); err == nil {
		t.Errorf("%s is the primary", p.Address)
	}
	if code, out := h.command("pause", "billing", "--database", h.db); code != 1 || !strings.Contains(out, "none of the 3 hosts is the primary") {
		t.Errorf("fencepost pause: code %d: %s", code, out)
	}
	h.b.Thaw(t)
	h.awaitPrimary(servers, h.b)
}
