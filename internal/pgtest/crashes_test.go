package pgtest_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestCrashes: a crash of one backend is counted once, when another connection notices it.
func TestCrashes(t *testing.T) {
	t.Parallel()
	pg := pgtest.Start(t)
	var backends [2]*pgx.Conn
	for i := range backends {
		backends[i] = pg.Connect(t, pgtest.Superuser, "postgres")
	}
	for want := range 2 {
		if n, err := pg.Crashes(); err != nil || n != want {
			t.Fatalf("%d crashes, %v; want %d", n, err, want)
		}
		if want == 0 {
			if err := syscall.Kill(int(backends[0].PgConn().PID()), syscall.SIGSEGV); err != nil {
				t.Fatal(err)
			}
			for _, b := range backends {
				if _, err := b.Exec(context.Background(), "SELECT pg_sleep(60)"); err == nil {
					t.Fatal("a backend survived the crash")
				}
			}
		}
	}
}
