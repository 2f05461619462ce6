package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// refusalOf connects, and returns the error of a connection that is refused.
func refusalOf(t *testing.T, r *servicetest.Running, db, params string) *pgconn.PgError {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), servicetest.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.DSN(db, params))
	if err == nil {
		_ = conn.Close(ctx)
		t.Fatalf("connected with %s", params)
	}
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Severity != "FATAL" {
		t.Fatalf("connect with %s: %v, want a refusal", params, err)
	}
	return refused
}

// mustRefuse fails the test unless a connection is refused with the SQLSTATE, which ends the
// message, and its message and hint contain these texts.
func mustRefuse(t *testing.T, r *servicetest.Running, db, params, state string, texts ...string) {
	t.Helper()
	refused := refusalOf(t, r, db, params)
	all := refused.Message + "\n" + refused.Hint
	for _, text := range texts {
		if refused.Code != state || !strings.HasSuffix(refused.Message, " ["+state+"]") || !strings.Contains(all, text) {
			t.Errorf("connect with %s: %s %s, want %s and %q", params, refused.Code, all, state, text)
		}
	}
}

func resourcesOf(t *testing.T, s *pgtest.Server, db string) (names string) {
	t.Helper()
	err := s.Connect(t, pgtest.Control, db).QueryRow(t.Context(), "SELECT coalesce(string_agg(resource, ' ' ORDER BY resource), '') FROM fencepost.fence").Scan(&names)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestARoleThatIsNotListedMayNotCampaign(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Resources = map[string]config.Resource{"billing": {Users: []string{"biller"}}, "stock": {Users: []string{"biller", pgtest.App}}}
	})
	for _, params := range []string{"", "&fencepost.campaign=wait", "&fencepost.worker=w"} {
		mustRefuse(t, r, db, "fencepost.resource=billing"+params, "28000", `"`+pgtest.App+`"`, `"billing"`, "resources.<name>.users", "fencepost.campaign=off")
	}
	servicetest.Eventually(t, "the refused connections to be counted", func() bool {
		_, metrics := r.Ask(t, "/metrics")
		return strings.Contains(metrics, `fencepost_connections_refused_total{reason="authentication"} 3`)
	})
	if made := resourcesOf(t, s, db); made != "" {
		t.Errorf("a refused role created %s", made)
	}
	observer := r.Connect(t, db, "fencepost.resource=billing&fencepost.campaign=off")
	if err := servicetest.Exec(t, observer, "SELECT n FROM work"); err != nil {
		t.Errorf("an observer's read: %v", err)
	}
	servicetest.WantState(t, servicetest.Exec(t, observer, "INSERT INTO work VALUES (1)"), "ZF002")
	for _, resource := range []string{"stock", "other"} {
		worker := r.Connect(t, db, "fencepost.resource="+resource)
		if err := servicetest.Exec(t, worker, "INSERT INTO work VALUES (1)"); err != nil {
			t.Errorf("a write of a role that may campaign for %s: %v", resource, err)
		}
	}
}

func TestWorkerTimeoutsAreBounded(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Lease.MaxWorkerTimeout = config.Duration(time.Minute)
		longer := config.Duration(time.Hour)
		c.Resources = map[string]config.Resource{"nightly": {MaxWorkerTimeout: &longer}}
	})
	for params, text := range map[string]string{
		"billing&fencepost.worker_timeout=0":  "0 (never)",
		"billing&fencepost.worker_timeout=2m": "2m0s",
		"nightly&fencepost.worker_timeout=2h": "at most 1h0m0s",
	} {
		mustRefuse(t, r, db, "fencepost.resource="+params, "22023", text, "fencepost.worker_timeout", "lease.max_worker_timeout")
	}
	for _, params := range []string{"billing", "billing&fencepost.worker_timeout=1m", "nightly&fencepost.worker_timeout=1h"} {
		_ = r.Connect(t, db, "fencepost.resource="+params)
	}
	unbounded := servicetest.Start(t, s, nil)
	_ = unbounded.Connect(t, db, "fencepost.resource=another&fencepost.worker=w&fencepost.worker_timeout=0")
	_, body := unbounded.Ask(t, "/v1/resources/"+db+"/another")
	if !strings.Contains(body, `"worker_timeout_seconds": null`) {
		t.Errorf("a worker without a timeout: %s", body)
	}
	if _, metrics := unbounded.Ask(t, "/metrics"); !strings.Contains(metrics, fmt.Sprintf(`fencepost_worker_timeout_seconds{database=%q,resource="another"} +Inf`, db)) {
		t.Error("/metrics does not show it")
	}
}

