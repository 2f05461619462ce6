package protocol

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolServerGoes: the server stops or crashes. Each client reads what it
// would have read of the server, and then the end of its connection. A server that
// stops at once kills who has not said its last word in five seconds, which on a
// loaded machine may be either: then it is run again, a few times.
func TestProtocolServerGoes(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pgtest.Mode{"fast": pgtest.Fast, "immediate": pgtest.Immediate} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong := serverGoes(t, mode)
			for again := 0; len(wrong) > 0 && mode == pgtest.Immediate && again < 4; again++ {
				t.Logf("once more: %s", strings.Join(wrong, "\n"))
				wrong = serverGoes(t, mode)
			}
			for _, w := range wrong {
				t.Error(w)
			}
		})
	}
}

// serverGoes says for whom the last words differ.
func serverGoes(t *testing.T, mode pgtest.Mode) (wrong []string) {
	pg := pgtest.Start(t)
	b, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	fixture.MustExec(t, fixture.LeaderConn(t, b, db), "create table t (id int)")
	type pair struct {
		name            string
		direct, proxied *wiretest.Conn
	}
	var pairs []pair
	for name, c := range map[string]struct {
		sent  []byte
		until string
	}{
		"idle": {}, "in a block": {Q("begin; insert into t values (1)"), "Z"}, "in a batch": {Cat(Run("select 1"), Flush()), "C"},
		"a statement under way": {Q("select pg_sleep(600)"), ""}, "a notice, and a statement under way": {Q("do $$begin raise notice 'here'; perform pg_sleep(600); end$$"), "N"},
		"in a failed batch": {Run("select 1/0"), "E"},
	} {
		p := pair{name: name}
		p.direct, _ = wiretest.Connect(t, pg.Addr(), "user", pgtest.App, "database", db)
		p.proxied, _ = wiretest.Connect(t, b.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
		for _, conn := range []*wiretest.Conn{p.direct, p.proxied} {
			conn.Send(c.sent)
			for _, typ := range c.until {
				conn.Until(byte(typ))
			}
		}
		pairs = append(pairs, p)
	}
	admin := pg.Connect(t, pgtest.Superuser, "postgres")
	fixture.Eventually(t, "the statements are under way", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where wait_event = 'PgSleep'").Scan(&n)
		return err == nil && n == 4
	})
	pg.Stop(t, mode)
	for _, p := range pairs {
		want, got := strings.Join(fixture.Lines(p.direct.Rest()), "\n"), strings.Join(fixture.Lines(p.proxied.Rest()), "\n")
		if want != got || !strings.Contains(want, "57P0") {
			wrong = append(wrong, fmt.Sprintf("%s: Postgres says\n%s\nFencepost\n%s", p.name, want, got))
		}
	}
	c := wiretest.Dial(t, b.Addr)
	c.Send(wiretest.Startup("user", pgtest.App, "database", db))
	if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P03" {
		t.Errorf("without a server a client is told %v", f)
	}
	pg.Restart(t)
	again, _ := wiretest.Connect(t, b.Addr, "user", pgtest.App, "database", db)
	if n := fixture.FirstValue(t, again.Exec("select count(*) from t")); n != "0" {
		t.Errorf("%s rows, want none of those that were not committed", n)
	}
	return wrong
}
