package discard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestTheExampleOfThePage runs the statements of docs/discard.md. The comment behind each is how
// it is answered.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "discard.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```sql\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/discard.md has no example in SQL")
	}
	c := discarding(t, pgtest.Shared(t))
	c.Exec("create table invoices (id int primary key, state text); grant all on invoices to app; insert into invoices values (7, 'open')")
	conn := c.Leader("w")
	c.Supersede()
	n := 0
	for line := range strings.Lines(example) {
		sql, want, _ := strings.Cut(strings.TrimSpace(line), "-- ")
		all, ended := fixture.Ask(conn, q(sql))
		got := wiretest.ErrorOf(all)
		for _, m := range all {
			if m.Type == 'C' && got == "" {
				got = string(m.Body[:len(m.Body)-1])
			}
		}
		if n++; got != want || ended {
			t.Errorf("%s: %q, ended %v; want %q", sql, got, ended, want)
		}
	}
	if rows := c.Number("select count(*) from invoices where (id, state) = (7, 'open')"); rows != 1 || n != 9 {
		t.Errorf("%d rows, %d statements", rows, n)
	}
}
