package observability

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// soon returns a file of the rules whose alerts fire after some seconds of what they are about.
func soon(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	short := regexp.MustCompile(`for: \S+`).ReplaceAllString(strings.Replace(string(text), "> 60", "> 5", 1), "for: 2s")
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(short), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// alerts returns the alerts of which an expression of ALERTS tells, by resource: "" is for those of a proxy. It leaves out
// FencepostLeaseMarginSmall, which compares with an hour of history.
func (p *played) alerts(expr string) map[string][]string {
	p.t.Helper()
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	if err := p.prometheus.get("query", url.Values{"query": {expr}}, &data); err != nil {
		p.t.Fatal(err)
	}
	all := map[string]map[string]bool{}
	for _, r := range data.Result {
		at := r.Metric["resource"]
		if r.Metric["alertname"] == "FencepostLeaseMarginSmall" {
			continue
		}
		if all[at] == nil {
			all[at] = map[string]bool{}
		}
		all[at][r.Metric["alertname"]] = true
	}
	sorted := map[string][]string{}
	for at, names := range all {
		sorted[at] = slices.Sorted(maps.Keys(names))
	}
	return sorted
}

// awaitAlerts waits until these alerts fire, by resource, and no others.
func (p *played) awaitAlerts(want map[string][]string) {
	p.t.Helper()
	var got map[string][]string
	if !process.Holds(process.Patience, func() bool {
		got = p.alerts(`ALERTS{alertstate="firing"}`)
		return maps.EqualFunc(got, want, slices.Equal)
	}) {
		p.t.Fatalf("these alerts fire: %v; want %v", got, want)
	}
}

func (p *played) awaitState(resource, state string) {
	p.t.Helper()
	process.Eventually(p.t, process.Patience, resource+" to be "+state, func() bool {
		_, body := p.proxy.Get(p.t, "/v1/resources/"+p.db+"/"+resource)
		return strings.Contains(body, fmt.Sprintf(`"state": %q`, state))
	})
}

func (p *played) pause(resource string) {
	p.t.Helper()
	out, err := exec.CommandContext(p.t.Context(), process.Program(p.t), "pause", resource, "--dsn", p.pg.DSN(pgtest.Control, p.db), "--reason", "a drill").CombinedOutput()
	if err != nil {
		p.t.Fatalf("pause: %v: %s", err, out)
	}
}

func startPlayed(t *testing.T, pg *pgtest.Server, settings ...string) *played {
	t.Helper()
	p := &played{t: t, pg: pg, db: pg.Database(t)}
	p.proxy = process.ServeOn(t, pg, append([]string{"FENCEPOST_LEASE_TTL=2s", "FENCEPOST_LEASE_GRACE=200ms", "FENCEPOST_STARTUP_WAIT=500ms",
		"FENCEPOST_DRAIN_TIMEOUT=1s", "FENCEPOST_LIMITS_RESOURCE_IDLE=1s"}, settings...)...)
	p.prometheus = startPrometheus(t, soon(t), p.proxy.Admin)
	pg.Exec(t, pgtest.App, p.db, "CREATE TABLE work (n int)")
	return p
}

// TestAlertsOfResources plays what may happen to the workers of a resource. Nobody is called out for one that nobody is
// meant to lead, nor for a write that an operator's order has stopped.
func TestAlertsOfResources(t *testing.T) {
	t.Parallel()
	p := startPlayed(t, pgtest.Start(t, pgtest.WithConfig(map[string]string{"max_prepared_transactions": "1"})))

	p.join("idle", "w", "worker_timeout", "500ms", "campaign", "wait")
	p.awaitState("idle", "idle")

	led, _ := p.join("paused", "leader", "campaign", "wait"), p.join("paused", "follower")
	p.pause("paused")
	if _, err := led.Exec(t.Context(), "INSERT INTO work VALUES (1)"); err == nil || !strings.Contains(err.Error(), "ZF001") {
		t.Fatalf("the leader of a resource that is paused wrote: %v", err)
	}
	p.awaitState("paused", "paused")

	left := p.join("paused and left", "w", "campaign", "wait")
	p.pause("paused and left")
	p.leave(left)

	frozen := p.join("taken over", "frozen", "worker_timeout", "1s", "campaign", "wait")
	p.join("taken over", "next", "worker_timeout", "0", "campaign", "wait")
	if _, err := frozen.Exec(t.Context(), "INSERT INTO work VALUES (1)"); err == nil || !strings.Contains(err.Error(), "ZF001") {
		t.Fatalf("the frozen worker wrote after it was superseded: %v", err)
	}

	first := p.join("blocked", "first", "campaign", "wait")
	p.join("blocked", "second", "worker_timeout", "0")
	p.pg.Exec(t, pgtest.Superuser, p.db, "BEGIN", "SELECT FROM fencepost.fence WHERE resource = 'blocked' FOR KEY SHARE", "PREPARE TRANSACTION 'blocks'")
	p.leave(first)
	p.awaitState("blocked", "blocked")

	p.leave(p.join("dead", "w", "campaign", "wait"))
	p.awaitState("dead", "absent")
	want := map[string][]string{
		"taken over": {"FencepostStaleWriteRefused"},
		"blocked":    {"FencepostNobodyLeads", "FencepostTakeoverBlocked"},
		"dead":       {"FencepostNoWorkers"}, // long after its proxy has forgotten it
	}
	p.awaitAlerts(want)
	process.Eventually(t, process.Patience, "the proxy to have forgotten the resource without workers", func() bool {
		_, metrics := p.proxy.Get(t, "/metrics")
		return !strings.Contains(metrics, fmt.Sprintf("fencepost_grants_total{database=%q,resource=\"dead\"}", p.db))
	})
	p.awaitAlerts(want)
	p.pg.Exec(t, pgtest.Superuser, p.db, "ROLLBACK PREPARED 'blocks'")
	p.join("dead", "again", "campaign", "wait")
	p.awaitAlerts(map[string][]string{"taken over": {"FencepostStaleWriteRefused"}})
	if ever := p.alerts(`max_over_time(ALERTS{alertstate="firing"}[1h])`); !maps.EqualFunc(ever, want, slices.Equal) {
		t.Errorf("these alerts fired: %v; want %v", ever, want)
	}
}

// TestAlertsOfPostgres takes the synchronous standby away while a worker is to take over, and then Postgres.
func TestAlertsOfPostgres(t *testing.T) {
	t.Parallel()
	p := startPlayed(t, pgtest.Start(t))
	first := p.join("billing", "first", "campaign", "wait")
	p.join("billing", "second", "worker_timeout", "0")
	p.pg.Exec(t, pgtest.Superuser, p.db, "ALTER SYSTEM SET synchronous_standby_names = 'missing'", "SELECT pg_reload_conf()")
	p.leave(first)
	p.awaitAlerts(map[string][]string{"billing": {"FencepostNobodyLeads", "FencepostTakeoverBlocked"}})
	p.pg.Exec(t, pgtest.Superuser, p.db, "SET synchronous_commit = local", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	p.awaitState("billing", "led")
	p.awaitAlerts(map[string][]string{})
	p.pg.Stop(t, pgtest.Immediate)
	p.awaitAlerts(map[string][]string{"": {"FencepostFault", "FencepostNotReady"}, "billing": {"FencepostNobodyLeads"}})
}

// TestAlertsOfALeaseService stops the lease service of a leader.
func TestAlertsOfALeaseService(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	p := startPlayed(t, pgtest.Shared(t), agent.Settings("alerts")...)
	p.join("billing", "w", "campaign", "wait")
	p.awaitState("billing", "led")
	agent.Pause(t)
	p.awaitAlerts(map[string][]string{"": {"FencepostFault"}, "billing": {"FencepostNobodyLeads"}})
	agent.Continue(t)
	p.awaitState("billing", "led")
}
