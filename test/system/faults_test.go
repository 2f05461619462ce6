package system

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// readiness is the part of /readyz that these tests read.
type readiness struct {
	Ready  bool
	Faults []faults.Lasting
}

func readyz(t *testing.T, p *process.Server) (r readiness) {
	t.Helper()
	_, body := p.Get(t, "/readyz")
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return r
}

// awaitFault waits until /readyz shows a fault of this kind with a remedy that contains the
// words, and checks that the metric shows it, and that the log has one line for it.
func awaitFault(t *testing.T, p *process.Server, kind faults.Kind, remedy string) faults.Lasting {
	t.Helper()
	var found *faults.Lasting
	process.Eventually(t, process.Patience, fmt.Sprintf("/readyz to show a fault of kind %s, remedy %q", kind, remedy), func() bool {
		for _, f := range readyz(t, p).Faults {
			if f.Kind == kind && strings.Contains(f.Remedy, remedy) {
				found = &f
				return true
			}
		}
		return false
	})
	if !showsFault(t, p, kind, 1) {
		t.Errorf("the metric does not show a fault of kind %s", kind)
	}
	if lines := p.Lines("fault", "kind", string(kind), "where", found.Where); len(lines) == 0 || lines[len(lines)-1].Text("remedy") == "" { // of when it began
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
	h := newCluster(t, "postgres", onServer(s), with("CONTROL_USER="+control, "CONTROL_PASSWORD=mistaken"))
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
	if !readyz(t, p).Ready {
		t.Error("the proxy is not ready after the control role has logged in")
	}
	h.join(p, "a", "campaign", "wait").must("INSERT INTO work VALUES ('a')")

	password("another")
	awaitFault(t, p, faults.ControlLogin, "ALTER ROLE")
	if !readyz(t, p).Ready {
		t.Error("a changed password makes a proxy unready whose connections still work")
	}
	password("mistaken")
	awaitNoFault(t, p, faults.ControlLogin)
}

// TestFaultOfAMissingPassword: the remedy is another one.
func TestFaultOfAMissingPassword(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with("CONTROL_USER=md5_user"))
	f := awaitFault(t, h.proxy(), faults.ControlLogin, "control.password (FENCEPOST_CONTROL_PASSWORD) is not set")
	if f.Where == "" || f.Problem == "" {
		t.Errorf("the fault is %+v", f)
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

// TestFaultOfWhatWorkersMayNot takes from the role of a worker what its checks need: while it is connected,
// and before it connects.
func TestFaultOfWhatWorkersMayNot(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s))
	p := h.proxy()
	a := h.join(p, "a", "campaign", "wait")
	a.must("INSERT INTO work VALUES ('a')")
	migrate := func(flags ...string) {
		t.Helper()
		if code, out := h.command(append([]string{"migrate", "--dsn", s.DSN(pgtest.Superuser, h.db), "--control-role", pgtest.Control}, flags...)...); code != 0 {
			t.Fatalf("migrate: code %d: %s", code, out)
		}
	}
	for revoke, lacking := range map[string]string{
		"USAGE ON SCHEMA fencepost":                             "USAGE ON SCHEMA fencepost",
		"SELECT ON ALL SEQUENCES IN SCHEMA fencepost":           "SELECT ON SEQUENCE fencepost.epoch_1",
		"EXECUTE ON FUNCTION fencepost.current(int8,int8,int8)": "EXECUTE ON FUNCTION fencepost.current(bigint,bigint,bigint)",
	} {
		s.Exec(t, pgtest.Superuser, h.db, "REVOKE "+revoke+" FROM PUBLIC")
		f := awaitFault(t, p, faults.Privilege, "fencepost migrate --dsn")
		if want := fmt.Sprintf("role %q lacks %s", pgtest.App, lacking); !strings.HasSuffix(f.Problem, want) || strings.Contains(f.Remedy, "--worker-role") {
			t.Errorf("the fault is %+v, want a problem that ends with %q", f, want)
		}
		if _, out := h.command("status", "--admin", p.Admin); !strings.Contains(out, lacking) {
			t.Errorf("the status does not show it: %s", out)
		}
		migrate()
		awaitNoFault(t, p, faults.Privilege)
	}
	a.must("INSERT INTO work VALUES ('again')")

	migrate("--worker-role", "scram_user")
	if f := failureOf(a.exec("INSERT INTO work VALUES ('forbidden')")); f == nil || f.Code != fencing.StateNoFence || !strings.Contains(f.Hint, "--worker-role") {
		t.Errorf("writing without the right: %+v", f)
	}
	awaitFault(t, p, faults.Privilege, "--worker-role 'scram_user' --worker-role '"+pgtest.App+"'")
	s.Exec(t, pgtest.Superuser, h.db, "GRANT scram_user TO "+pgtest.App)
	awaitNoFault(t, p, faults.Privilege)
	a.must("INSERT INTO work VALUES ('as a member')")

	a.leave()
	s.Exec(t, pgtest.Superuser, h.db, "REVOKE USAGE ON SCHEMA fencepost FROM PUBLIC")
	_, err := h.tryJoin(process.Patience, p, "b")
	if f := failureOf(err); f == nil || f.Severity != "FATAL" || f.Code != fencing.StateNoFence || !strings.Contains(f.Hint, "fencepost migrate") {
		t.Errorf("connecting without the right: %+v", f)
	}
	awaitFault(t, p, faults.Privilege, "fencepost migrate --dsn")
	migrate()
	awaitNoFault(t, p, faults.Privilege)
	h.join(p, "b", "campaign", "wait").must("INSERT INTO work VALUES ('b')")
}

