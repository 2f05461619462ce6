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
	"DO in a block":           {"begin", "do $$begin insert into t (v) values ('x'); end$$", insert, "commit"},
	"DISCARD ALL":             {insert, "discard all", insert, "call batch('x')", "discard all", "call batch('x')"},
	"RESET ALL":               {"call batch('x')", "reset all", insert, "call batch('x')"},
	"RESET ALL in a block":    {"begin", insert, "reset all", insert, "reset all", insert, "commit"},
	"RESET ALL in a text":     {"begin; " + insert + "; reset all; " + insert + "; commit; " + insert},
	"RESET ALL in a DO":       {"do $$begin reset all; end$$", insert, "do $$begin reset all; end$$", "begin", insert, "commit", insert},
	"RELEASE":                 {"begin", "savepoint s", insert, "release s", insert, "commit", insert},
	"ROLLBACK TO":             {"begin", "savepoint s", insert, "rollback to s", insert, "commit", insert},
	"ROLLBACK":                {"begin", insert, "rollback", insert},
	"AND CHAIN":               {"begin", insert, "commit and chain", insert, "rollback and chain", insert, "commit"},
	"a text of transactions":  {insert + "; " + insert, "begin; " + insert + "; commit; " + insert},
	"REPEATABLE READ":         {"begin isolation level repeatable read", insert, "commit"},
	"a failure in a block":    {"begin", "savepoint s", "select 1/0", "rollback to s", insert, "commit"},
	"a procedure that failed": {"call batch(null)", "call batch('x')", insert},
}

// TestWhatALeaderDoesToItsClaim has a leader write after everything that may take settings
// away. Each step is a Query, and again extended messages; a text of several statements is
// always a Query.
func TestWhatALeaderDoesToItsClaim(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
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
	})
}

// pipeline sends batches of extended messages, and a Sync behind each.
func pipeline(t *testing.T, conn *pgx.Conn, batches ...[]string) *pgconn.Pipeline {
	t.Helper()
	p := conn.PgConn().StartPipeline(t.Context())
	for _, batch := range batches {
		for _, sql := range batch {
			p.SendQueryParams(sql, nil, nil, nil, nil)
		}
		if err := p.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// TestPipelinesOfALeader sends transactions before the answers to those in front have come.
func TestPipelinesOfALeader(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		c, conn := newGuarded(t, pg)
		before := c.Number("select count(*) from t")
		p := pipeline(t, conn, []string{"begin", insert, "commit", insert}, []string{insert, insert}, []string{"call batch('x')"},
			[]string{"begin"}, []string{insert, "savepoint s", insert, "rollback to s", insert}, []string{"commit", insert})
		for {
			results, err := p.GetResults()
			if err == nil && results == nil {
				break
			}
			if reader, ok := results.(*pgconn.ResultReader); ok && err == nil {
				_, err = reader.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if n := c.Number(fmt.Sprintf("select count(*) from t where fence_epoch = %d", epoch(c))); n-before != 10 {
			t.Errorf("%d rows are stamped, want 10", n-before)
		}
	})
}

// TestAClaimThatIsLostInAPipeline has settings of the session go, by a statement or with a
// transaction that fails, before the answers have come that say so: the session is
// registered all the same.
func TestAClaimThatIsLostInAPipeline(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		c, conn := newGuarded(t, pg)
		for name, batches := range map[string][][]string{
			"DISCARD ALL":             {{"call batch('x')"}, {"discard all"}, {"call batch('x')"}},
			"a block is rolled back":  {{"begin"}, {"call plain('x')"}, {"rollback"}, {"call batch('x')"}},
			"RESET ALL in a batch":    {{"call plain('x')", "reset all", "call plain('x')", "call plain('x')"}},
			"a failure behind a read": {{"reset work_mem", "call batch(null)"}, {"call batch('x')"}},
		} {
			before := c.Number("select count(*) from t")
			p := pipeline(t, conn, batches...)
			err := p.Close() // of the first failure
			if err != nil && !strings.Contains(name, "failure") {
				t.Errorf("%s: %v", name, err)
			}
			if n := c.Number("select count(*) from t") - before; n < 3 {
				t.Errorf("%s: %d rows, want at least those of the last CALL; %v", name, n, err)
			}
		}
	})
}

// TestADoBehindOtherMessagesOfItsBatch sends a DO in a batch that has begun with another message,
// also behind a RESET ALL.
func TestADoBehindOtherMessagesOfItsBatch(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		_, conn := newGuarded(t, pg)
		const do = "do $$begin insert into t (v) values ('x'); end$$"
		for _, reset := range []bool{false, true} {
			var first [][]string
			if reset {
				first = [][]string{{"reset all"}}
			}
			p := pipeline(t, conn, first...)
			p.SendPrepare("harmless", "reset work_mem", nil)
			p.SendQueryParams(do, nil, nil, nil, nil)
			if err := p.Sync(); err != nil {
				t.Fatal(err)
			}
			err := p.Close()
			if err != nil {
				t.Errorf("in the batch, RESET ALL %t: %v", reset, err)
			}
			if err := exec(t.Context(), conn, "deallocate all", true); err != nil {
				t.Fatal(err)
			}
		}
		if err := exec(t.Context(), conn, do, false); err != nil {
			t.Errorf("in a batch of its own: %v", err)
		}
	})
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
