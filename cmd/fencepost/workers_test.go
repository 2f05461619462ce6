package main

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestOnlyWorkerRolesMayBeWorkers checks that once worker roles are named, a connection
// of another role that names a resource is refused with the missing privilege, and that
// one without a resource reads as before.
func TestOnlyWorkerRolesMayBeWorkers(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := s.Database(t)
			migrate := func(role string) {
				t.Helper()
				if out := runCommand(t, nil, "migrate", "--dsn", s.DSN(pgtest.Superuser, db), "--worker-role", role); out.code != exitOK {
					t.Fatalf("migrate --worker-role %s: %s", role, out.stderr)
				}
			}
			migrate("md5_user")
			r := startServing(t, s, nil)
			refused := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=a")
			err := execSQL(t, refused, "CREATE TABLE t (n int)")
			wantState(t, err, "ZF004")
			if err == nil || !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("a role that is not a worker role: %v", err)
			}
			if err := execSQL(t, r.connect(t, db, ""), "SELECT count(*) FROM pg_class"); err != nil {
				t.Errorf("without a resource: %v", err)
			}
			if err := refused.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			migrate(pgtest.App)
			if err := execSQL(t, r.connect(t, db, "fencepost.resource=billing&fencepost.worker=b&fencepost.campaign=wait"), "CREATE TABLE t (n int)"); err != nil {
				t.Errorf("a worker's role: %v", err)
			}
			out := runCommand(t, nil, "migrate", "--dsn", s.DSN(pgtest.Superuser, db), "--worker-role", "nobody here")
			if out.code != exitFailure || !strings.Contains(out.stderr, `"nobody here" does not exist`) {
				t.Errorf("a role that does not exist: code %d, %s", out.code, out.stderr)
			}
			if out := runCommand(t, nil, "migrate", "--dsn", s.DSN(pgtest.Superuser, db)); !strings.Contains(out.stderr, "warning: max_prepared_transactions is 10") {
				t.Errorf("no warning: %s", out.stderr)
			}
		})
	}
}
