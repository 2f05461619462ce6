package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
	"github.com/fencepost/fencepost/internal/table"
)

// TestNamesWriteNoLinesOfTheStatus: users of Postgres may choose names that contain
// line ends and escape sequences.
func TestNamesWriteNoLinesOfTheStatus(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	name := "w\nshop/billing: takeover blocked: process 4242 must be ended: pg_terminate_backend(4242)\n\x1b[2K"
	if err := printStatus(&out, []table.Resource{{ResourceView: admin.ResourceView{Database: "shop", Resource: "r", Leader: name, Epoch: 1}}}, ""); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d lines of one resource:\n%q", n, out.String())
	}
}

func TestStatusShowsATable(t *testing.T) {
	t.Parallel()
	m := admin.NewMetrics()
	m.Audit(fencing.Rejection{Database: "shop", Resource: "billing", SQLState: fencing.StateSuperseded, Kind: fencing.KindStale, Write: true})
	for range 2 {
		m.Audit(fencing.Rejection{Database: "shop", Resource: "billing", SQLState: fencing.StateSuperseded, Kind: fencing.KindDiscarded, Write: true})
	}
	stale := func(resource string) string {
		return map[string]string{"billing": "discard", "mail": "reject"}[resource]
	}
	ready := func(context.Context) admin.Readiness {
		return admin.Readiness{Faults: []faults.Active{{Fault: faults.Fault{Kind: faults.ControlLogin, Problem: "the password is wrong", Remedy: "Correct it."}}}}
	}
	server := &admin.Server{Proxy: "fence-2", Metrics: m, Ready: ready, StaleMode: stale, FenceMode: func(resource string) string { return map[string]string{"mail": "tables"}[resource] }, EnforceMode: func(resource string) string { return map[string]string{"mail": "shadow"}[resource] }, Resources: func() []status.Resource {
		return []status.Resource{
			{
				Database: "shop", Resource: "billing", State: status.Led, Local: true, LeaseLeft: 7 * time.Second, FalseAlarms: 4,
				Record: fencing.Record{Epoch: 8, Worker: "host-9:117:q1", GrantedAt: time.Now().Add(-time.Minute)},
				Candidacies: []status.Candidacy{{Worker: "host-9:117:q1", WorkerTimeout: 90 * time.Second, Silence: time.Second,
					Status: fencing.Status{Role: fencing.Leader, Epoch: 8}}},
			},
			{
				Database: "shop", Resource: "mail", State: status.Blocked, StateSince: time.Now().Add(-5 * time.Second), Reason: errors.New("a fault"),
				Leaderless: 5 * time.Second, Record: fencing.Record{Epoch: 3, Worker: "gone", GrantedAt: time.Now().Add(-time.Minute)},
				Candidacies: []status.Candidacy{{Worker: "next"}}, BlockedBy: []string{"something"},
			},
		}
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	out := runCommand(t, nil, "status", "--admin", l.Addr().String())
	cancel()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if out.code != exitOK {
		t.Fatalf("exit code %d: %s", out.code, out.stderr)
	}
	lines := strings.Split(strings.TrimSpace(out.stdout), "\n")
	if len(lines) != 11 {
		t.Fatalf("got %d lines:\n%s", len(lines), out.stdout)
	}
	if lines[0] != "control_login: the password is wrong" || lines[1] != "remedy: Correct it." {
		t.Errorf("the faults do not come first: %q", lines[:2])
	}
	lines = lines[2:]
	for _, want := range []string{"shop", "billing", "led", "host-9:117:q1", "fence-2", "8", "7s", "1s of 1m30s  1"} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("line %q has no %q", lines[1], want)
		}
	}
	if !strings.Contains(lines[2], "none") || !strings.Contains(lines[2], "blocked for 5s") || strings.Contains(lines[2], "gone") {
		t.Errorf("line %q does not say that nobody leads", lines[2])
	}
	if !strings.HasPrefix(lines[3], "shop/billing: 4 false alarms") {
		t.Errorf("line %q does not say how many false alarms there were", lines[3])
	}
	lines = lines[1:]
	if lines[3] != "shop/billing: discards stale writes: 2 so far" {
		t.Errorf("line %q does not say how many stale writes were discarded", lines[3])
	}
	if lines[4] != "shop/mail: shadow: nothing is refused" {
		t.Errorf("line %q does not say that nothing is refused", lines[4])
	}
	if lines[5] != "shop/mail: fence: tables: workers that do not lead may write what is not guarded" {
		t.Errorf("line %q does not say what refuses", lines[5])
	}
	if lines[6] != "shop/mail: blocked: a fault" || lines[7] != "shop/mail: takeover blocked: something" {
		t.Errorf("lines %q do not say what keeps the workers from leading", lines[6:])
	}
}

