package guard_test

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTheExampleOfThePage runs the statements of docs/guards.md. Each is a line, with the
// SQLSTATE that it fails with in its comment.
func TestTheExampleOfThePage(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.grant(42)
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch"})
	conn, refused := d.app(), 0
	for _, s := range fixture.Example(t, "guards.md", "") {
		if s.Want != "" {
			refused++
		}
		if _, err := conn.Exec(d.ctx(), s.SQL); pgtest.StateOf(err) != s.Want {
			t.Errorf("%s: %v, want %q", s.SQL, err, s.Want)
		}
	}
	var rows int
	if err := conn.QueryRow(d.ctx(), "SELECT count(*) FROM public.invoices WHERE id = 1 AND fence_epoch = 42").Scan(&rows); err != nil || rows != 1 || refused != 3 {
		t.Errorf("%d rows, %d refusals: %v", rows, refused, err)
	}
}
