package safety

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// newListener listens to the channel wp, and returns what tells what was heard
// since it was asked last.
func newListener(t *testing.T, s *fixture.Cluster) func() string {
	t.Helper()
	var heard []string
	cfg, err := pgx.ParseConfig(s.PG.DSN(pgtest.Superuser, s.DB))
	if err != nil {
		t.Fatal(err)
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { heard = append(heard, n.Payload) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	ask := func(sql string) {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ask("listen wp")
	return func() string {
		heard = nil
		ask("select 1")
		return strings.Join(heard, ",")
	}
}
