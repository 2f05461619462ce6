package discard

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTheExampleOfThePage runs the statements of docs/discard.md. The comment behind each is how
// it is answered.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	example := fixture.Example(t, "discard.md", "")
	c := discarding(t, pgtest.SharedMajor(t, 18))
	c.Exec("create table invoices (id int primary key, state text); grant all on invoices to app; insert into invoices values (7, 'open')")
	conn := c.Leader("w")
	c.Supersede()
	fixture.Play(t, conn, example)
	if rows := c.Number("select count(*) from invoices where (id, state) = (7, 'open')"); rows != 1 || len(example) != 9 {
		t.Errorf("%d rows, %d statements", rows, len(example))
	}
}
