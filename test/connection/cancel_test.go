package connection

import (
	"bytes"
	"encoding/binary"
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

// Drivers show the process id of the key as the backend's, and tell their own
// notifications by it.
func TestKeyNamesTheBackend(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	db := p.PG.Database(t)
	c, key := keyed(t, p.Addr, "user", pgtest.Superuser, "database", db)
	pid := binary.BigEndian.Uint32(key)
	if got := fixture.FirstValue(t, c.Exec("select pg_backend_pid()")); atoi(t, got) != int(pid) {
		t.Errorf("the key names process %d, the backend is %s", pid, got)
	}
	c.Exec("listen ch")
	var told bool
	for _, m := range c.Exec("notify ch") {
		if m.Type == 'A' {
			told = true
			if from := binary.BigEndian.Uint32(m.Body); from != pid {
				t.Errorf("the session's own notification is from %d, its key names %d", from, pid)
			}
		}
	}
	if !told {
		t.Error("no notification came")
	}
}

func TestCancelWithAnotherKeyDoesNothing(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	admin := pg.Connect(t, pgtest.Superuser, db)
	gone, old := keyed(t, p.Addr, "user", pgtest.App, "database", db)
	gone.Send(wiretest.Terminate())
	gone.Rest()
	c, key := keyed(t, p.Addr, "user", pgtest.App, "database", db)
	pg.Exec(t, pgtest.Superuser, db, "create table t (id int)", "grant select on t to public")
	unlock := locked(t, admin, "t")
	watch := pg.Connect(t, pgtest.Superuser, db)
	c.Send(Q("select count(*) from t"))
	fixture.AwaitBackend(t, watch, "wait_event_type = 'Lock'")
	wrong := append([]byte(nil), key...)
	wrong[7] ^= 1
	for name, k := range map[string][]byte{
		"a wrong secret": wrong, "a secret too long": append(append([]byte(nil), key...), 0), "a secret of no bytes": key[:4],
		"a key of nobody": make([]byte, 8), "the key of a session that ended": old,
	} {
		if name == "a secret of no bytes" { // no cancel request at all: refused
			conn := wiretest.Dial(t, p.Addr)
			conn.Send(packet(codeCancel, k...))
			conn.Rest()
			continue
		}
		cancelWith(t, p.Addr, k)
	}
	unlock()
	if all := c.Until('Z'); wiretest.ErrorOf(all) != "" {
		t.Errorf("a cancel with a wrong key ended the statement: %v", all)
	}
	if bytes.Equal(old[4:], key[4:]) {
		t.Error("two sessions have one secret")
	}
}

func atoi(t *testing.T, s string) (n int) {
	t.Helper()
	for _, c := range s {
		if c < '0' || c > '9' {
			t.Fatalf("%q is no number", s)
		}
		n = 10*n + int(c-'0')
	}
	return n
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
