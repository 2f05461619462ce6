package system

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// configured starts a proxy with a configuration file, and returns what writes another
// text to that file.
func (h *cluster) configured(text string, settings ...string) (p *process.Server, write func(text string)) {
	h.t.Helper()
	path := filepath.Join(h.t.TempDir(), "fencepost.yml")
	write = func(text string) {
		h.t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	write(text)
	return h.proxy(append(settings, "CONFIG="+path)...), write
}

// plain connects with these parameters of Fencepost's only, so without a resource if there are
// none.
func (h *cluster) plain(p *process.Server, params ...string) (*client, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.DSN(pgtest.App, h.db, params...))
	if err != nil {
		return nil, err
	}
	c := &client{Conn: conn, t: h.t}
	h.t.Cleanup(c.leave)
	return c, nil
}

// mustPlain is plain for a connection that is not refused.
func (h *cluster) mustPlain(p *process.Server, params ...string) *client {
	h.t.Helper()
	c, err := h.plain(p, params...)
	if err != nil {
		h.t.Fatalf("connect with %v: %v", params, err)
	}
	return c
}

// TestAReloadChangesNewSessionsOnly: it applies what it can, names what it cannot, and
// leaves the sessions and the leases alone.
func TestAReloadChangesNewSessionsOnly(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with("STARTUP_WAIT=")) // the file sets it later
	p, write := h.configured("unfenced: {users: {" + pgtest.App + ": allow}}\nresources: {mail: {worker_timeout: 50s}, billing: {worker_timeout: 50s, users: [" + pgtest.App + "]}}")
	leader := h.mustPlain(p, "resource", resource, "worker", "a", "campaign", "wait")
	old := h.mustPlain(p)
	old.must("INSERT INTO work VALUES ('before')")
	leader.must("INSERT INTO work VALUES ('leader')")

	const reloadable = "upstream: {application_name: worker}\nlimits: {max_connections: 3}\nunfenced: {users: {" + pgtest.App + ": refuse}}\nresources: {mail: {worker_timeout: 70s}, billing: {worker_timeout: 70s, users: [nobody], ttl: 20s}}"
	write("startup_wait: 3s\n" + reloadable)
	code, out := h.command("reload", "--admin", p.Admin)
	if code != 0 {
		t.Fatalf("fencepost reload: code %d, %s", code, out)
	}
	for _, want := range []string{
		"startup_wait: 2s -> 3s: needs a restart\n", "unfenced.users.app: allow -> refuse: applied, but not to open connections that began with allow: 1 (fencepost clients)\n", "resources.billing.ttl: - -> 20s: applied\n",
		"resources.billing.worker_timeout: 50s -> 1m10s: applied\n",
		`resources.billing.users: ["app"] -> ["nobody"]: applied` + "\n", "limits.max_connections: 1000 -> 3: applied\n",
		"upstream.application_name: client -> worker: applied\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("fencepost reload does not say %q:\n%s", want, out)
		}
	}
	p.Await(t, "configuration reloaded") // the last line
	if n := len(p.Lines("setting changed")); n != 7 {
		t.Errorf("%d lines say that a setting changed, want 7", n)
	}
	if len(p.Lines("setting not changed: it needs a restart", "setting", "startup_wait", "old", "2s", "new", "3s")) != 1 {
		t.Error("no line says that startup_wait needs a restart")
	}

	_, err := h.tryJoin(process.Patience, p, "b")
	wantFailure(t, "a role that may no longer campaign", err, "28000")
	process.Eventually(t, process.Patience, "the refusal of a connection without a resource, when the one before is gone", func() bool {
		_, err := h.plain(p)
		f := failureOf(err)
		return f != nil && strings.Contains(f.Message, "resource")
	})
	process.Eventually(t, process.Patience, "the third connection, when those that were refused are gone", func() bool {
		_, err := h.plain(p, "resource", "mail", "worker", "c")
		return err == nil
	})
	process.Eventually(t, process.Patience, "only the new connection to be named after its worker", func() bool {
		return slices.Equal([]string{"", "", "mail/c"}, ask[[]string](h, `SELECT array_agg(application_name ORDER BY backend_start)
			FROM pg_stat_activity WHERE usename = $1 AND datname = current_database()`, pgtest.App))
	})
	_, shown := p.Get(t, "/v1/resources")
	for _, timeout := range []string{"50", "70"} { // of the old candidacy and of the new one
		if !strings.Contains(shown, `"worker_timeout_seconds": `+timeout) {
			t.Errorf("no worker has a timeout of %s s: %s", timeout, shown)
		}
	}
	_, err = h.tryJoin(process.Patience, p, "d", "campaign", "off")
	wantFailure(t, "a connection above the new limit", err, "53300")
	old.must("INSERT INTO work VALUES ('after')")
	leader.must("INSERT INTO work VALUES ('leader still')")
	if epoch, works := h.epoch(), h.works(); epoch != 1 || !slices.Equal(works, []string{"before", "leader", "after", "leader still"}) {
		t.Errorf("epoch %d, and the writes %v", epoch, works)
	}
	if code, out := h.command("reload", "--admin", p.Admin); code != 0 || !strings.Contains(out, "startup_wait") || strings.Contains(out, "applied") {
		t.Errorf("a second reload: code %d, %q; want only what needs a restart", code, out)
	}
	pending := func() (found []bool) {
		for _, command := range [][]string{{"status"}, {"status", "--ready"}} {
			_, out := h.command(append(command, "--admin", p.Admin)...)
			found = append(found, strings.Contains(out, "restart pending: changed in the configuration, and applied by a restart only: startup_wait\n"))
		}
		_, ready := p.Get(t, "/readyz")
		return append(found, strings.Contains(ready, `"restart_pending": [
    "startup_wait"
  ]`))
	}
	if found := pending(); slices.Contains(found, false) {
		t.Errorf("status, status --ready and /readyz say that startup_wait waits for a restart: %v", found)
	}
	write("upstream: {") // which is invalid, and changes nothing
	if code, _ := h.command("reload", "--admin", p.Admin); code == 0 || slices.Contains(pending(), false) {
		t.Errorf("a reload of an invalid configuration: code %d; pending: %v", code, pending())
	}
	write(reloadable)
	if code, out := h.command("reload", "--admin", p.Admin); code != 0 || slices.Contains(pending(), true) {
		t.Errorf("the old value again: code %d, %q; pending: %v", code, out, pending())
	}
}

