package protocol

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestBatchContinuesAfterItsError: what a client sends behind an error that it has
// read, or that came while it was sending, is skipped up to its Sync.
func TestBatchContinuesAfterItsError(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		fixture.MustExec(t, fixture.LeaderConn(t, p, db), "create table t (v text)")
		direct, _ := wiretest.Connect(t, p.PG.Addr(), "user", pgtest.App, "database", db)
		unfenced, _ := wiretest.Connect(t, p.Addr, "user", pgtest.Superuser, "database", db)
		insert := Run("insert into t values ('never')")
		for name, rest := range map[string][]byte{
			"statements":         Batch(insert, insert),
			"a Query":            Cat(Q("insert into t values ('never')"), Sync()),
			"only a Sync":        Sync(),
			"closes and flushes": Batch(Shut('P', ""), Flush(), Shut('S', "s"), Flush(), Desc('S', "s")),
			"COPY messages":      Batch(wiretest.CopyData("x\n"), wiretest.CopyDone(), insert),
			"a function call":    Batch(wiretest.Msg('F', []byte{0, 0, 4, 0x57}, []byte{0, 0, 0, 0, 0, 0})),
			"a long batch":       Batch(bytes.Repeat(insert, 3000)),
			"a new statement":    Batch(Parse("s", "insert into t values ('never')")),
		} {
			var want []string
			for who, c := range map[string]*wiretest.Conn{"directly": direct, "leader": fixture.LeaderConn(t, p, db), "unfenced": unfenced} {
				for _, first := range [][]byte{Cat(Run("select 1 / 0"), Flush()), Cat(Parse("", "selec"), Flush())} {
					c.Send(first)
					c.Until('E')
					c.Send(rest)
					got := fixture.Lines(c.Until('Z'))
					c.Send(Bind("", "s"), Sync())
					got = append(got, fixture.Lines(c.Until('Z'))...)
					got = append(got, fixture.Lines(c.Exec("select count(*) from t"))...)
					if want == nil {
						want = got
					}
					if !slices.Equal(got, want) {
						t.Errorf("%s, %s:\n%s\nnot\n%s", name, who, strings.Join(got, "\n"), strings.Join(want, "\n"))
					}
				}
			}
		}
	})
}
