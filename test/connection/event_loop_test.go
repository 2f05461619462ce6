//go:build linux && !fencepost_plainnet

package connection

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// The tests of this file hold for connections of the epoll loop only. A plain connection has a goroutine and a buffer of
// its own, and notices that a peer has gone only when its buffer has room.

// TestAnIdleConnectionHasNoGoroutine, whatever its session is, and is served and ended nevertheless. The test is not
// parallel: it counts the goroutines of the process.
func TestAnIdleConnectionHasNoGoroutine(t *testing.T) {
	pg := pgtest.Shared(t)
	plain, db, secured := fixture.NewProxy(t, pg, nil), pg.Database(t), newSides(t, sidesConfig{})
	plain.Elector.Enter(db, "r", "w").Grant()
	secured.Elector.Enter(secured.db, "r", "w").Grant()
	own := func(worker string) []string {
		return []string{"user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", worker}
	}
	for name, dial := range map[string]func() *wiretest.Conn{
		"leader":             func() *wiretest.Conn { c, _ := wiretest.Connect(t, plain.Addr, own("w")...); return c },
		"follower":           func() *wiretest.Conn { c, _ := wiretest.Connect(t, plain.Addr, own("f")...); return c },
		"without a resource": func() *wiretest.Conn { c, _ := wiretest.Connect(t, plain.Addr, own("")[:4]...); return c },
		"left to the server": func() *wiretest.Conn {
			c, _ := wiretest.Connect(t, plain.Addr, "user", pgtest.Superuser, "database", db)
			return c
		},
		"TLS on both sides": func() *wiretest.Conn { return secured.worker(t, "w") },
	} {
		t.Run(name, func(t *testing.T) {
			conns := []*wiretest.Conn{dial()} // the first one starts what they have in common
			use := func(c *wiretest.Conn) {
				c.Send(Q("select 1"))
				c.Until('Z')
			}
			use(conns[0])
			before := runtime.NumGoroutine()
			const more = 20
			for range more {
				c := dial()
				use(c)
				conns = append(conns, c)
			}
			fixture.Eventually(t, "the idle connections to have no goroutines", func() bool { return runtime.NumGoroutine() < before+more/2 })
			for _, c := range conns {
				use(c)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, p := range []*fixture.Proxy{plain, secured.Proxy} {
		if err := p.Server.Shutdown(ctx); err != nil {
			t.Errorf("idle sessions were not ended: %v", err)
		}
	}
}

// TestADeadClientWaitsForNoAnswer: the client dies while the server works on a message of its own
// for long, and another one waits for the answer to that, or for the server to read. Its candidacy
// does not wait for it.
func TestADeadClientWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	const much = 20 << 20 // more than the buffers between the client and the server hold
	for name, c := range map[string]struct {
		then       []byte
		reset, tls bool
	}{
		"a message that waits":                    {Cat(wiretest.Execute("p", 0), wiretest.Sync()), false, false},
		"many that are not read, reset":           {bytes.Repeat(Q("select '"+strings.Repeat("x", 1<<20)+"'"), much>>20), true, false},
		"many that are not read under TLS, reset": {bytes.Repeat(Q("select '"+strings.Repeat("x", 1<<20)+"'"), much>>20), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			soon := func(cfg *proxy.Config) { cfg.DepartedWait = time.Second }
			var p *fixture.Proxy
			if c.tls { // with the server only: a client that dies cannot say so under TLS
				p = newSides(t, sidesConfig{proxy: soon}).Proxy
			} else {
				p = fixture.NewProxy(t, pgtest.Shared(t), soon)
			}
			pg := p.PG
			db := pg.Database(t)
			admin := pg.Connect(t, pgtest.Superuser, db)
			count := func(sql string, want int) func() bool {
				return func() bool {
					var n int
					err := admin.QueryRow(t.Context(), sql).Scan(&n)
					return err == nil && n == want
				}
			}
			if _, err := admin.Exec(t.Context(), "select pg_advisory_lock(1)"); err != nil {
				t.Fatal(err)
			}
			conn := fixture.LeaderConn(t, p, db)
			conn.Send(Q("select pg_advisory_lock(1)"))
			fixture.Eventually(t, "the server to work on the first message", count("select count(*) from pg_locks join pg_database d on d.oid = database where datname = current_database() and not granted", 1))
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_ = conn.Conn.SetWriteDeadline(time.Now().Add(2 * time.Second)) // by then the buffers are full
				_, _ = conn.Conn.Write(c.then)
			}()
			<-sent
			if p.Elector.Members(db, "r", "w") == 0 {
				t.Fatal("the leader has no session")
			}
			if c.reset {
				_ = conn.Conn.(*net.TCPConn).SetLinger(0)
			}
			_ = conn.Close()
			fixture.Eventually(t, "the dead worker to leave its candidacy", func() bool { return p.Elector.Members(db, "r", "w") == 0 })
			if _, err := admin.Exec(t.Context(), "select pg_advisory_unlock(1)"); err != nil {
				t.Fatal(err)
			}
			fixture.Eventually(t, "the backend to end", count("select count(*) from pg_stat_activity where datname = current_database() and usename = 'app'", 0))
		})
	}
}

// TestClaimedLengthsCostNothing is not parallel: it measures the process. Both
// ends of each connection are in it.
func TestClaimedLengthsCostNothing(t *testing.T) {
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	claims := map[string]func() *wiretest.Conn{
		"half a header": func() *wiretest.Conn {
			c := wiretest.Dial(t, p.Addr)
			c.Send([]byte{0, 0, 0x27})
			return c
		},
		"the longest startup packet": func() *wiretest.Conn {
			c := wiretest.Dial(t, p.Addr)
			c.Send([]byte{0, 0, 0x27, 0x10, 0, 3, 0, 0, 'u'})
			return c
		},
	}
	for name, dial := range claims {
		const clients, each = 200, 24 << 10
		measure(t, name, clients, each, dial)
	}
	for _, typ := range []byte("QPBFd") {
		for _, user := range []string{pgtest.App, pgtest.Superuser} {
			if typ == 'F' && user == pgtest.App {
				continue // refused before the rest has come
			}
			const clients, each = 10, 100 << 10
			measure(t, fmt.Sprintf("600 MiB of %c as %s", typ, user), clients, each, func() *wiretest.Conn {
				c, _ := wiretest.Connect(t, p.Addr, "user", user, "database", db)
				c.Send(header(typ, 600<<20), []byte(strings.Repeat("x", 1000)))
				return c
			})
		}
	}
}