// TestAReloadSaysWhereItDoesNotCountYet: who elects the leader of a resource does not change while it is in
// use.
func TestAReloadSaysWhereItDoesNotCountYet(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	const idle = "limits: {resource_idle: 2s}\n"
	p, write := h.configured(idle + "resources: {billing: {}, mail: {}}")
	a := h.join(p, "a", "campaign", "wait")
	write(idle + "resources: {billing: {election: token}, mail: {election: token}}")
	code, out := h.command("reload", "--admin", p.Admin)
	if code != 0 || !strings.Contains(out, "resources.billing.election: - -> token: applied, but not in force yet in database "+h.db) ||
		!strings.Contains(out, "resources.mail.election: - -> token: applied\n") {
		t.Errorf("fencepost reload: code %d, %s", code, out)
	}
	if p.Await(t, "setting changed", "setting", "resources.billing.election").Text("note") == "" || len(p.Lines("setting changed", "setting", "resources.billing.election")) != 1 {
		t.Error("the log does not say that the setting does not count yet")
	}
	_, err := h.bears(p, "b", 7, "worker_timeout", "0")
	wantFailure(t, "a token while leases count", err, "22023")
	if f := failureOf(err); f == nil || !strings.Contains(f.Hint, "limits.resource_idle") || strings.Contains(f.Hint, "or set resources") {
		t.Errorf("the refusal of a token is %+v", f)
	}
	a.leave()
	var b *client
	process.Eventually(t, process.Patience, "tokens to count", func() bool {
		b, err = h.bears(p, "b", 7)
		return err == nil
	})
	b.must("INSERT INTO work VALUES ('b')")
}