// The rules of an ACL token.
const (
	tokenKey     = `key_prefix "" { policy = "write" }`
	tokenSession = ` session_prefix "" { policy = "write" }`
)

// aclToken is an ACL token whose rules can change.
type aclToken struct {
	t              *testing.T
	agent          *consultest.Agent
	policy, secret string
}

// newToken returns a token without rights.
func newToken(t *testing.T, agent *consultest.Agent) *aclToken {
	t.Helper()
	token := &aclToken{t: t, agent: agent}
	token.policy = token.put("/v1/acl/policy", map[string]any{"Name": "p", "Rules": ""}).ID
	token.secret = token.put("/v1/acl/token", map[string]any{"Policies": []map[string]string{{"ID": token.policy}}}).SecretID
	return token
}

// allow replaces the rules.
func (a *aclToken) allow(rules string) {
	a.t.Helper()
	a.put("/v1/acl/policy/"+a.policy, map[string]any{"ID": a.policy, "Name": "p", "Rules": rules})
}

func (a *aclToken) put(path string, body map[string]any) (made struct{ ID, SecretID string }) {
	a.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := json.Unmarshal(a.agent.Request(a.t, http.MethodPut, path, text), &made); err != nil {
		a.t.Fatal(err)
	}
	return made
}

// TestFaultOfTheConsulToken plays a token without rights, which then gets them, and loses
// a part of them.
func TestFaultOfTheConsulToken(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.WithACL())
	token := newToken(t, agent)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=1s", "ELECTION_CONSUL_TOKEN="+token.secret))
	p := h.proxy()
	awaitFault(t, p, faults.LeaseDenied, "session_prefix")
	if !readyz(t, p).Ready {
		t.Error("a fault of the lease service makes the proxy unready")
	}
	token.allow(tokenKey)
	awaitFault(t, p, faults.LeaseDenied, "session_prefix")
	token.allow(tokenKey + tokenSession)
	awaitNoFault(t, p, faults.LeaseDenied)
	a := h.join(p, "a", "campaign", "wait")
	a.must("INSERT INTO work VALUES ('a')")
	token.allow(tokenKey)
	awaitFault(t, p, faults.LeaseDenied, "session_prefix")
	token.allow(tokenKey + tokenSession)
	awaitNoFault(t, p, faults.LeaseDenied)
}

