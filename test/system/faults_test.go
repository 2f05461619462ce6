package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// readiness is the part of /readyz that these tests read.
type readiness struct {
	Ready  bool
	Faults []faults.Active
}

func readyz(t *testing.T, p *process.Server) (r readiness) {
	t.Helper()
	_, body := p.Get(t, "/readyz")
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return r
}

// awaitOK waits until a path of the admin address answers 200. A server that gets no processor for seconds makes its
// proxy unready for as long.
func awaitOK(t testing.TB, p *process.Server, path string) {
	t.Helper()
	var code int
	var body string
	if !process.Holds(process.Patience, func() bool { code, body = p.Get(t, path); return code == http.StatusOK }) {
		t.Errorf("%s: %d %s", path, code, body)
	}
}

// awaitFault waits until /readyz shows a fault of this kind with a remedy that contains the
// words, and checks that the metric shows it, and that the log has one line for it.
func awaitFault(t *testing.T, p *process.Server, kind faults.Kind, remedy string) faults.Active {
	t.Helper()
	var found *faults.Active
	process.Eventually(t, process.Patience, fmt.Sprintf("/readyz to show a fault of kind %s, remedy %q", kind, remedy), func() bool {
		for _, f := range readyz(t, p).Faults {
			if f.Kind == kind && strings.Contains(f.Remedy, remedy) {
				found = &f
				return true
			}
		}
		return false
	})
	if !process.Holds(process.Patience, func() bool { return showsFault(t, p, kind, 1) }) {
		t.Errorf("the metric does not show a fault of kind %s", kind)
	}
	lines := p.Lines("fault", "kind", string(kind), "where", found.Where)
	if !process.Holds(process.Patience, func() bool { // the log is written and read by others
		lines = p.Lines("fault", "kind", string(kind), "where", found.Where)
		return len(lines) > 0 && lines[len(lines)-1].Text("remedy") != "" // of when it began
	}) {
		t.Errorf("the log has %v for %+v", lines, found)
	}
	return *found
}

// awaitNoFault waits until there is no fault of this kind.
func awaitNoFault(t *testing.T, p *process.Server, kind faults.Kind) {
	t.Helper()
	process.Eventually(t, process.Patience, "no fault of kind "+string(kind), func() bool {
		began, over := p.Lines("fault", "kind", string(kind)), p.Lines("fault (over)", "kind", string(kind))
		return showsFault(t, p, kind, 0) && len(began) > 0 && len(began) == len(over)
	})
}

func showsFault(t *testing.T, p *process.Server, kind faults.Kind, value int) bool {
	t.Helper()
	_, body := p.Get(t, "/metrics")
	return strings.Contains(body, fmt.Sprintf("fencepost_faults{kind=%q} %d\n", kind, value))
}

// TestFaultOfTheControlPassword plays a password that is wrong at the start, then right,
// then changed in Postgres while the proxy runs.
func TestFaultOfTheControlPassword(t *testing.T) {
	t.Parallel()
	const control = "scram_user"
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s), with("CONTROL_USER="+control, "CONTROL_PASSWORD=mistaken", "LEASE_TTL=6s"))
	h.db = s.EmptyDatabase(t)
	s.Exec(t, pgtest.App, h.db, "CREATE TABLE work (what text NOT NULL)")
	if code, out := h.command("migrate", "--dsn", s.DSN(pgtest.Superuser, h.db), "--control-role", control); code != 0 {
		t.Fatalf("migrate: code %d: %s", code, out)
	}
	password := func(p string) { s.Exec(t, pgtest.Superuser, "postgres", "ALTER ROLE "+control+" PASSWORD '"+p+"'") }

	p := h.proxy()
	awaitFault(t, p, faults.ControlLogin, "FENCEPOST_CONTROL_PASSWORD")
	if readyz(t, p).Ready {
		t.Error("the proxy is ready, and its control role has never logged in")
	}
	_, err := h.tryJoin(process.Patience, p, "a")
	if f := failureOf(err); f == nil || f.Severity != "FATAL" || f.Code != fencing.StateNoFence ||
		!strings.Contains(f.Message, "cannot log in") || !strings.Contains(f.Hint, "FENCEPOST_CONTROL_PASSWORD") {
		t.Errorf("connecting with a wrong control password: %+v", f)
	}
	password("mistaken")
	awaitNoFault(t, p, faults.ControlLogin)
	awaitOK(t, p, "/readyz")
	a := h.join(p, "a", "campaign", "wait")
	a.must("INSERT INTO work VALUES ('a')")

	password("another")
	awaitFault(t, p, faults.ControlLogin, "ALTER ROLE")
	awaitOK(t, p, "/readyz") // its connections still work
	s.Exec(t, pgtest.Superuser, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+control+"'")
	mustRefuse(t, "a changed password", awaitReason(t, a),
		`the lease of "`+resource+`" is not confirmed: the lease service refuses Fencepost \(28P01 password authentication failed`,
		"Waiting does not help. Make sure that the control role can log in")
	password("mistaken")
	awaitNoFault(t, p, faults.ControlLogin)
}