func TestPromisesOfHeartbeatsAreBounded(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Resources = map[string]config.Resource{"tokens": {Election: "token"}}
	})
	for params, text := range map[string]string{
		"billing&fencepost.heartbeat=99ms":                             "between 100ms and 1m0s",
		"billing&fencepost.heartbeat=61s&fencepost.worker_timeout=0":   "between 100ms and 1m0s",
		"billing&fencepost.heartbeat=30s":                              "unresponsive after 30s",
		"billing&fencepost.heartbeat=1s&fencepost.worker_timeout=1s":   "unresponsive after 1s",
		"tokens&fencepost.heartbeat=1s&fencepost.token=1":              "has no leases",
		"billing&fencepost.heartbeat=often&fencepost.worker_timeout=0": "invalid value",
	} {
		mustRefuse(t, r, db, "fencepost.resource="+params, "22023", text, "fencepost.heartbeat")
	}
	for _, params := range []string{"heartbeat=0", "heartbeat=100ms", "heartbeat=1m&fencepost.worker_timeout=0", "heartbeat=30s&fencepost.campaign=off"} {
		_ = r.Connect(t, db, "fencepost.resource=billing&fencepost."+params)
	}
	_ = r.Connect(t, db, "fencepost.resource=another&fencepost.worker=w&fencepost.heartbeat=1s")
	if w := r.View(t, db, "another").Workers[0]; w.Heartbeat == nil || *w.Heartbeat != 1 || *w.WorkerTimeout != 7.5 {
		t.Errorf("a worker that has promised heartbeats: %+v", w)
	}
}

func TestOnlyConfiguredResources(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	_ = servicetest.Start(t, s, nil).Connect(t, db, "fencepost.resource=old")
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.UnknownResources = "deny"
		c.Resources = map[string]config.Resource{"billing": {}}
	})
	for _, resource := range []string{"new", "old", "new&fencepost.campaign=off"} {
		mustRefuse(t, r, db, "fencepost.resource="+resource, "42704", "is not configured", "unknown_resources is deny")
	}
	_ = r.Connect(t, db, "fencepost.resource=billing")
	if made := resourcesOf(t, s, db); made != "billing old" {
		t.Errorf("the fence table contains %s", made)
	}
}

// TestOneUserUsesFewResourcesAtOnce checks that a role above the limit creates nothing,
// in whatever mode it connects. What it uses, what is configured, and other roles are not
// affected. A resource that it has left counts until only others use it.
func TestOneUserUsesFewResourcesAtOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	other := "other_" + db
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE "+other+" LOGIN")
	t.Cleanup(func() { s.Exec(t, pgtest.Superuser, db, "DROP ROLE "+other) })
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Limits.ResourcesPerUser = 2
		c.Limits.ResourceIdle = config.Duration(time.Hour)
		c.Resources = map[string]config.Resource{"billing": {}, "stock": {}}
	})
	a := r.Connect(t, db, "fencepost.resource=a")
	_ = r.Connect(t, db, "fencepost.resource=b&fencepost.campaign=off")
	for _, resource := range []string{"billing", "stock", "b"} {
		_ = r.Connect(t, db, "fencepost.resource="+resource+"&fencepost.worker=again")
	}
	refused := func(when string) {
		t.Helper()
		for _, params := range []string{"c", "c&fencepost.campaign=off", "c&fencepost.campaign=wait"} {
			mustRefuse(t, r, db, "fencepost.resource="+params, "53400", "limits.resources_per_user", `"c"`, `"`+pgtest.App+`"`, "the limit is 2")
		}
		if made := resourcesOf(t, s, db); made != "a b billing stock" {
			t.Errorf("%s, the fence table contains %s", when, made)
		}
	}
	refused("while the role uses two")
	ctx, cancel := context.WithTimeout(t.Context(), servicetest.Patience)
	defer cancel()
	if err := a.Close(ctx); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the worker of a to be gone", func() bool {
		_, body := r.Ask(t, "/v1/resources/"+db+"/a")
		return !strings.Contains(body, `"worker"`)
	})
	refused("after it has left one")
	conn, err := pgx.Connect(ctx, strings.Replace(r.DSN(db, "fencepost.resource=a"), pgtest.App+"@", other+"@", 1))
	if err != nil {
		t.Fatalf("another role: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_ = r.Connect(t, db, "fencepost.resource=c")
}

// TestAForgottenResourceKeepsItsEpoch checks that forgetting discards only this proxy's
// knowledge.
func TestAForgottenResourceKeepsItsEpoch(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) { c.Limits.ResourceIdle = config.Duration(50 * time.Millisecond) })
	for epoch := int64(1); epoch < 4; epoch++ {
		worker := r.Connect(t, db, fmt.Sprintf("fencepost.resource=billing&fencepost.worker=w%d", epoch))
		var view admin.ResourceView
		_, body := r.Ask(t, "/v1/resources/"+db+"/billing")
		if err := json.Unmarshal([]byte(body), &view); err != nil || view.Epoch != epoch || !view.Here {
			t.Errorf("%v: %s, want epoch %d", err, body, epoch)
		}
		if err := worker.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		servicetest.Eventually(t, "the resource to be forgotten", func() bool { return len(r.Resources()) == 0 })
		servicetest.Eventually(t, "its counters to be gone", func() bool {
			_, metrics := r.Ask(t, "/metrics")
			return !strings.Contains(metrics, fmt.Sprintf("fencepost_grants_total{database=%q", db))
		})
	}
	s.Exec(t, pgtest.Superuser, db, "UPDATE fencepost.fence SET epoch = 1")
	mustRefuse(t, r, db, "fencepost.resource=billing&fencepost.worker=late", "ZF004", "restored", "epoch 3")
}
