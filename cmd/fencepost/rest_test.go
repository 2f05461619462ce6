package main

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestADatabaseThatNobodyUsesIsLetGo checks that after the last worker has left,
// Fencepost does not stay connected to the database, so that it can be renamed or
// dropped. A new database under the same name counts as restored.
func TestADatabaseThatNobodyUsesIsLetGo(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	administer := func(statements ...string) {
		t.Helper()
		s.Exec(t, pgtest.Superuser, "postgres", statements...)
	}
	admin := s.Connect(t, pgtest.Superuser, "postgres")
	letGo := func() {
		t.Helper()
		eventually(t, "nobody is connected to the database", func() bool {
			var connected int
			if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1", db).Scan(&connected); err != nil {
				t.Fatal(err)
			}
			return connected == 0
		})
	}
	administer("CREATE DATABASE " + db + "_kept TEMPLATE " + db)
	t.Cleanup(func() { administer("DROP DATABASE " + db + "_kept WITH (FORCE)") })
	r := startServing(t, s, nil)
	for _, worker := range []string{"first", "second"} {
		conn := r.connect(t, db, "fencepost.resource=billing&fencepost.worker="+worker)
		if err := execSQL(t, conn, "CREATE TABLE "+worker+" (n int)"); err != nil {
			t.Fatalf("%s: %v", worker, err)
		}
		if err := conn.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		letGo()
		administer("ALTER DATABASE "+db+" RENAME TO "+db+"_away", "ALTER DATABASE "+db+"_away RENAME TO "+db)
	}
	if warnings := r.log.lines(t, "cannot listen for changes of leases; looking at them now and then"); len(warnings) > 0 {
		t.Errorf("the log has %v", warnings)
	}

	letGo()
	administer("DROP DATABASE "+db, "CREATE DATABASE "+db+" TEMPLATE "+db+"_kept")
	_, err := pgx.Connect(t.Context(), r.dsn(db, "fencepost.resource=billing&fencepost.worker=third"))
	wantState(t, err, "ZF004")
	if err == nil || !strings.Contains(err.Error(), "restored from an older state") {
		t.Errorf("a worker of a recreated database: %v", err)
	}
}
