package failover

import (
	"context"
	"encoding/json"
	"errors"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/upstream"
)

// pair is a primary with a database, and its standby or two.
type pair struct {
	t    *testing.T
	a, b *pgtest.Server // a is the primary at first
	c    *pgtest.Server // another standby, nil if there is none
	db   string
}

// newPair starts both. The standby is asynchronous.
func newPair(t *testing.T) *pair {
	t.Helper()
	h := &pair{t: t, a: pgtest.Start(t)}
	h.db = h.a.Database(t)
	t.Cleanup(func() { h.a.Crash(t) }) // it may wait for a synchronous standby that is gone
	h.a.Exec(t, pgtest.App, h.db, "CREATE TABLE work (what text NOT NULL)")
	h.b = h.a.Standby(t)
	return h
}

// synchronous makes the primary wait for its standby, until a commit is visible there.
func (h *pair) synchronous() *pair {
	h.t.Helper()
	h.a.Exec(h.t, pgtest.Superuser, "postgres", "ALTER SYSTEM SET synchronous_commit = remote_apply",
		"ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	process.Eventually(h.t, process.Patience, "the standby to be synchronous", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	return h
}

// fail ends the primary, and promotes the standby.
func (h *pair) fail(end func(testing.TB)) {
	h.t.Helper()
	end(h.t)
	h.b.Promote(h.t)
}

// ask reads one value directly from a server.
func ask[T any](h *pair, s *pgtest.Server, sql string, args ...any) T {
	h.t.Helper()
	return pgtest.Ask[T](h.t, s, h.db, sql, args...)
}

// works returns what the table work contains at b.
func (h *pair) works() string {
	return ask[string](h, h.b, "SELECT coalesce(string_agg(what, ' ' ORDER BY ctid), '') FROM work")
}

// settings are those of every proxy and command. The standby comes first in the list.
func (h *pair) settings() []string {
	addresses := h.b.Addr() + ", " + h.a.Addr()
	if h.c != nil {
		addresses += ", " + h.c.Addr()
	}
	return []string{
		"FENCEPOST_LISTEN=127.0.0.1:0", "FENCEPOST_ADMIN=127.0.0.1:0", "FENCEPOST_CONTROL_USER=" + pgtest.Control,
		"FENCEPOST_UPSTREAM_ADDRESS=" + addresses,
		"FENCEPOST_LEASE_TTL=6s", "FENCEPOST_STARTUP_WAIT=30s", // a lease that has lapsed comes back
		"FENCEPOST_LEASE_WORKER_TIMEOUT=2s", "FENCEPOST_LEASE_GRACE=200ms",
		"FENCEPOST_DRAIN_TIMEOUT=1s", "FENCEPOST_LOG_LEVEL=debug",
	}
}

func (h *pair) proxy(settings ...string) *process.Server {
	h.t.Helper()
	return process.Serve(h.t, append(h.settings(), settings...)...)
}

// command runs the program, and returns its exit code and its output. On a busy machine a host that is not frozen
// may not answer in the time that it is given; unless the command has had its effect by then, it runs again.
func (h *pair) command(args ...string) (code int, out string) {
	h.t.Helper()
	return h.commandWith(nil, args...)
}

// undisturbed runs a command, again if it has found that a host does not answer which is not frozen, as on a busy
// machine. run returns what the command has said.
func (h *pair) undisturbed(run func() string) {
	for began := time.Now(); ; {
		out := run()
		again := strings.Count(out, "no answer within") > h.frozen() && !strings.Contains(out, "has had its effect")
		if !again || time.Since(began) > process.Patience {
			return
		}
	}
}

// frozen returns how many of the servers are frozen.
func (h *pair) frozen() (n int) {
	for _, s := range []*pgtest.Server{h.a, h.b, h.c} {
		if s != nil && s.Frozen() {
			n++
		}
	}
	return n
}

// commandWith is command with more settings.
func (h *pair) commandWith(settings []string, args ...string) (code int, out string) {
	h.t.Helper()
	code, out, warned := h.execute(settings, args...)
	return code, out + warned
}

// execute runs the program, and returns its exit code and what it has written to each stream.
func (h *pair) execute(settings []string, args ...string) (code int, stdout, stderr string) {
	h.t.Helper()
	program := process.Program(h.t) // it may have to be built
	h.undisturbed(func() string {
		ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
		defer cancel()
		var out, warned strings.Builder
		cmd := osexec.CommandContext(ctx, program, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = process.Environment(append(h.settings(), settings...)...), &out, &warned
		var exit *osexec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			h.t.Fatalf("run fencepost %v: %v", args, err)
		}
		code, stdout, stderr = cmd.ProcessState.ExitCode(), out.String(), warned.String()
		return stdout + stderr
	})
	return code, stdout, stderr
}

// tryJoin connects a worker that waits to lead.
func (h *pair) tryJoin(p *process.Server, worker string) (*pgx.Conn, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.DSN(pgtest.App, h.db, "resource", "billing", "worker", worker, "worker_timeout", "0", "campaign", "wait"))
	if err != nil {
		return nil, err
	}
	h.t.Cleanup(func() { _ = conn.Close(context.Background()) }) // it may be broken, as the case intends
	return conn, nil
}

// join connects a worker until it succeeds.
func (h *pair) join(p *process.Server, worker string) (conn *pgx.Conn) {
	h.t.Helper()
	var err error
	if !process.Holds(process.Patience, func() bool { conn, err = h.tryJoin(p, worker); return err == nil }) {
		h.t.Fatalf("%s cannot connect: %v", worker, err)
	}
	return conn
}

// exec runs one statement.
func exec(conn *pgx.Conn, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	_, err := conn.Exec(ctx, sql)
	return err
}

func (h *pair) must(conn *pgx.Conn, sql string) {
	h.t.Helper()
	if err := exec(conn, sql); err != nil {
		h.t.Fatalf("%s: %v", sql, err)
	}
}

// errorOf returns what the server side has said, nil if err is nothing of that kind.
func errorOf(err error) *pgconn.PgError {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return &pgconn.PgError{}
	}
	return pg
}

// ready reads /readyz.
func (h *pair) ready(p *process.Server) (ready admin.Readiness) {
	h.t.Helper()
	_, body := p.Get(h.t, "/readyz")
	if err := json.Unmarshal([]byte(body), &ready); err != nil {
		h.t.Fatalf("parse /readyz: %v: %s", err, body)
	}
	return ready
}

// awaitHosts waits until a proxy takes b and a for these.
func (h *pair) awaitHosts(p *process.Server, b, a upstream.State) {
	h.t.Helper()
	var got []upstream.HostStatus
	if !process.Holds(process.Patience, func() bool {
		got = h.ready(p).Hosts
		return len(got) == 2 && got[0].State == b && got[1].State == a
	}) {
		h.t.Fatalf("the hosts are %+v; want %s, %s", got, b, a)
	}
}
