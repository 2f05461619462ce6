package guards

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// newGuarded makes a cluster with the guarded table t, and a leader that knows of it.
func newGuarded(t *testing.T, pg *pgtest.Server) (*fixture.Cluster, *pgx.Conn) {
	t.Helper()
	c := fixture.NewCluster(t, pg)
	c.Exec(`create procedure batch(v text) language plpgsql as $$begin
		insert into t (v) values (v); commit; insert into t (v) values (v); commit; insert into t (v) values (v); end$$;
		create procedure plain(v text) language plpgsql as $$begin insert into t (v) values (v); end$$`)
	_ = leader(c)
	add(c, "public.t")
	c.Candidacy(c.DB, "r", "w").Grant()
	return c, c.Join("w")
}

// insert is a write of the guarded table.
const insert = "insert into t (v) values ('x')"

// claimSteps are statements that take settings away, but not a leader's registration, with writes behind them.
var claimSteps = map[string][]string{
	"CALL that commits":       {"call batch('x')", "call batch('x')", insert},
	"DO that commits":         {"do $$begin insert into t (v) values ('x'); commit; insert into t (v) values ('x'); end$$", insert},
	"DISCARD ALL":             {insert, "discard all", insert, "call batch('x')", "discard all", "call batch('x')"},
	"RESET ALL":               {"call batch('x')", "reset all", insert, "call batch('x')"},
	"RESET ALL in a DO":       {"do $$begin reset all; end$$", insert, "do $$begin reset all; end$$", "begin", insert, "commit", insert},
	"RELEASE":                 {"begin", "savepoint s", insert, "release s", insert, "commit", insert},
	"ROLLBACK TO":             {"begin", "savepoint s", insert, "rollback to s", insert, "commit", insert},
	"ROLLBACK":                {"begin", insert, "rollback", insert},
	"a text of transactions":  {insert + "; " + insert, "begin; " + insert + "; commit; " + insert},
	"a failure in a block":    {"begin", "savepoint s", "select 1/0", "rollback to s", insert, "commit"},
	"a procedure that failed": {"call batch(null)", "call batch('x')", insert},
}

// TestWhatALeaderDoesToItsClaim has a leader write after everything that may take settings
// away. Each step is a Query, and again extended messages; a text of several statements is
// always a Query.
func TestWhatALeaderDoesToItsClaim(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	c, conn := newGuarded(t, pg)
	for name, steps := range claimSteps {
		for _, simple := range []bool{true, false} {
			for _, sql := range steps {
				many := strings.Contains(sql, "; ") && !strings.HasPrefix(sql, "do")
				if err := exec(t.Context(), conn, sql, simple || many); err != nil && !strings.Contains(sql, "1/0") && !strings.Contains(sql, "null") {
					t.Fatalf("%s: %s: %v", name, sql, err)
				}
			}
		}
	}
	if n := c.Number(fmt.Sprintf("select count(*) from t where fence_epoch is distinct from %d", epoch(c))); n != 0 {
		t.Errorf("%d rows are not stamped", n)
	}
}

// TestAGuardThatIsAddedWhileALeaderIsConnected: the backends of the leader are registered, so the guard lets all
// of its connections pass, and stamps what they write.
func TestAGuardThatIsAddedWhileALeaderIsConnected(t *testing.T) {
	t.Parallel()
	c := fixture.NewCluster(t, pgtest.Shared(t))
	conn := leader(c)
	other := c.Join("w")
	add(c, "public.t")
	for _, conn := range []*pgx.Conn{conn, other} {
		for _, sql := range []string{"select wr('x')", insert} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	if n := c.Number(fmt.Sprintf("select count(*) from t where fence_epoch = %d", epoch(c))); n != 4 {
		t.Errorf("%d rows are stamped, want 4", n)
	}
}

// TestAStaleClaimIsRefused has a leader's own code claim an epoch that is over. The session goes on: its backend is
// registered under the epoch that it leads.
func TestAStaleClaimIsRefused(t *testing.T) {
	t.Parallel()
	c, conn := newGuarded(t, pgtest.Shared(t))
	mayClaim(c)
	var pg *pgconn.PgError
	_, err := conn.Exec(t.Context(), "do $$begin perform fencepost.claim('r', 1); insert into t (v) values ('x'); end$$")
	if !errors.As(err, &pg) || pg.Code != "ZF001" || pg.Severity != "ERROR" {
		t.Errorf("a claim that is over: %v, want ERROR ZF001", err)
	}
	if n := c.Rows("x"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	if _, err := conn.Exec(t.Context(), insert); err != nil {
		t.Errorf("the next write: %v", err)
	}
}
