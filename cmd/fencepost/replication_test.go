package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// subscriber is a database with a subscription to another one of its server.
type subscriber struct {
	s            *pgtest.Server
	db, from     string
	subscription string
}

// subscribe makes a database with the schema, and has it subscribe to a publication of another one.
func subscribe(t *testing.T, s *pgtest.Server, from, publication string) subscriber {
	t.Helper()
	b := subscriber{s, s.Database(t), from, "to_" + publication}
	s.Exec(t, pgtest.App, b.db, "CREATE TABLE invoices (id int PRIMARY KEY)")
	s.Exec(t, pgtest.Superuser, from, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", b.subscription))
	s.Exec(t, pgtest.Superuser, b.db, "ALTER TABLE fencepost.fence ALTER COLUMN id RESTART WITH 1000", // every real schema numbers its fences from another number
		fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION %s WITH (create_slot = false)", b.subscription, s.DSN(pgtest.Superuser, from), publication))
	t.Cleanup(func() {
		if s.Running() {
			b.drop(t)
		}
	})
	return b
}

// drop ends the subscription, if it has not ended.
func (b subscriber) drop(t *testing.T) {
	t.Helper()
	conn := b.s.Connect(t, pgtest.Superuser, b.db)
	if pgtest.Ask[int](t, b.s, b.db, "SELECT count(*) FROM pg_subscription WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())") == 0 {
		return
	}
	if _, err := conn.Exec(context.Background(), "DROP SUBSCRIPTION "+b.subscription); err != nil {
		t.Error(err)
	}
}

// await waits until all tables are copied and the subscriber has the invoices up to one.
func (b subscriber) await(t *testing.T, invoice int) {
	t.Helper()
	ask := fmt.Sprintf("SELECT NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r') AND count(*) = %d FROM invoices", invoice)
	process.Eventually(t, process.Patience, fmt.Sprintf("invoice %d at the subscriber", invoice), func() bool { return pgtest.Ask[bool](t, b.s, b.db, ask) })
}

// findings returns those of the doctor that are about replication.
func findings(t *testing.T, s *pgtest.Server, db string) (ids []string) {
	t.Helper()
	out := runCommand(t, nil, "doctor", "--dsn", s.DSN(pgtest.Superuser, db))
	for _, id := range []string{"publication-fence", "subscription-fence"} {
		if strings.Contains(out.stdout, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestLogicalReplication: a subscription to all tables of a database writes nothing in the schema of the subscriber, and
// goes on. One to the application's tables is what the documentation describes for an upgrade.
func TestLogicalReplication(t *testing.T) {
	t.Parallel()
	for _, major := range []int{15, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			s := pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, major)), pgtest.WithConfig(map[string]string{
				"wal_level": "logical", "wal_retrieve_retry_interval": "100ms", "max_logical_replication_workers": "10", "max_worker_processes": "20"}))
			from := s.Database(t)
			s.Exec(t, pgtest.App, from, "CREATE TABLE invoices (id int PRIMARY KEY)", "INSERT INTO invoices VALUES (1)")
			testReplicationOfAllTables(t, s, from)
			testUpgradeByReplication(t, s, from)
		})
	}
}

