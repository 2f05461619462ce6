package several

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTheExampleOfThePage runs the statements of docs/several.md. The comment behind each is how
// it is answered.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	example := fixture.Example(t, "several.md", "")
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	s.Exec("create table orders (id int primary key, shard int); grant all on orders to app")
	fixture.Play(t, chooser(s, "shard-7", "shard-9"), example)
	if rows := s.Number("select count(*) from orders where (id, shard) in ((1, 9), (3, 9))"); rows != 2 || len(example) != 13 {
		t.Errorf("%d rows, %d statements; want 2 and 13", rows, len(example))
	}
}