// TestFaultOfConsulsLimit: others have all the connections that Consul allows for an address.
func TestFaultOfConsulsLimit(t *testing.T) {
	t.Parallel()
	const most = 8
	process.Program(t) // it may have to be built
	agent := consultest.Start(t, consultest.WithConnections(most))
	h := newCluster(t, "consul", withConsul(agent))
	var others []net.Conn
	for range most {
		conn, err := net.Dial("tcp", agent.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write([]byte("GET /v1/kv/consultest?index=1000000000&wait=15s HTTP/1.1\r\nHost: consul\r\n\r\n")); err != nil { // it waits
			t.Fatal(err)
		}
		others = append(others, conn)
	}
	p := h.proxy()
	if f := awaitFault(t, p, faults.LeaseService, "http_max_conns_per_client"); !strings.Contains(f.Problem, "429") {
		t.Errorf("the fault is %+v", f)
	}
	for _, conn := range others {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	awaitNoFault(t, p, faults.LeaseService)
}

// TestFaultOfTheTTL: Consul does not accept the TTL.
func TestFaultOfTheTTL(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul", withConsul(consultest.Start(t, consultest.WithDefaultTTL())), with("LEASE_TTL=2s"))
	f := awaitFault(t, h.proxy(), faults.LeaseTTL, "Set lease.ttl")
	if !strings.Contains(f.Problem, "10s") {
		t.Errorf("the problem does not say what Consul accepts: %s", f.Problem)
	}
}

// TestFaultOfConsul: Consul is away, and comes back.
func TestFaultOfConsul(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=1s"))
	p := h.proxy()
	a := h.join(p, "a", "campaign", "wait")
	agent.Pause(t)
	awaitFault(t, p, faults.LeaseService, "election")
	agent.Continue(t)
	awaitNoFault(t, p, faults.LeaseService)
	a.must("INSERT INTO work VALUES ('a')")
	if lines := p.Lines("request failed"); len(lines) > 2 {
		t.Errorf("the log has %d lines for requests that failed: %v", len(lines), lines)
	}
}

// TestCommandsDoNotWaitForAFrozenConsul: they end after about 10 s, and say who is silent.
func TestCommandsDoNotWaitForAFrozenConsul(t *testing.T) {
	t.Parallel()
	const most = 18 * time.Second // the machine may be slow
	process.Program(t)            // it may have to be built
	agent := consultest.Start(t)
	h := newCluster(t, "consul", withConsul(agent))
	agent.Pause(t)
	t.Cleanup(func() { agent.Continue(t) })
	for _, args := range [][]string{{"generation", "bump", "--database", h.db}, {"doctor", "--database", h.db}} {
		began := time.Now()
		code, out := h.command(args...)
		took := time.Since(began)
		if code == 0 || took > most || !strings.Contains(out, "Consul at "+agent.Addr()+" does not answer") || !strings.Contains(out, "Make sure that") {
			t.Errorf("%v: code %d after %v: %s", args, code, took, out)
		}
	}
}

// TestWaitingWorkersDoNotFloodTheLog: while Consul is away, its absence is said once, and not
// at each attempt of each worker that waits.
func TestWaitingWorkersDoNotFloodTheLog(t *testing.T) {
	t.Parallel()
	const waiting = 5
	agent := consultest.Start(t)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=2s", "LOG_LEVEL=info"))
	p := h.proxy()
	h.join(p, "leader", "campaign", "wait")
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	t.Cleanup(func() { cancel(); waiters.Wait() })
	for n := range waiting {
		waiters.Go(func() {
			if c, err := pgx.Connect(ctx, h.dsn(p, fmt.Sprint("waiter-", n), "campaign", "wait")); err == nil {
				_ = c.Close(ctx)
			}
		})
	}
	process.Eventually(t, process.Patience, "the workers to wait", func() bool {
		_, resources := p.Get(t, "/v1/resources")
		return strings.Count(resources, `"worker": "waiter-`) == waiting
	})
	before := p.Log()
	agent.Stop()
	awaitFault(t, p, faults.LeaseService, "election")
	said := func() []string {
		lines := strings.Split(strings.TrimSpace(strings.TrimPrefix(p.Log(), before)), "\n")
		// The proxy also looks at the databases of other tests, which drop them meanwhile.
		return slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, `"where":"database `) })
	}
	process.Always(t, 8*time.Second, "a line for what fails, and not for each worker and attempt", func() bool { return len(said()) <= waiting })
	if t.Failed() {
		t.Log(strings.Join(said(), "\n"))
	}
	if code, out := h.command("status", "--admin", p.Admin); code != 0 || !strings.Contains(out, "unknown") {
		t.Errorf("status does not say that the state is unknown: code %d: %s", code, out)
	}
}

