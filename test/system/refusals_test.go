package system

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
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
	try := func(user, db string, params ...string) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
		defer cancel()
		conn, err := pgx.Connect(ctx, p.DSN(user, db, params...))
		if err == nil {
			_ = conn.Close(ctx)
			t.Errorf("%s was not refused", user)
		}
		return err
	}
	counted("authentication", 0)
	_ = try("scram_user", h.db)
	counted("authentication", 1)
	_ = try("nobody", h.db, "resource", resource)
	counted("authentication", 2)
	if l := p.Await(t, "connection refused", "user", "nobody", "database", h.db, "reason", "authentication"); l.Text("sqlstate") != "28000" ||
		!strings.HasPrefix(l.Text("message"), "Postgres: ") || !strings.HasPrefix(l.Text("client"), "127.0.0.1:") || !strings.Contains(l.Text("hint"), "pg_hba.conf") {
		t.Errorf("the log says %v", l)
	}
	_ = try(pgtest.App, "nowhere", "resource", resource)
	counted("upstream", 1)
	p.Await(t, "connection refused", "sqlstate", "3D000", "database", "nowhere")
	_ = try(pgtest.App, h.db, "campaign", "never")
	counted("startup", 1)
	_ = try(pgtest.App, "postgres", "resource", resource)
	counted("fence", 1)
	var all []*client
	for i := range most {
		all = append(all, h.join(p, fmt.Sprint("w", i), "campaign", "off"))
	}
	_ = try(pgtest.App, h.db)
	counted("limit", 1)
	for _, c := range all {
		c.leave()
	}
	s.Stop(t, pgtest.Fast)
	for n := 2; n <= 4; n++ {
		if f := failureOf(try(pgtest.App, h.db)); f == nil || f.Severity != "FATAL" || f.Code != "57P03" || !strings.Contains(f.Message, "cannot reach Postgres") {
			t.Errorf("connecting without Postgres: %+v; want FATAL 57P03", f)
		}
		counted("upstream", n)
	}
	p.Await(t, "postgres not reachable")
	p.Await(t, "connection refused", "reason", "upstream", "user", pgtest.App, "database", h.db)
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
