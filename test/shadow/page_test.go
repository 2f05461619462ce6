package shadow

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
)

// TestTheExampleOfThePage runs the statements of docs/shadow.md. The comment behind each is what
// is recorded.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "shadow.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```sql\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/shadow.md has no example in SQL")
	}
	onServers(t, func(t *testing.T, c *fixture.Cluster) {
		c.Exec("create table invoices (id int primary key, state text); grant all on invoices to app; insert into invoices values (7, 'open')")
		conn := c.Leader("w")
		supersede(t, c)
		n := 0
		for line := range strings.Lines(example) {
			sql, want, _ := strings.Cut(strings.TrimSpace(line), "-- ")
			fixture.MustPass(t, conn, q(sql))
			got := "-"
			for _, r := range c.Audited(t, c.DB) {
				if got = r.SQLState; r.Kind == fencing.KindRegistered {
					got = "registered"
				}
			}
			c.Audit.Forget()
			if n++; got != want {
				t.Errorf("%s: %q, want %q", sql, got, want)
			}
		}
		if rows := c.Number("select count(*) from invoices where (id, state) = (8, 'new')"); rows != 1 || n != 7 {
			t.Errorf("%d rows, %d statements", rows, n)
		}
	})
}
