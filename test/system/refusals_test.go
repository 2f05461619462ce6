package system

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestRefusedConnectionsAreCounted counts them by reason.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s))
	const most = 4 // below, two connections that were refused may not have ended yet
	p := h.proxy(fmt.Sprintf("LIMITS_MAX_CONNECTIONS=%d", most))
	counted := func(reason string, n int) {
		t.Helper()
		process.Eventually(t, process.Patience, fmt.Sprintf("%d connections refused for %s", n, reason), func() bool {
			_, body := p.Get(t, "/metrics")
			return strings.Contains(body, fmt.Sprintf("fencepost_connections_refused_total{reason=%q} %d\n", reason, n))
		})
	}
	try := func(user, db string, params ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
		defer cancel()
		conn, err := pgx.Connect(ctx, p.DSN(user, db, params...))
		if err == nil {
			_ = conn.Close(ctx)
			t.Errorf("%s was not refused", user)
		}
	}
	counted("authentication", 0)
	try("scram_user", h.db)
	counted("authentication", 1)
	try(pgtest.App, h.db, "campaign", "never")
	counted("startup", 1)
	try(pgtest.App, "postgres", "resource", resource)
	counted("fence", 1)
	var all []*client
	for i := range most {
		all = append(all, h.join(p, fmt.Sprint("w", i), "campaign", "off"))
	}
	try(pgtest.App, h.db)
	counted("limit", 1)
	for _, c := range all {
		c.leave()
	}
	s.Stop(t, pgtest.Fast)
	for n := 1; n <= 3; n++ {
		try(pgtest.App, h.db)
		counted("upstream", n)
	}
	p.Await(t, "postgres not reachable")
	if lines := p.Lines("postgres not reachable"); len(lines) != 1 {
		t.Errorf("the log has %d lines for three connections: %v", len(lines), lines)
	}
	awaitFault(t, p, faults.Upstream, "upstream.address")
	s.Restart(t)
	awaitNoFault(t, p, faults.Upstream)
	h.join(p, "c", "campaign", "wait")
	p.Await(t, "postgres not reachable (over)")
}

// mustRefuse fails the test unless err is a ZF002 whose message matches and whose hint
// contains the text.
func mustRefuse(t *testing.T, what string, err error, message, hint string) {
	t.Helper()
	f := failureOf(err)
	if f == nil || f.Code != fencing.StateNotLeader || !regexp.MustCompile(`^`+message+`.* \[ZF002\]$`).MatchString(f.Message) ||
		!strings.Contains(f.Hint, hint) {
		t.Errorf("%s: %+v; want ZF002, %s, hint %q", what, f, message, hint)
	}
}

// awaitRefusal waits until a write is refused, and returns the error.
func awaitRefusal(t *testing.T, a *client) error {
	t.Helper()
	return awaitFailure(t, a, "INSERT INTO work VALUES ('a')")
}

// awaitFailure waits until a statement fails, and returns the error. A connection that does not
// lead is told of a change after the log is.
func awaitFailure(t *testing.T, a *client, sql string) (err error) {
	t.Helper()
	process.Eventually(t, process.Patience, sql+" to fail", func() bool {
		err = a.exec(sql)
		return err != nil
	})
	return err
}

// awaitReason waits until a refusal tells more than that the lease service has not answered, and returns the error.
func awaitReason(t *testing.T, a *client) (err error) {
	t.Helper()
	if !process.Holds(process.Patience, func() bool { err = awaitRefusal(t, a); return !silent.MatchString(err.Error()) }) {
		t.Fatalf("no other reason was given than: %v", err)
	}
	return err
}

// silent matches a refusal for want of a confirmation, before anything is known of the lease service.
var silent = regexp.MustCompile(`is not confirmed(: \w+ has not answered for \d+s)?; worker`)

// TestRefusalsNameASilentLeaseService: not only that the lease is not confirmed, but
// why.
func TestRefusalsNameASilentLeaseService(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"paused", "stopped"} {
		agent := consultest.Start(t)
		h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=2s", "STARTUP_WAIT=1s"))
		p := h.proxy()
		a := h.join(p, "a", "campaign", "wait")
		process.Eventually(t, process.Patience, "a write", func() bool { return a.exec("INSERT INTO work VALUES ('a')") == nil })
		if how == "paused" {
			agent.Pause(t)
			t.Cleanup(func() { agent.Continue(t) })
		} else {
			agent.Stop()
		}
		err := awaitRefusal(t, a)
		mustRefuse(t, how, err, `the lease of "`+resource+`" is not confirmed: Consul has not answered for \d+s; worker "a" holds epoch 1`, "Retry")
		b := h.join(p, "b")
		mustRefuse(t, how+", a follower", b.exec("INSERT INTO work VALUES ('b')"),
			`worker b does not lead resource `+resource+`: the current epoch 1 is held by worker a; Consul has not answered for \d+s`, "SHOW fencepost.role")
	}
}

// TestRefusalsNameADeniedLogin: the control role can no longer log in, and so the lease
// cannot be renewed.
func TestRefusalsNameADeniedLogin(t *testing.T) {
	t.Parallel()
	const control = "scram_user"
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s), with("CONTROL_USER="+control, "CONTROL_PASSWORD="+pgtest.Password, "LEASE_TTL=1s", "STARTUP_WAIT=1s"))
	h.db = s.EmptyDatabase(t)
	s.Exec(t, pgtest.App, h.db, "CREATE TABLE work (what text NOT NULL)")
	if code, out := h.command("migrate", "--dsn", s.DSN(pgtest.Superuser, h.db), "--control-role", control); code != 0 {
		t.Fatalf("migrate: code %d: %s", code, out)
	}
	a := h.join(h.proxy(), "a", "campaign", "wait")
	s.Exec(t, pgtest.Superuser, "postgres", "ALTER ROLE "+control+" PASSWORD 'another'",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+control+"'")
	mustRefuse(t, "a changed password", awaitReason(t, a),
		`the lease of "`+resource+`" is not confirmed: the lease service refuses Fencepost \(28P01 password authentication failed`,
		"Waiting does not help. Make sure that the control role can log in")
}

// TestRefusalsNameDeniedPermissions: the token loses its right to sessions.
func TestRefusalsNameDeniedPermissions(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.WithACL())
	token := newToken(t, agent)
	token.allow(tokenKey + tokenSession)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=2s", "STARTUP_WAIT=1s", "ELECTION_CONSUL_TOKEN="+token.secret))
	a := h.join(h.proxy(), "a", "campaign", "wait")
	token.allow(tokenKey)
	mustRefuse(t, "without session:write", awaitReason(t, a),
		`the lease of "`+resource+`" is not confirmed: the lease service refuses Fencepost \(403 `, "Waiting does not help. Check the ACL token")
}

// TestRefusalsOfNamelessWorkers: a pool that names no worker has as many workers as
// connections.
func TestRefusalsOfNamelessWorkers(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), p.DSN(pgtest.App, h.db, "resource", resource, "worker_timeout", "0"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	first, second := connect(), connect()
	if _, err := first.Exec(t.Context(), "INSERT INTO work VALUES ('first')"); err != nil {
		t.Fatal(err)
	}
	_, err := second.Exec(t.Context(), "INSERT INTO work VALUES ('second')")
	mustRefuse(t, "a pool without a worker id", err, `worker connection:.* does not lead`,
		"This connection named no fencepost.worker, so it is a worker of its own")
}