// TestFaultsOfTheLoginBeforeAnyWorker: the control role has a password that is not set, or does not exist, the database
// to look at does not, or no connection is left.
func TestFaultsOfTheLoginBeforeAnyWorker(t *testing.T) {
	t.Parallel()
	const limited = "md5_user"
	s := pgtest.Start(t)
	s.Exec(t, pgtest.Superuser, "postgres", "ALTER ROLE "+limited+" CONNECTION LIMIT 0")
	h := newCluster(t, "postgres", onServer(s))
	for _, c := range []struct {
		settings []string
		kind     faults.Kind
		remedy   string
		ready    bool
	}{
		{[]string{"CONTROL_USER=scram_user"}, faults.ControlLogin, "control.password (FENCEPOST_CONTROL_PASSWORD) is not set", false},
		{[]string{"CONTROL_USER=nobody"}, faults.ControlLogin, `role "nobody" exists`, false},
		{[]string{"CONTROL_PROBE_DATABASE=nowhere"}, faults.Schema, "control.probe_database", true},
		{[]string{"CONTROL_USER=" + limited, "CONTROL_PASSWORD=" + pgtest.Password}, faults.ControlLogin, "CONNECTION LIMIT", false},
	} {
		p := h.proxy(c.settings...)
		awaitFault(t, p, c.kind, c.remedy)
		if c.ready {
			awaitOK(t, p, "/readyz")
		} else if readyz(t, p).Ready {
			t.Errorf("with %v it is ready", c.settings)
		}
	}
}

// TestFaultOfTheSchema plays a schema that is missing at the start, is then installed,
// loses a right, and goes away.
func TestFaultOfTheSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s))
	for _, db := range []string{h.db, "fencepost_template"} {
		s.Exec(t, pgtest.Superuser, db, "DROP SCHEMA fencepost CASCADE")
	}
	p := h.proxy()
	awaitFault(t, p, faults.Schema, "fencepost migrate --dsn")
	_, err := h.tryJoin(process.Patience, p, "a")
	if f := failureOf(err); f == nil || f.Severity != "FATAL" || f.Code != fencing.StateNoFence || !strings.Contains(f.Message+f.Hint, "fencepost migrate") {
		t.Errorf("connecting without a schema: %+v; want FATAL ZF004 that names migrate", f)
	}
	if code, out := h.command("migrate", "--dsn", s.DSN(pgtest.Superuser, h.db), "--control-role", pgtest.Control); code != 0 {
		t.Fatalf("migrate: code %d: %s", code, out)
	}
	awaitNoFault(t, p, faults.Schema)
	h.join(p, "a", "campaign", "wait").must("INSERT INTO work VALUES ('a')")

	s.Exec(t, pgtest.Superuser, "postgres", "REVOKE pg_signal_backend FROM "+pgtest.Control)
	awaitFault(t, p, faults.Privilege, "GRANT pg_signal_backend TO")
	s.Exec(t, pgtest.Superuser, "postgres", "GRANT pg_signal_backend TO "+pgtest.Control)
	awaitNoFault(t, p, faults.Privilege)

	s.Exec(t, pgtest.Superuser, h.db, "ALTER SCHEMA fencepost RENAME TO away")
	awaitFault(t, p, faults.Schema, "fencepost migrate --dsn")
	s.Exec(t, pgtest.Superuser, h.db, "ALTER SCHEMA away RENAME TO fencepost")
	awaitNoFault(t, p, faults.Schema)
}

