package protocol

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

var (
	randomScripts = flag.Int("scripts", 40, "how many random streams are sent on each server")
	randomSeed    = flag.Uint64("seed", 0, "the first seed of the random streams")
)

// relayedParts are what random streams of a leader are made of. An Execute of the unnamed portal that a failed Query has
// left in a failed block crashes PostgreSQL 15 and 18.
var relayedParts = [][]byte{
	Q("begin"), Q("commit"), Q("rollback"), Q("savepoint a"), Q("rollback to a"), Q("insert into t values (1, 'x')"), Q("select 1; select 1/0; select 2"), Q("selec"), Q(""),
	Q("begin; insert into t values (2, 'y'); commit; select * from t"), Q("do $$begin raise notice 'n'; commit; end$$"), Q("discard all"), Q("set application_name = 'a'"),
	Q("prepare s as select 1"), Q("deallocate all"), Q("listen ch; notify ch, 'x'"), Q("copy t to stdout"), Q("declare k cursor for select 1"), Q("vacuum t"),
	Parse("s", "select $1::int"), Bind("q", "s", "1"), Bind("p", "s", "x"), Desc('S', "s"), Desc('P', "q"), Exec("q", 1), Exec("p", 0), Shut('S', "s"), Shut('P', "p"),
	Run("insert into t values (3, 'z') returning *"), Run("begin"), Run("commit"), Run("select 1/0"), Flush(), Sync(), Sync(), Sync(),
	Cat(Q("copy t from stdin"), wiretest.CopyData("4\tx\n"), wiretest.CopyDone()), Cat(Q("copy t from stdin"), wiretest.CopyFail("no")), wiretest.CopyData("stray"),
	wiretest.Msg('F', []byte{0, 0, 6, 74, 0, 0, 0, 0, 0, 0}), wiretest.Msg('B', []byte("x")), Q("select '" + long + "'"),
}

// long is a text beyond what the proxy reads.
var long = string(bytes.Repeat([]byte("x"), 1<<18))

// TestALeadersBytesPassAsTheyAre: whatever a registered session sends, and however it is
// cut, is what the server gets, and the client gets what the server sends, apart from
// Fencepost's own parameters.
func TestALeadersBytesPassAsTheyAre(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		wire := newTap(t, pg.Addr())
		p := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.Upstream = fixture.At(t, wire.addr, nil) })
		db := pg.Database(t)
		pg.Exec(t, pgtest.Superuser, db, "create table t (id int, v text); alter table t owner to app")
		for i := range uint64(*randomScripts) {
			seed := *randomSeed + i
			c := fixture.LeaderConn(t, p, db)
			server := wire.last()
			server.raw() // the startup
			r := rand.New(rand.NewPCG(seed, 0))
			var sent []byte
			for range 3 + r.IntN(30) {
				sent = append(sent, relayedParts[r.IntN(len(relayedParts))]...)
			}
			sent = append(sent, wiretest.Terminate()...)
			said := fixture.ReadReply(c, math.MaxInt)
			for rest := sent; len(rest) > 0; {
				n := 1 + r.IntN(min(len(rest), 1<<r.IntN(20)))
				if _, err := c.Write(rest[:n]); err != nil {
					t.Fatalf("seed %d: the session has ended: %v", seed, err)
				}
				rest = rest[n:]
			}
			all, _ := said.Wait()
			up, down := server.raw()
			if !bytes.Equal(sent, up) {
				t.Errorf("seed %d: the client sends\n%.3000q\nand the server gets\n%.3000q", seed, sent, up)
			}
			if want, got := ownLess(split(down)), ownLess(all); want != got {
				t.Errorf("seed %d: the server sends\n%.3000s\nand the client gets\n%.3000s", seed, want, got)
			}
			if t.Failed() {
				return
			}
		}
	})
}

// raw is what has passed since the last call.
func (r *tapped) raw() (up, down []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	up, down = r.up, r.down
	r.up, r.down = nil, nil
	return up, down
}

// ownLess shows messages without Fencepost's own parameters.
func ownLess(all []wiretest.Message) (lines string) {
	for _, m := range all {
		if m.Type != 'S' || !bytes.HasPrefix(m.Body, []byte("fencepost.")) {
			lines += fmt.Sprintf("%c %q\n", m.Type, m.Body)
		}
	}
	return lines
}
