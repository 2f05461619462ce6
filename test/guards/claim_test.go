package guards

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// unread makes a text too long to be read.
func unread(sql string) string { return sql + " -- " + strings.Repeat("x", 1<<20) }

const do = "do $$begin insert into t (v) values ('x'); end$$"

// pipelines are Queries of a leader. Those of a step are sent at once, and the next step
// when they are answered. All but those that are meant to fail pass.
var pipelines = []struct {
	name  string
	steps [][]string
	fails int // how many Queries fail
	rows  int // that the others write
}{
	{"RESET ALL between", [][]string{{do, "reset all", do, do}}, 0, 3},
	{"DISCARD ALL between", [][]string{{do, "discard all", do, do}}, 0, 3},
	{"a failure between", [][]string{{do, "do $$begin perform 1/0; end$$", do}}, 1, 2},
	{"a block that is rolled back", [][]string{{"begin", do, "rollback", do}}, 0, 1},
	{"a text with a word of VACUUM's", [][]string{{unread(insert + "; " + insert + " -- vacuum")}}, 0, 2},
	{"the same in a pipeline", [][]string{{do, unread(insert + " -- vacuum"), do}}, 0, 3},
	{"a text that ends its block", [][]string{{"begin"}, {insert}, {unread("rollback; " + insert)}}, 0, 1},
	{"the same after RESET ALL", [][]string{{"reset all"}, {"begin"}, {insert}, {unread("rollback; " + insert)}}, 0, 1},
	{"the same after DISCARD ALL", [][]string{{"discard all"}, {"begin"}, {insert}, {unread("rollback; " + insert)}}, 0, 1},
	{"a text that ends its failed block", [][]string{{"begin"}, {"select 1/0"}, {unread("rollback; " + insert)}, {insert}}, 1, 2},
	{"an EXECUTE behind its PREPARE", [][]string{{"prepare p as " + insert, "execute p"}, {"execute p", "execute p"}, {"deallocate p"}}, 0, 3},
	{"one that shows itself behind a PREPARE", [][]string{{"reset all", "prepare p as select 1", insert + " returning current_query()", "deallocate p"}}, 0, 1},
	{"an EXECUTE behind the block of its PREPARE", [][]string{{"reset all", "begin", "prepare p as " + insert, "commit", "execute p", "deallocate p"}}, 0, 1},
	{"savepoints of a text", [][]string{{"begin"}, {unread("savepoint s; " + insert)}, {"rollback to s"}, {unread(insert + "; " + insert)}, {"commit"}}, 0, 2},
}

// TestPipelinesOfQueries: a leader's backend stays registered, whatever it sends.
func TestPipelinesOfQueries(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		c, _ := newGuarded(t, pg)
		for _, p := range pipelines {
			conn := c.Connect("w")
			before, failed := c.Number("select count(*) from t"), []string{}
			for _, step := range p.steps {
				var sent []byte
				for _, sql := range step {
					sent = append(sent, wiretest.Query(sql)...)
				}
				conn.Send(sent)
				for range step {
					if state := wiretest.ErrorOf(conn.Until('Z')); state != "" {
						failed = append(failed, state)
					}
				}
			}
			rows := c.Number("select count(*) from t") - before
			if len(failed) != p.fails || rows != p.rows {
				t.Errorf("%s: failures %q, want %d; %d rows, want %d", p.name, failed, p.fails, rows, p.rows)
			}
		}
		if n := c.Number(fmt.Sprintf("select count(*) from t where fence_epoch is distinct from %d", epoch(c))); n != 0 {
			t.Errorf("%d rows are not stamped", n)
		}
	})
}

// TestAGuardOfAnotherResource: a leader's session claims an epoch of a second resource, as a
// job does, which is over. Only that claim is refused, and what it writes to the table of that resource.
func TestAGuardOfAnotherResource(t *testing.T) {
	t.Parallel()
	c, conn := newGuarded(t, pgtest.Shared(t))
	mayClaim(c)
	c.Exec("create table beside (v text); grant all on beside to app")
	for _, worker := range []string{"x", "y"} {
		c.GrantOn("beside", worker)
	}
	c.Guard(guard.Options{Resource: "beside", Table: "public.beside"})
	audited := len(c.Audit.All())
	for sql, want := range map[string]string{"select fencepost.claim('beside', 1)": "ZF001", "insert into beside values ('x')": "ZF002"} {
		if _, err := conn.Exec(t.Context(), sql); pgtest.StateOf(err) != want {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
		if _, err := conn.Exec(t.Context(), insert); err != nil {
			t.Fatalf("the next write: %v", err)
		}
	}
	if lines := c.Audit.All()[audited:]; len(lines) > 0 {
		t.Errorf("audited as refused: %+v", lines)
	}
}