func testReplicationOfAllTables(t *testing.T, s *pgtest.Server, from string) {
	ask := func(db, sql string) string { return pgtest.Ask[string](t, s, db, sql) }
	const fences = "SELECT coalesce(string_agg(f.resource || ' ' || f.epoch, ', ' ORDER BY f.resource), '') FROM fencepost.fence f"
	s.Exec(t, pgtest.Control, from, "SELECT fencepost.register('before')")
	s.Exec(t, pgtest.Superuser, from, "CREATE PUBLICATION everything FOR ALL TABLES")
	if got := findings(t, s, from); !slices.Equal(got, []string{"publication-fence"}) {
		t.Errorf("the doctor finds %v at the publisher", got)
	}
	b := subscribe(t, s, from, "everything")
	b.await(t, 1)
	for _, db := range []string{from, b.db} { // both have orders of the same ids
		s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.raise_epoch((SELECT id FROM fencepost.fence WHERE resource = 'billing'), 6, 'me', '', '1s', '1s')")
	}
	s.Exec(t, pgtest.Control, from, "SELECT fencepost.remove((SELECT id FROM fencepost.fence WHERE resource = 'before'), true, 'me', '', '1s', '1s')",
		"UPDATE fencepost.fence SET epoch = 3", "UPDATE fencepost.floor SET epoch = 2", "DELETE FROM fencepost.orders WHERE kind = 'raise'")
	s.Exec(t, pgtest.App, from, "INSERT INTO invoices VALUES (2)")
	b.await(t, 2)
	if got := ask(b.db, fences); got != "billing 7" {
		t.Errorf("the subscriber has the fences %q", got)
	}
	if got := ask(b.db, "SELECT count(*) || ' ' || (SELECT epoch FROM fencepost.floor) FROM fencepost.orders"); got != "1 0" {
		t.Errorf("the subscriber has orders and a floor %q", got)
	}
	if got := findings(t, s, b.db); len(got) > 0 {
		t.Errorf("the doctor finds %v at the subscriber", got)
	}

	s.Exec(t, pgtest.Control, b.db, "ALTER TABLE fencepost.fence DISABLE TRIGGER unreplicated")
	if got := findings(t, s, b.db); !slices.Equal(got, []string{"subscription-fence"}) {
		t.Errorf("the doctor finds %v where a trigger is disabled", got)
	}
	if out := runCommand(t, nil, "migrate", "--dsn", s.DSN(pgtest.Superuser, b.db)); out.code != exitOK {
		t.Fatalf("migrate: %s%s", out.stdout, out.stderr)
	}
	if got := findings(t, s, b.db); len(got) > 0 {
		t.Errorf("the doctor finds %v after a migration", got)
	}
	// A client may restore rows in the same mode.
	if _, err := s.Connect(t, pgtest.Superuser, b.db).Exec(t.Context(), "SET session_replication_role = replica; UPDATE fencepost.fence SET epoch = 8", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	if got := ask(b.db, fences); got != "billing 8" {
		t.Errorf("after a client's update, the fences are %q", got)
	}
	s.Exec(t, pgtest.Control, from, "TRUNCATE fencepost.floor", "INSERT INTO fencepost.floor (epoch) VALUES (0)") // which nothing can skip
	process.Eventually(t, process.Patience, "replication to stop at the TRUNCATE", func() bool {
		return ask(b.db, "SELECT sum(apply_error_count)::text FROM pg_stat_subscription_stats WHERE subname = '"+b.subscription+"'") != "0"
	})
	if got := ask(b.db, "SELECT string_agg(epoch::text, ' ') FROM fencepost.floor"); got != "0" {
		t.Errorf("after a TRUNCATE of the publisher, the subscriber has the floors %q", got)
	}
	b.drop(t)
	s.Exec(t, pgtest.Superuser, from, "DROP PUBLICATION everything")
}

// testUpgradeByReplication is the procedure of docs/backup.md.
func testUpgradeByReplication(t *testing.T, s *pgtest.Server, from string) {
	if got := lead(t, s, from, "old", nil); got == "" {
		t.Fatal("nobody leads at the publisher")
	}
	last := pgtest.Ask[int64](t, s, from, "SELECT max(epoch) FROM fencepost.fence")
	s.Exec(t, pgtest.Superuser, from, "CREATE PUBLICATION application FOR TABLES IN SCHEMA public")
	b := subscribe(t, s, from, "application")
	b.await(t, 2)
	if got := append(findings(t, s, from), findings(t, s, b.db)...); len(got) > 0 {
		t.Errorf("the doctor finds %v", got)
	}
	if out := runCommand(t, nil, "pause", "billing", "--dsn", s.DSN(pgtest.Control, from)); out.code != exitOK {
		t.Fatalf("pause: %s%s", out.stdout, out.stderr)
	}
	s.Exec(t, pgtest.Superuser, from, "INSERT INTO invoices VALUES (3)")
	b.await(t, 3)
	b.drop(t)
	env := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}
	above := fmt.Sprint(last + 1) // of the pause
	if out := runCommand(t, env, "generation", "bump", "--database", b.db, "--above", above); out.code != exitOK {
		t.Fatalf("generation bump: %s%s", out.stdout, out.stderr)
	}
	wantEpoch(t, lead(t, s, b.db, "new", nil), fmt.Sprint(last+2))
}
