package several

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestTheExampleOfThePage runs the statements of docs/several.md. The comment behind each is how
// it is answered.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "several.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```sql\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/several.md has no example in SQL")
	}
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Exec("create table orders (id int primary key, shard int); grant all on orders to app")
		conn := chooser(s, "shard-7", "shard-9")
		n := 0
		for line := range strings.Lines(example) {
			sql, want, _ := strings.Cut(strings.TrimSpace(line), "-- ")
			all, ended := fixture.Ask(conn, q(sql))
			got := wiretest.ErrorOf(all)
			for _, m := range all {
				if m.Type == 'C' && wiretest.ErrorOf(all) == "" {
					got = string(m.Body[:len(m.Body)-1])
				}
			}
			if n++; got != want || ended {
				t.Errorf("%s: %q, ended %v; want %q", sql, got, ended, want)
			}
		}
		if rows := s.Number("select count(*) from orders where (id, shard) in ((1, 9), (3, 9))"); rows != 2 || n != 13 {
			t.Errorf("%d rows, %d statements; want 2 and 13", rows, n)
		}
	})
}
