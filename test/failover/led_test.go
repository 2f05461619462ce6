package failover

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/fencepost/admin"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAnUnconfirmedGrantIsNotLed: the synchronous standby is away. The proxy of a worker knows whether
// it leads. Others know it of a grant that the standby has confirmed to them, and of no other one.
func TestAnUnconfirmedGrantIsNotLed(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p, q := h.proxy(), h.proxy()
	first := h.join(p, "first")
	h.observe(q)
	h.awaitState("at the other proxy", h.at(q), "led", "first")
	h.awaitState("in the database", h.inDatabase, "led", "first")

	from := ask[string](h, h.b, "SHOW primary_conninfo")
	h.cut(0)
	late := h.proxy()
	h.observe(late)
	h.awaitState("at a proxy that began later", h.at(late), "unknown", "")
	h.awaitState("in the database", h.inDatabase, "unknown", "")
	for _, proxy := range []*process.Server{p, q} {
		h.awaitState("at a proxy that knows that the grant is confirmed", h.at(proxy), "led", "first")
	}
	if waits := ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'BEGIN; SET LOCAL synchronous_commit%'"); waits != 0 {
		t.Errorf("%d sessions wait for the standby", waits)
	}

	h.must(first, "SELECT 1")
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	go func() {
		_, err := h.tryJoin(p, "second")
		joined <- err
	}()
	process.Eventually(t, process.Patience, "the grant to wait for the standby, and to be cancelled", func() bool {
		return ask[int](h, h.a, `SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND query LIKE '%fencepost.grant(%') c`) == 1
	})
	var got admin.ResourceView
	process.Eventually(t, process.Patience, "the other proxy to read the grant, and that it is not confirmed", func() bool {
		got = h.at(q)()
		return got.Epoch == 2 && got.State == "unknown" && strings.Contains(got.StateReason, "synchronous standbys")
	})
	if got.Leader != "" || got.GrantedTo != "second" || got.Leaderless <= 0 {
		t.Errorf("at the other proxy: %+v", got)
	}
	_, metrics := q.Get(t, "/metrics")
	if leaderless := regexp.MustCompile(`(?m)^fencepost_leaderless_seconds\{.*\} (.*)$`).FindStringSubmatch(metrics); leaderless == nil || leaderless[1] == "0" {
		t.Errorf("the metrics of the other proxy: leaderless for %q", leaderless)
	}
	if got := h.at(p)(); got.State != "contested" {
		t.Errorf("at its own proxy: %+v", got)
	}
	if code, out := h.command("status", "--dsn", h.a.DSN(pgtest.Control, h.db)); code != 0 || !strings.Contains(out, "unknown") || !strings.Contains(out, "synchronous standbys") {
		t.Errorf("status --dsn: code %d:\n%s", code, out)
	}

	h.b.Exec(t, pgtest.Superuser, "postgres", "ALTER SYSTEM SET primary_conninfo = '"+strings.ReplaceAll(from, "'", "''")+"'", "SELECT pg_reload_conf()")
	if err := <-joined; err != nil {
		t.Fatalf("the second worker: %v", err)
	}
	h.awaitState("at the other proxy", h.at(q), "led", "second")
	h.awaitState("at the proxy that began later", h.at(late), "led", "second")
	h.awaitState("in the database", h.inDatabase, "led", "second")
}

// at returns a reader of what a proxy shows of the resource.
func (h *pair) at(p *process.Server) func() admin.ResourceView {
	return func() (view admin.ResourceView) {
		h.t.Helper()
		_, body := p.Get(h.t, "/v1/resources/"+h.db+"/billing")
		if err := json.Unmarshal([]byte(body), &view); err != nil {
			h.t.Fatalf("parse the resource: %v: %s", err, body)
		}
		return view
	}
}

// inDatabase returns what status --dsn shows of the resource, to the control role.
func (h *pair) inDatabase() admin.ResourceView {
	h.t.Helper()
	code, out := h.command("status", "--json", "--dsn", h.a.DSN(pgtest.Control, h.db))
	var list admin.ResourceList
	if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil || len(list.Resources) != 1 {
		h.t.Fatalf("status --dsn: code %d, %v: %s", code, err, out)
	}
	return list.Resources[0]
}

// awaitState waits until the resource is in a state, with a leader.
func (h *pair) awaitState(where string, read func() admin.ResourceView, state, leader string) {
	h.t.Helper()
	var got admin.ResourceView
	if !process.Holds(process.Patience, func() bool { got = read(); return got.State == state && got.Leader == leader }) {
		h.t.Fatalf("%s: %+v; want %s, led by %q", where, got, state, leader)
	}
}
