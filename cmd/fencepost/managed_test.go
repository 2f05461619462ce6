package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// TestAManagedServiceGivesEnoughRights: an administrator who is no superuser, as the services of docs/managed.md have,
// runs the statements of that page. The control role then migrates, and its grant ends a leader's transaction.
func TestAManagedServiceGivesEnoughRights(t *testing.T) {
	t.Parallel()
	t.Run("default", func(t *testing.T) { t.Parallel(); testManaged(t, pgtest.Shared(t), "pg_read_all_stats") })
	t.Run("pg_monitor", func(t *testing.T) { t.Parallel(); testManaged(t, pgtest.Shared(t), "pg_monitor") })
	t.Run("18", func(t *testing.T) { t.Parallel(); testManaged(t, pgtest.SharedMajor(t, 18), "pg_read_all_stats") })
}

// testManaged runs with an administrator that may grant pg_signal_backend and the role stats.
func testManaged(t *testing.T, s *pgtest.Server, stats string) {
	db := s.EmptyDatabase(t)
	admin, control, app := db+"_admin", db+"_control", db+"_shop"
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE "+admin+" LOGIN CREATEROLE CREATEDB",
		"GRANT pg_signal_backend, "+stats+" TO "+admin+" WITH ADMIN OPTION", "ALTER DATABASE "+db+" OWNER TO "+admin)
	page, err := os.ReadFile("../../docs/managed.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sql\n(-- once per server.*?)```.*```sql\n(SELECT.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/managed.md does not say how to make the control role, and who may")
	}
	var signals, reads bool
	if err := s.Connect(t, admin, db).QueryRow(t.Context(), string(block[2])).Scan(&signals, &reads); err != nil || !signals || !reads {
		t.Errorf("the administrator may grant pg_signal_backend: %t, and what reads the statistics: %t; %v", signals, reads, err)
	}
	sql := strings.NewReplacer("fencepost", control, "DATABASE shop", "DATABASE "+db, "pg_read_all_stats", stats).Replace(string(block[1]))
	s.Exec(t, admin, db, sql, "CREATE ROLE "+app+" LOGIN")
	dsn := s.DSN(control, db)
	if out := runCommand(t, nil, "migrate", "--dsn", dsn, "--control-role", control); out.code != exitOK || out.stderr != "" {
		t.Fatalf("migrate: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	s.Exec(t, admin, db, "CREATE TABLE charges (worker text)", "GRANT ALL ON charges TO "+app)
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Control.User, c.Control.ProbeDatabase = control, db
		c.Lease.WorkerTimeout, c.Lease.Grace = config.Duration(time.Second), config.Duration(200*time.Millisecond)
	})
	join := func(worker string) func(string) error {
		conn := r.Connect(t, db, "user="+app+"&fencepost.resource=billing&fencepost.campaign=wait&fencepost.worker="+worker)
		return func(sql string) error { return servicetest.Exec(t, conn, sql) }
	}
	a := join("a")
	for _, sql := range []string{"BEGIN", "INSERT INTO charges VALUES ('a')"} {
		if err := a(sql); err != nil {
			t.Fatal(err)
		}
	}
	b := join("b") // when a has been silent for the worker timeout
	servicetest.WantState(t, a("COMMIT"), "ZF001")
	if err := b("INSERT INTO charges VALUES ('b')"); err != nil {
		t.Errorf("the new leader: %v", err)
	}
	if got := pgtest.Ask[string](t, s, db, "SELECT string_agg(worker, ' ') FROM charges"); got != "b" {
		t.Errorf("the table contains %q", got)
	}
	if n := len(r.Log.Lines(t, "terminated a backend that blocked a grant")); n != 1 {
		t.Errorf("the grant has ended %d backends, so the test proves nothing", n)
	}
	env := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": control, "FENCEPOST_LIMITS_MAX_CONNECTIONS": "10"}
	out := runCommand(t, env, "doctor", "--database", db)
	for _, finding := range []string{"control-login", "control-privilege", "error: schema", "write-all-data"} {
		if out.code == exitUsage || strings.Contains(out.stdout, finding) {
			t.Errorf("the doctor (code %d) finds %s:\n%s%s", out.code, finding, out.stdout, out.stderr)
		}
	}
	// From 16 on, whoever creates a role is its administrator.
	creator := fencing.ServerMajor(pgtest.Ask[string](t, s, db, "SHOW server_version")) >= 16
	if found := strings.Contains(out.stdout, "role "+admin+" has membership in the control role"); found != creator || found != strings.Contains(out.stdout, "fence-rights") {
		t.Errorf("the doctor finds the administrator's rights: %t, want %t:\n%s", found, creator, out.stdout)
	}
}
