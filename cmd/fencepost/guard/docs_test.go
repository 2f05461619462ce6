package guard_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTheExampleOfThePage runs the statements of docs/guards.md. Each is a line, with the
// SQLSTATE that it fails with in its comment.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guards.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```sql\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/guards.md has no example in SQL")
	}
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.grant(42)
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch"})
	conn, refused := d.app(), 0
	for line := range strings.Lines(example) {
		sql, want, _ := strings.Cut(strings.TrimSpace(line), "-- ")
		if want != "" {
			refused++
		}
		if _, err := conn.Exec(d.ctx(), sql); stateOf(err) != want {
			t.Errorf("%s: %v, want %q", sql, err, want)
		}
	}
	var rows int
	if err := conn.QueryRow(d.ctx(), "SELECT count(*) FROM public.invoices WHERE id = 1 AND fence_epoch = 42").Scan(&rows); err != nil || rows != 1 || refused != 3 {
		t.Errorf("%d rows, %d refusals: %v", rows, refused, err)
	}
}
