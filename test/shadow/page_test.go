package shadow

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestTheExampleOfThePage runs the statements of docs/shadow.md. The comment behind each is what
// is recorded.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	example := fixture.Example(t, "shadow.md", "")
	c := shadowed(t, pgtest.Shared(t))
	c.Exec("create table invoices (id int primary key, state text); grant all on invoices to app; insert into invoices values (7, 'open')")
	conn := c.Leader("w")
	supersede(t, c)
	for _, s := range example {
		fixture.MustPass(t, conn, Q(s.SQL))
		got := "-"
		for _, r := range c.Audited(t, c.DB) {
			got = r.SQLState
		}
		c.Audit.Forget()
		if got != s.Want {
			t.Errorf("%s: %q, want %q", s.SQL, got, s.Want)
		}
	}
	if rows := c.Number("select count(*) from invoices where (id, state) = (8, 'new')"); rows != 1 || len(example) != 7 {
		t.Errorf("%d rows, %d statements", rows, len(example))
	}
}
