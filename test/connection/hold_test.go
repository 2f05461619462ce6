package connection

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// gauge counts the sessions that a proxy has.
type gauge struct{ n atomic.Int64 }

func (g *gauge) Refused(string) {}

func (g *gauge) Shadowed(string, string) {}

func (g *gauge) Sessions(delta int) { g.n.Add(int64(delta)) }

// TestProtocolNothingStays: whichever side goes, how, and when, the other side is
// closed and the session is over: the proxy has let go of it. The server commits nothing
// that the client has sent in part.
func TestProtocolNothingStays(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	sessions := &gauge{}
	p, db := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.Metrics = sessions }), pg.Database(t)
	fixture.MustExec(t, fixture.LeaderConn(t, p, db), "create table t (v text)")
	admin := pg.Connect(t, pgtest.Superuser, db)
	base := sessions.n.Load()
	ins := "insert into t values ('x')"
	for name, c := range map[string]struct {
		sent  []byte
		until string
	}{
		"idle":                  {},
		"half a header":         {sent: []byte{'Q', 0}},
		"half a large query":    {sent: Q(ins + strings.Repeat(" ", 1<<17))[:1<<16]},
		"half a Sync":           {sent: Batch(Run(ins))[:len(Batch(Run(ins)))-1]},
		"a batch without Sync":  {sent: Cat(Run(ins), Flush()), until: "C"},
		"a pipeline":            {sent: Cat(Run("begin"), Run(ins), Run("savepoint s"), Flush())},
		"a block":               {sent: Q("begin; " + ins), until: "Z"},
		"an unfinished COMMIT":  {sent: Cat(Q("begin; "+ins), Q("commit")[:8]), until: "Z"},
		"Terminate in a block":  {sent: Cat(Q("begin; "+ins), wiretest.Terminate())},
		"half of COPY data":     {sent: Cat(Q("copy t from stdin"), wiretest.CopyData(strings.Repeat("x\n", 20000))[:30000]), until: "G"},
		"a statement under way": {sent: Q("select pg_sleep(1)")},
		"rows under way":        {sent: Q("select repeat('x', 1000) from generate_series(1, 1000000)"), until: "D"},
	} {
		for _, how := range []string{"client closes", "client resets", "server ends"} {
			conn, key := keyed(t, p.Addr, "user", pgtest.App, "database", db, "options", "-c fencepost.resource=r -c fencepost.worker=w")
			conn.Send(c.sent)
			for _, typ := range c.until {
				conn.Until(byte(typ))
			}
			switch how {
			case "client resets":
				_ = conn.Conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			case "server ends":
				if _, err := admin.Exec(t.Context(), fmt.Sprintf("select pg_terminate_backend(%d)", pidOf(key))); err != nil {
					t.Fatal(err)
				}
				if name == "rows under way" { // a backend that cannot send ends inside a row
					_, _ = io.Copy(io.Discard, conn.Conn)
				} else if rest := conn.Rest(); name != "Terminate in a block" && len(rest) > 0 && rest[len(rest)-1].Fields()['C'] != "57P01" {
					t.Errorf("%s, %s: the last words are %v", name, how, rest[len(rest)-1])
				}
			default:
				_ = conn.Close()
			}
		}
		fixture.Eventually(t, name+": the sessions are as before", func() bool { return sessions.n.Load() <= base })
		fixture.Eventually(t, name+": the backends are as before", func() bool {
			var n int
			err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where usename = 'app' and datname = current_database()").Scan(&n)
			return err == nil && n == 1
		})
	}
	eventuallyRows(t, admin, "select count(*) from t", 0)
}

func pidOf(key []byte) int { return int(binary.BigEndian.Uint32(key)) }

