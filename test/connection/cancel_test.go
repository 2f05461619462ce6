package connection

import (
	"io"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// keyed connects and returns the connection with the body of its BackendKeyData.
func keyed(t *testing.T, address string, params ...string) (*wiretest.Conn, []byte) {
	t.Helper()
	c, before := wiretest.Connect(t, address, params...)
	for _, m := range before {
		if m.Type == 'K' {
			return c, m.Body
		}
	}
	t.Fatalf("no cancel key in %v", before)
	return nil, nil
}

// cancelWith sends a cancel request and waits until it was dealt with.
func cancelWith(t *testing.T, address string, key []byte, first ...[]byte) {
	t.Helper()
	c := wiretest.Dial(t, address)
	for _, p := range first {
		c.Send(p)
		oneByte(t, c)
	}
	c.Send(packet(codeCancel, key...))
	if said, err := io.ReadAll(c); err != nil || len(said) != 0 {
		t.Errorf("a cancel request was answered by %q, %v", said, err)
	}
	_ = c.Close()
}

func TestCancelEndsTheStatementAndNotTheSession(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil)
	db := p.PG.Database(t)
	admin := p.PG.Connect(t, pgtest.Superuser, db)
	fixture.LeaderConn(t, p, db).Close()
	fenced := []string{"user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w"}
	for name, params := range map[string][]string{"leader": fenced, "reader": fenced[:4], "unfenced": {"user", pgtest.Superuser, "database", db}} {
		c, key := keyed(t, p.Addr, params...)
		for _, first := range [][][]byte{nil, {packet(codeGSS), packet(codeSSL)}} {
			c.Send(Q("select pg_sleep(600)"))
			fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
			cancelWith(t, p.Addr, key, first...)
			if all := c.Until('Z'); wiretest.ErrorOf(all) != "57014" {
				t.Errorf("%s: %v", name, all)
			}
		}
		if got := fixture.FirstValue(t, c.Exec("select 1")); got != "1" {
			t.Errorf("%s: the session after a cancel says %s", name, got)
		}
		_ = c.Close()
	}
}

// TestLateCancelNeverHitsTheNextSession: a cancel that races the end of its
// statement meets that statement, or nothing.
func TestLateCancelNeverHitsTheNextSession(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	hits := 0
	for i := range 20 {
		c, key := keyed(t, p.Addr, "user", pgtest.App, "database", db)
		var wg sync.WaitGroup
		c.Send(Q("select pg_sleep(0.002)"))
		wg.Go(func() { cancelWith(t, p.Addr, key) })
		if i%2 == 0 {
			if state := wiretest.ErrorOf(c.Until('Z')); state == "57014" {
				hits++
			} else if state != "" {
				t.Errorf("the statement ended with %s", state)
			}
		}
		_ = c.Close()
		next, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db)
		if all := next.Exec("select pg_sleep(0.004)"); wiretest.ErrorOf(all) != "" {
			t.Errorf("the next session: %v", all)
		}
		wg.Wait()
		_ = next.Close()
	}
	t.Logf("%d of 10 cancels met their statement", hits)
}