// TestAFaultOfADatabaseDoesNotHideItsLeader keeps the proxy from looking at the schema, and
// then the control role from logging in, while the leader goes on writing.
func TestAFaultOfADatabaseDoesNotHideItsLeader(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", onServer(pgtest.Start(t)))
	p := h.proxy()
	a := h.join(p, "a", "campaign", "wait")
	ledWith := func(reason string) {
		t.Helper()
		is := regexp.MustCompile(reason)
		process.Eventually(t, process.Patience, "the fault beside the leader: "+reason, func() bool { return is.MatchString(h.shown(p).Reason) })
		a.must("INSERT INTO work VALUES ('a')")
		h.awaitState("led", "a", p)
		awaitOK(t, p, "/readyz")
	}
	for _, table := range []string{"schema_version", "fence", "identity"} {
		admin := h.pg.Connect(t, pgtest.Superuser, h.db)
		if _, err := admin.Exec(t.Context(), "BEGIN; LOCK fencepost."+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		awaitFault(t, p, faults.Schema, "pg_terminate_backend")
		ledWith(fmt.Sprintf(`table fencepost.%s is locked by backend %d of role "%s" .*idle in transaction`, table, admin.PgConn().PID(), pgtest.Superuser))
		if _, err := admin.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		awaitNoFault(t, p, faults.Schema)
		_ = admin.Close(t.Context())
	}

	h.pg.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+h.db+" ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+h.db+"' AND usename = '"+pgtest.Control+"'")
	awaitFault(t, p, faults.ControlLogin, "ALLOW_CONNECTIONS true")
	ledWith(`cannot log in to database .*not currently accepting connections`)
	h.pg.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+h.db+" ALLOW_CONNECTIONS true")
	awaitNoFault(t, p, faults.ControlLogin)
}

// TestASchemaThatWasRecreatedIsAFault: the workers keep their connections while the schema is dropped and
// installed again, so that nobody can write, until one connects again. Only the leader's ends, within a
// second, because the registry is lost. A proxy that has no worker left would not look at the database, so
// each has one that waits.
func TestASchemaThatWasRecreatedIsAFault(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", onServer(pgtest.Start(t)))
	proxies := []*process.Server{h.proxy(), h.proxy()}
	leader := h.join(proxies[0], "leader", "campaign", "wait")
	workers := []*client{leader, h.join(proxies[0], "waits-0"), h.join(proxies[1], "waits-1")}
	leader.must("INSERT INTO work VALUES ('a')")
	h.awaitState("led", "leader", proxies...)

	h.pg.Exec(t, pgtest.Superuser, h.db, "DROP SCHEMA fencepost CASCADE")
	for _, p := range proxies {
		awaitFault(t, p, faults.Schema, "fencepost migrate --dsn")
	}
	if code, out := h.command("migrate", "--dsn", h.pg.DSN(pgtest.Superuser, h.db), "--control-role", pgtest.Control); code != 0 {
		t.Fatalf("migrate: code %d: %s", code, out)
	}
	for _, p := range proxies {
		awaitNoFault(t, p, faults.Schema)
	}
	for _, w := range workers {
		var err error
		process.Eventually(t, process.Patience, "the candidacy to read its fence again", func() bool {
			err = w.exec("INSERT INTO work VALUES ('b')")
			return stateOf(err) != fencing.StateNotLeader
		})
		if stateOf(err) != fencing.StateNoFence {
			t.Errorf("a write by a connection from before: %v; want ZF004", err)
		}
	}
	for _, p := range proxies {
		if f := awaitFault(t, p, faults.Fence, "Connect again"); !strings.Contains(f.Problem, "recreated") {
			t.Errorf("the fault is %+v", f)
		}
		h.awaitState("blocked", "", p)
	}
	for _, w := range workers {
		w.leave()
	}
	for i, p := range proxies {
		w := h.join(p, fmt.Sprint("again-", i), "campaign", "wait")
		w.must("INSERT INTO work VALUES ('c')")
		awaitNoFault(t, p, faults.Fence)
		w.leave()
	}
}