// TestRefusedConnectionsAreCounted counts them by reason.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s))
	p := h.proxy("LIMITS_MAX_CONNECTIONS=2")
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
	a, b := h.join(p, "a"), h.join(p, "b", "campaign", "off")
	try(pgtest.App, h.db)
	counted("limit", 1)
	a.leave()
	b.leave()
	s.Stop(t, pgtest.Fast)
	for n := 1; n <= 3; n++ {
		try(pgtest.App, h.db)
		counted("upstream", n)
	}
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
func awaitRefusal(t *testing.T, a *client) (err error) {
	t.Helper()
	process.Eventually(t, process.Patience, "a write to be refused", func() bool {
		err = a.exec("INSERT INTO work VALUES ('a')")
		return err != nil
	})
	return err
}

// TestRefusalsNameASilentLeaseService: not only that the lease is not confirmed, but
// why.
func TestRefusalsNameASilentLeaseService(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"paused", "stopped"} {
		agent := consultest.Start(t)
		h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=2s", "STARTUP_WAIT=1s"))
		p := h.proxy()
		a := h.join(p, "a", "campaign", "wait")
		a.must("INSERT INTO work VALUES ('a')")
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
			`worker "b" does not lead resource "`+resource+`": the current epoch 1 is held by worker "a"; Consul has not answered for \d+s`, "SHOW fencepost.role")
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
	var err error
	process.Eventually(t, process.Patience, "the control role to be denied its login", func() bool {
		err = awaitRefusal(t, a)
		return !strings.Contains(err.Error(), "has not answered")
	})
	mustRefuse(t, "a changed password", err,
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
	mustRefuse(t, "without session:write", awaitRefusal(t, a),
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
	mustRefuse(t, "a pool without a worker id", err, `worker "connection:.*" does not lead`,
		"This connection named no fencepost.worker, so it is a worker of its own")
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
		process.Eventually(t, process.Patience, "the fault beside the leader", func() bool { return h.shown(p).Reason != "" })
		a.must("INSERT INTO work VALUES ('a')")
		h.awaitState("led", "a", p)
		if got := h.shown(p).Reason; !regexp.MustCompile(reason).MatchString(got) {
			t.Errorf("the leader's database has the fault %q; want %s", got, reason)
		}
		if !readyz(t, p).Ready {
			t.Error("the proxy is not ready")
		}
	}
	admin := h.pg.Connect(t, pgtest.Superuser, h.db)
	if _, err := admin.Exec(t.Context(), "BEGIN; LOCK fencepost.schema_version IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	awaitFault(t, p, faults.Schema, "pg_terminate_backend")
	ledWith(fmt.Sprintf(`schema_version is locked by backend %d of role "%s" .*idle in transaction`, admin.PgConn().PID(), pgtest.Superuser))
	if _, err := admin.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	awaitNoFault(t, p, faults.Schema)
	_ = admin.Close(t.Context())

	h.pg.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+h.db+" ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+h.db+"' AND usename = '"+pgtest.Control+"'")
	awaitFault(t, p, faults.ControlLogin, "ALLOW_CONNECTIONS true")
	ledWith(`cannot log in to database .*not currently accepting connections`)
	h.pg.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+h.db+" ALLOW_CONNECTIONS true")
	awaitNoFault(t, p, faults.ControlLogin)
}

// TestADroppedDatabaseIsForgottenSoon drops a database with a leader, and one whose resource
// has no worker any more. Idle resources are kept for longer than this test lasts.
func TestADroppedDatabaseIsForgottenSoon(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, onServer(pgtest.Start(t)), with("LIMITS_RESOURCE_IDLE=10m"))
			other := *h
			other.db = h.pg.Database(t)
			p := h.proxy()
			left := other.join(p, "b", "campaign", "wait")
			left.leave()
			h.join(p, "a", "campaign", "wait").must("INSERT INTO work VALUES ('a')")
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
		})
	}
}
