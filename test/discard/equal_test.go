package discard

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// alike are statements that a superseded worker sends, and those that are answered the same by
// Postgres, because they change nothing or fail before they run.
var alike = []struct{ stale, nothing string }{
	{"insert into t (v) values ('x')", "insert into t (v) select 'x' where false"},
	{"insert into t (v) values ('x') returning *", "insert into t (v) select 'x' where false returning *"},
	{"insert into t values (1, 'x') on conflict (id) do update set v = excluded.v returning id, v || '!' as w", "insert into t select 1, 'x' where false on conflict (id) do update set v = excluded.v returning id, v || '!' as w"},
	{"with x as (delete from d returning id) insert into t (v) select 'x' from x returning v", "insert into t (v) select 'x' where false returning v"},
	{"update t set v = 'x' returning id, now(), null, 1.5::numeric(4, 2)", "update t set v = 'x' where false returning id, now(), null, 1.5::numeric(4, 2)"},
	{"delete from c returning c, c.v", "delete from c where false returning c, c.v"},
	{"insert into nowhere values (1)", ""}, {"insert into t (nothing) values (1)", ""}, {"update t set v = 1 + 'x'", ""}, {"delete from t where id", ""},
	{"insert into t (v) values ('x') returning nothing", ""}, {"insert into t values (1, 'x', 2)", ""}, {"update pg_class set relname = 'x' where nothing()", ""},
}

// TestDiscardedStatementsAreAnsweredAsThoseThatChangeNothing compares what a superseded worker is
// answered with what Postgres answers to the same statement, or to one that finds no row.
func TestDiscardedStatementsAreAnsweredAsThoseThatChangeNothing(t *testing.T) {
	t.Parallel()
	since16(t, func(c *fixture.Cluster) {
		direct, _ := wiretest.Connect(c.T, c.PG.Addr(), "user", pgtest.App, "database", c.DB)
		worker := c.Leader("w")
		c.Supersede()
		for _, s := range alike {
			if s.nothing == "" {
				s.nothing = s.stale
			}
			for form, send := range map[string]func(sql string) []byte{
				"a Query": Q,
				"extended messages": func(sql string) []byte {
					return Batch(Parse("", sql), Desc('S', ""), Bind("", ""), Desc('P', ""), Exec("", 0))
				},
			} {
				want, got := answer(direct, send(s.nothing)), answer(worker, send(s.stale))
				if !slices.Equal(want, got) {
					c.T.Errorf("%s of %s: Postgres answers\n%s\nand Fencepost\n%s", form, s.stale, strings.Join(want, "\n"), strings.Join(got, "\n"))
				}
			}
		}
	})
}

// answer sends, and returns the answer without the parameters that are reported.
func answer(c *wiretest.Conn, piece []byte) []string {
	all, _ := fixture.Ask(c, piece)
	return fixture.Lines(slices.DeleteFunc(all, func(m wiretest.Message) bool { return m.Type == 'S' }))
}