// TestALockOnTheLeasesIsNamed: with the embedded elector, the leader lapses while somebody has locked its
// table. The metric of what is left of the lease falls to 0 by then.
func TestALockOnTheLeasesIsNamed(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", onServer(pgtest.Start(t)), with("LEASE_TTL=2s"))
	p := h.proxy()
	a := h.join(p, "a", "campaign", "wait")
	margin := func() float64 {
		value, _ := h.metric(p, "fencepost_lease_margin_seconds")
		return value
	}
	process.Eventually(t, process.Patience, "the margin of a lease that is renewed", func() bool { m := margin(); return m > 0 && m < 2 })
	admin := h.pg.Connect(t, pgtest.Superuser, h.db)
	if _, err := admin.Exec(t.Context(), "BEGIN; LOCK fencepost.lease IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	f := awaitFault(t, p, faults.Schema, "pg_terminate_backend")
	if want := fmt.Sprintf("table fencepost.lease is locked by backend %d ", admin.PgConn().PID()); !strings.Contains(f.Problem, want) {
		t.Errorf("the fault is %+v, want a problem with %q", f, want)
	}
	process.Eventually(t, process.Patience, "the margin to fall to 0", func() bool { return margin() == 0 })
	if _, err := admin.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	awaitNoFault(t, p, faults.Schema)
	process.Eventually(t, process.Patience, "the leader to write again", func() bool { return a.exec("INSERT INTO work VALUES ('a')") == nil })
}

// TestADroppedDatabaseIsForgottenSoon drops a database with a leader, and one whose resource
// has no worker any more. Idle resources are kept for longer than this test lasts.
func TestADroppedDatabaseIsForgottenSoon(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", onServer(pgtest.Start(t)), with("LIMITS_RESOURCE_IDLE=10m"))
	other := *h
	other.db = h.pg.Database(t)
	p := h.proxy()
	left := other.join(p, "b", "campaign", "wait")
	left.leave()
	a := h.join(p, "a", "campaign", "wait")
	a.must("INSERT INTO work VALUES ('a')")
	if code, out := h.command("evict", resource, "--dsn", h.pg.DSN(pgtest.Control, h.db)); code != 0 {
		t.Fatalf("evict: code %d: %s", code, out)
	}
	p.Await(t, "an operator gave an order", "database", h.db)
	a.leave()
	h.join(p, "c", "campaign", "wait").must("INSERT INTO work VALUES ('c')")
	lines := func() int {
		_, resources := p.Get(t, "/v1/resources")
		_, metrics := p.Get(t, "/metrics")
		return strings.Count(resources, `"database"`) + strings.Count(metrics, "\nfencepost_epoch{")
	}
	if got := lines(); got != 4 {
		t.Fatalf("two resources have %d lines", got)
	}
	h.pg.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+h.db+" WITH (FORCE)")
	process.Eventually(t, process.Patience, "the first one to be forgotten", func() bool { return lines() == 2 })
	h.pg.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+other.db+" WITH (FORCE)")
	process.Eventually(t, process.Patience, "the second one to be forgotten", func() bool { return lines() == 0 })

	h.pg.Exec(t, pgtest.Superuser, "postgres", "CREATE DATABASE "+h.db+" TEMPLATE fencepost_template")
	h.pg.Exec(t, pgtest.App, h.db, "CREATE TABLE work (what text NOT NULL)")
	h.join(p, "a", "campaign", "wait").must("INSERT INTO work VALUES ('a')")
	process.Always(t, 6*time.Second, "the new one is shown", func() bool { return lines() == 2 })
	if _, out := h.command("status", "--admin", p.Admin); strings.Contains(out, "is lost") {
		t.Errorf("an order to the dropped database is shown: %s", out)
	}
}
