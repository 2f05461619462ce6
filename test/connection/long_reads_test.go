package connection

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestLongReads: a session that may only read runs long reads of any shape, because programs write long conditions when
// they look for many keys at once. Of what is too long for that, the refusal gives the reason.
func TestLongReads(t *testing.T) {
	t.Parallel()
	list := func(n int, between, format string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(all, between)
	}
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		p, db := fixture.NewProxy(t, pg, open), pg.Database(t)
		pg.Exec(t, pgtest.Superuser, db, "create table kept (a int)", "grant select on kept to public")
		c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db)
		for name, sql := range map[string]string{
			"1500 keys by OR":   "select a from kept where " + list(1500, " or ", "a = %d"),
			"1000 by UNION ALL": list(1000, " union all ", "select %d"),
			"40000 keys by IN":  "select a from kept where a in (" + list(40000, ",", "%d") + ")",
			"a literal":         "select '" + strings.Repeat("x", 250<<10) + "'",
		} {
			t.Run(name, func(t *testing.T) { fixture.MustPass(t, c, Q(sql)) })
		}
		for why, sql := range map[string]string{
			"256 kB":          "select '" + strings.Repeat("x", 300<<10) + "'",
			"nested too deep": "select 1" + strings.Repeat(" + 1", 10000),
		} {
			for _, send := range [][]byte{Q(sql), Cat(wiretest.Parse("", sql), wiretest.Sync())} {
				c.Send(send)
				var hint string
				all := c.Until('Z')
				for _, m := range all {
					if m.Type == 'E' {
						hint = m.Fields()['H']
					}
				}
				if wiretest.ErrorOf(all) != "ZF002" || !strings.Contains(hint, why) {
					t.Errorf("%s: %s with the hint %q", why, wiretest.ErrorOf(all), hint)
				}
			}
		}
	})
}
