package protocol

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestBatchGoesOnBehindItsError: what a client sends behind an error that it has
// read, or that came while it was sending, is skipped up to its Sync.
func TestBatchGoesOnBehindItsError(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		fixture.MustExec(t, fixture.LeaderConn(t, p, db), "create table t (v text)")
		direct, _ := wiretest.Connect(t, p.PG.Addr(), "user", pgtest.App, "database", db)
		unfenced, _ := wiretest.Connect(t, p.Addr, "user", pgtest.Superuser, "database", db)
		insert := run("insert into t values ('never')")
		for name, rest := range map[string][]byte{
			"statements":         cat(insert, insert, sync_()),
			"a Query":            cat(q("insert into t values ('never')"), sync_()),
			"only a Sync":        sync_(),
			"closes and flushes": cat(shut('P', ""), flush(), shut('S', "s"), flush(), desc('S', "s"), sync_()),
			"COPY messages":      cat(wiretest.CopyData("x\n"), wiretest.CopyDone(), insert, sync_()),
			"a function call":    cat(wiretest.Msg('F', []byte{0, 0, 4, 0x57}, []byte{0, 0, 0, 0, 0, 0}), sync_()),
			"a long batch":       cat(bytes.Repeat(insert, 3000), sync_()),
			"a new statement":    cat(parse("s", "insert into t values ('never')"), sync_()),
		} {
			var want []string
			for who, c := range map[string]*wiretest.Conn{"directly": direct, "leader": fixture.LeaderConn(t, p, db), "unfenced": unfenced} {
				for _, first := range [][]byte{cat(run("select 1 / 0"), flush()), cat(parse("", "selec"), flush())} {
					c.Send(first)
					c.Until('E')
					c.Send(rest)
					got := fixture.Lines(c.Until('Z'))
					c.Send(bind("", "s"), sync_())
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