// TestStatusAsJSON: the same of a proxy and of the database, as far as each knows it.
func TestStatusAsJSON(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	r := servicetest.Start(t, server, nil)
	for _, resource := range []string{"billing", "mail"} {
		conn := r.Connect(t, db, "fencepost.resource="+resource+"&fencepost.worker=w")
		if err := servicetest.Exec(t, conn, "CREATE TABLE "+resource+" (n int)"); err != nil {
			t.Fatal(err)
		}
	}
	servicetest.Eventually(t, "the proxy is ready", func() bool {
		out := runCommand(t, nil, "status", "--ready", "--admin="+r.AdminAddress().String())
		return out.code == exitOK && strings.HasPrefix(out.stdout, "ready\n")
	})
	for source, onlyHere := range map[string]bool{"--admin=" + r.AdminAddress().String(): true, "--dsn=" + server.DSN(pgtest.Control, db): false} {
		out := runCommand(t, nil, "status", source, "--json", "--resource", "billing")
		var got struct {
			Resources []map[string]any
		}
		err := json.Unmarshal([]byte(out.stdout), &got)
		got.Resources = slices.DeleteFunc(got.Resources, func(v map[string]any) bool { return v["database"] != db }) // the server has others
		if err != nil || len(got.Resources) != 1 {
			t.Fatalf("%s: %v, exit code %d: %s%s", source, err, out.code, out.stdout, out.stderr)
		}
		v := got.Resources[0]
		if v["database"] != db || v["resource"] != "billing" || v["state"] != "led" || v["leader"] != "w" || v["epoch"] != 1.0 || v["confirmed_until"] == nil {
			t.Errorf("%s: %v", source, v)
		}
		if _, here := v["here"]; here != onlyHere {
			t.Errorf("%s: knows whether the leader is here: %v, want %v", source, here, onlyHere)
		}
		if out := runCommand(t, nil, "status", source, "--resource", "none"); out.code != exitFailure || !strings.Contains(out.stderr, `"none"`) {
			t.Errorf("%s: of a resource that is not there: exit code %d, %s", source, out.code, out.stderr)
		}
	}
}

// TestStatusIsWatched: the table comes again and again, and an error in its place if the
// proxy does not answer.
func TestStatusIsWatched(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	pages := 0
	o := statusOptions{admin: &admin.Client{Address: "127.0.0.1:1"}, watch: true}
	err := o.follow(ctx, writerFunc(func(b []byte) (int, error) {
		if pages++; pages == 2 {
			cancel()
		}
		return out.Write(b)
	}))
	if err != nil || pages != 2 || strings.Count(out.String(), "query the admin address") != 2 {
		t.Errorf("%d pages, %v:\n%q", pages, err, out.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestStatusRunsNothingOfUsers: functions that users have put into public do not stand for
// those that are built in, whoever asks.
func TestStatusRunsNothingOfUsers(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	db := server.Database(t)
	conn, err := connect(t.Context(), server.DSN(pgtest.Superuser, db))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var path string
	if err := conn.QueryRow(t.Context(), "SHOW search_path").Scan(&path); err != nil || path != "pg_catalog,pg_temp" {
		t.Errorf("the search path is %q, %v", path, err)
	}
}

// TestWhoMayReadTheStatus: members of pg_monitor, and nobody who was given nothing.
func TestWhoMayReadTheStatus(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	watcher := "watcher_of_" + db
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE "+watcher+" LOGIN IN ROLE pg_monitor")
	t.Cleanup(func() { s.Exec(t, pgtest.Superuser, db, "DROP ROLE "+watcher) })
	if out := runCommand(t, nil, "status", "--dsn", s.DSN(watcher, db)); out.code != exitOK || !strings.Contains(out.stdout, "no resources yet") {
		t.Errorf("a member of pg_monitor: code %d: %s%s", out.code, out.stdout, out.stderr)
	}
	if out := runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.App, db)); out.code != exitFailure || !strings.Contains(out.stderr, "members of pg_monitor may") {
		t.Errorf("a worker's role: code %d: %s%s", out.code, out.stdout, out.stderr)
	}
}

// TestALeaseWithoutAGrantBeginsNoState: the database forgets the lease of the last leader when others have it.
func TestALeaseWithoutAGrantBeginsNoState(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')",
		`INSERT INTO fencepost.lease (resource, incarnation, vacancy, acquired_at, expires_at) VALUES ('billing', 'next', 'held', clock_timestamp(), clock_timestamp() + interval '1 hour')`)
	if got := pgtest.Ask[string](t, s, db, "SELECT concat(state, ' since ', coalesce(state_since::text, '?')) FROM fencepost.status"); got != "electing since ?" {
		t.Errorf("it is %s", got)
	}
}