// TestProtocolLongKeys: a client gets a key as long as from Postgres (32 bytes
// for one of protocol 3.2 on 18), and can cancel with it.
func TestProtocolLongKeys(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil)
	db := p.PG.Database(t)
	fixture.LeaderConn(t, p, db)
	admin := p.PG.Connect(t, pgtest.Superuser, db)
	for _, version := range []uint32{3 << 16, 3<<16 | 2, 3<<16 | 9999} {
		theirs, plain := keyOfVersion(t, p.PG.Addr(), version, "user", pgtest.App, "database", db)
		_ = theirs.Close()
		c, key := keyOfVersion(t, p.Addr, version, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
		if len(key) < 8 || len(key) != len(plain) {
			t.Fatalf("protocol %x: the key has %d bytes, that of Postgres %d", version, len(key), len(plain))
		}
		c.Send(Q("select pg_sleep(600)"))
		fixture.AwaitBackend(t, admin, fmt.Sprintf("pid = %d and wait_event = 'PgSleep'", pidOf(key)))
		wrong := append([]byte(nil), key...)
		wrong[len(wrong)-1] ^= 1
		cancelWith(t, p.Addr, wrong)
		cancelWith(t, p.Addr, append(append([]byte(nil), key...), 0))
		for _, address := range []string{p.Addr, p.PG.Addr()} { // nobody's key is not answered
			cancelWith(t, address, key[:4])
			cancelWith(t, address, nil)
		}
		fixture.AwaitBackend(t, admin, fmt.Sprintf("pid = %d and wait_event = 'PgSleep'", pidOf(key)))
		cancelWith(t, p.Addr, key)
		if all := c.Until('Z'); wiretest.ErrorOf(all) != "57014" {
			t.Errorf("protocol %x: %v", version, all)
		}
		_ = c.Close()
	}
}

// keyOfVersion connects by that protocol and returns the connection with the
// body of its BackendKeyData.
func keyOfVersion(t *testing.T, address string, version uint32, params ...string) (c *wiretest.Conn, key []byte) {
	t.Helper()
	c = wiretest.Dial(t, address)
	c.Send(startupOf(version, params...))
	for _, m := range c.Until('Z') {
		if m.Type == 'K' {
			key = m.Body
		}
	}
	return c, key
}

// TestProtocolWhatCanBeSeen: neither a client nor an operator sees anything of Fencepost in a session
// whose backend is registered.
func TestProtocolWhatCanBeSeen(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	db := p.PG.Database(t)
	fixture.LeaderConn(t, p, db)
	c, key := keyed(t, p.Addr, "user", pgtest.App, "database", db, "application_name", "mine", "options", "-c fencepost.resource=r -c fencepost.worker=w")
	admin := p.PG.Connect(t, pgtest.Superuser, db)
	if _, err := admin.Exec(t.Context(), "create view prepared as select * from pg_prepared_statements; grant select on prepared to public"); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]string{
		"select count(*) from pg_prepared_statements":      "0",
		"select count(*) from prepared":                    "0",
		"select count(*) from pg_cursors where name <> ''": "0",
		"select count(*) from pg_listening_channels()":     "0",
		"select count(*) from pg_locks where pid = pg_backend_pid() and relation = any (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'fencepost')": "0",
		"select current_setting('application_name')": "mine",
	} {
		if got := fixture.FirstValue(t, c.Exec(sql)); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
	for _, sent := range []string{"select 1 as simple", "begin; select 1 as first; commit"} {
		fixture.MustExec(t, c, sent)
		var query, name string
		if err := admin.QueryRow(t.Context(), "select query, application_name from pg_stat_activity where pid = $1", pidOf(key)).Scan(&query, &name); err != nil {
			t.Fatal(err)
		}
		if query != sent || name != "mine" {
			t.Errorf("an operator sees %q of %s, want %q", query, name, sent)
		}
	}
	fixture.MustPass(t, c, Run("select 2 as extended"), Sync())
	var query string
	if err := admin.QueryRow(t.Context(), "select query from pg_stat_activity where pid = $1", pidOf(key)).Scan(&query); err != nil || query != "select 2 as extended" {
		t.Errorf("an operator sees %q, %v", query, err)
	}
}