// TestAnInvalidConfigurationIsNotReloaded: all errors are told at once, by the command and
// in the log, and nothing changes.
func TestAnInvalidConfigurationIsNotReloaded(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, write := h.configured("unfenced: allow")
	write("unfenced: refuse\nlog:\n  format: loud\nlease: {linger: -1s}")
	code, out := h.command("reload", "--admin", p.Admin)
	if code != 1 || !strings.Contains(out, "fencepost.yml:3: log.format") || !strings.Contains(out, "fencepost.yml:4: lease.linger") {
		t.Errorf("fencepost reload: code %d, %s", code, out)
	}
	p.Signal(t, syscall.SIGHUP)
	process.Eventually(t, process.Patience, "both attempts to be logged", func() bool {
		return len(p.Lines("the configuration is invalid and was not reloaded: nothing has changed")) == 2
	})
	if errs := fmt.Sprint(p.Lines("the configuration is invalid and was not reloaded: nothing has changed")[0]["errors"]); !strings.Contains(errs, "log.format") || !strings.Contains(errs, "lease.linger") {
		t.Errorf("the log names %s", errs)
	}
	h.mustPlain(p).must("INSERT INTO work VALUES ('allowed')")
	write("unfenced: read-only")
	p.Signal(t, syscall.SIGHUP)
	p.Await(t, "setting changed", "setting", "unfenced.default", "old", "allow", "new", "read-only")
	if err := h.mustPlain(p).exec("INSERT INTO work VALUES ('refused')"); failureOf(err) == nil {
		t.Errorf("a write under the new policy: %v, want a refusal", err)
	}
}

// TestTheAdminAddressUnderTLS: reading is open, a change needs the token or a certificate,
// and a reload replaces the token.
func TestTheAdminAddressUnderTLS(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	ca := pgtest.NewAuthority(t)
	own := ca.Issue(t, pgtest.Subject{Name: "fencepost", Hosts: []string{"localhost"}})
	operator := ca.Issue(t, pgtest.Subject{Name: "operator"})
	stranger := pgtest.NewAuthority(t).Issue(t, pgtest.Subject{Name: "operator"})
	token := filepath.Join(t.TempDir(), "token")
	secret := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secret("first-token")
	p, _ := h.configured("admin:\n  token_file: " + token + "\n  tls: {cert_file: " + own.CertFile + ", key_file: " + own.KeyFile + ", client_ca_file: " + ca.File + "}")
	_, port, _ := strings.Cut(p.Admin, ":")
	address := "https://localhost:" + port
	try := func(code int, want string, args ...string) {
		t.Helper()
		if got, out := h.command(args...); got != code || !strings.Contains(out, want) {
			t.Errorf("fencepost %v: code %d, %q; want %d and %q", args, got, out, code, want)
		}
	}
	try(0, "no resource yet", "status", "--admin", address, "--ca-file", ca.File)
	try(1, "certificate", "status", "--admin", address) // its authority is not the system's
	try(1, "401", "reload", "--admin", address, "--ca-file", ca.File)
	try(1, "certificate", "reload", "--admin", address, "--ca-file", ca.File, "--cert-file", stranger.CertFile, "--key-file", stranger.KeyFile)
	try(0, "no setting has changed", "reload", "--admin", address, "--ca-file", ca.File, "--cert-file", operator.CertFile, "--key-file", operator.KeyFile)
	withToken := []string{"reload", "--admin", address, "--ca-file", ca.File, "--token-file", token}
	try(0, "no setting has changed", withToken...)

	secret("second-token")
	try(1, "401", withToken...) // the proxy has not read it yet
	p.Signal(t, syscall.SIGHUP)
	p.Await(t, "setting changed", "setting", "admin.token", "old", "******", "new", "******")
	try(0, "no setting has changed", withToken...)
	for _, log := range []string{"first-token", "second-token"} {
		if strings.Contains(p.Log(), log) {
			t.Errorf("the log shows the token:\n%s", process.Tail(p.Log()))
		}
	}
}
