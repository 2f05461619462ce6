package pgtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestDatabaseIsFreshAndMigrated(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	one, two := s.Database(t), s.Database(t)
	if one == two {
		t.Fatalf("two databases have the name %s", one)
	}
	s.Exec(t, pgtest.App, one, "CREATE TABLE public.mine (id int)")
	var tables, versions int
	conn := s.Connect(t, pgtest.Control, two)
	if err := conn.QueryRow(context.Background(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(context.Background(), "SELECT count(*) FROM fencepost.schema_version").Scan(&versions); err != nil {
		t.Fatal(err)
	}
	if tables != 0 || versions == 0 {
		t.Errorf("a fresh database has %d tables in public and %d migrations; want 0 and at least 1", tables, versions)
	}
}

func TestControlIsNoSuperuserAndEndsBackends(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.EmptyDatabase(t)
	var super, signals, reads bool
	conn := s.Connect(t, pgtest.Control, db)
	err := conn.QueryRow(context.Background(), `SELECT rolsuper, pg_has_role(rolname, 'pg_signal_backend', 'USAGE'),
		pg_has_role(rolname, 'pg_read_all_stats', 'USAGE') FROM pg_roles WHERE rolname = current_user`).Scan(&super, &signals, &reads)
	if err != nil {
		t.Fatal(err)
	}
	if super || !signals || !reads {
		t.Errorf("control role: superuser %t, pg_signal_backend %t, pg_read_all_stats %t; want false, true, true", super, signals, reads)
	}
}

func TestRolesMustGiveTheirPassword(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for _, user := range []string{"cleartext_user", "md5_user", "scram_user"} {
		for _, password := range []string{pgtest.Password, "wrong"} {
			dsn := fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=disable", user, password, s.Addr())
			conn, err := pgx.Connect(context.Background(), dsn)
			if err == nil {
				_ = conn.Close(context.Background())
			}
			if (err == nil) != (password == pgtest.Password) {
				t.Errorf("%s with password %q: %v", user, password, err)
			}
		}
	}
}

func TestCrashAndRestartKeepWhatWasCommitted(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(map[string]string{"work_mem": "5MB"}))
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE public.kept AS SELECT 7 AS n")
	port := s.Port()
	s.Crash(t)
	if s.Running() {
		t.Fatal("the server runs after Crash")
	}
	s.Restart(t)
	if s.Port() != port {
		t.Errorf("the port went from %d to %d", port, s.Port())
	}
	var n int
	var workMem string
	if err := s.Connect(t, pgtest.App, db).QueryRow(context.Background(), "SELECT n, current_setting('work_mem') FROM public.kept").Scan(&n, &workMem); err != nil {
		t.Fatal(err)
	}
	if n != 7 || workMem != "5MB" {
		t.Errorf("after a crash n = %d and work_mem = %s; want 7 and 5MB", n, workMem)
	}
}

func TestServerIsGoneAfterTheTest(t *testing.T) {
	t.Parallel()
	var dir string
	var pid int
	t.Run("its own server", func(t *testing.T) {
		s := pgtest.Start(t)
		dir, pid = s.DataDir(), s.PID()
	})
	if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
		t.Errorf("the server's directory still exists: %v", err)
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("the postmaster still exists: %v", err)
	}
}
