package guard_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// listed returns the guards by their tables, those that are lost with a question mark.
func (d *database) listed() string {
	d.t.Helper()
	list, err := guard.List(d.ctx(), d.super())
	if err != nil {
		d.t.Fatal(err)
	}
	var tables []string
	for _, g := range list {
		tables = append(tables, g.Table+map[bool]string{true: "?"}[g.Lost()])
	}
	return strings.Join(tables, " ")
}

// TestAGuardThatIsLostIsListed: the table was dropped, made anew, or lost its triggers. Its
// record can be removed, or the table guarded again.
func TestAGuardThatIsLostIsListed(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices, "CREATE TABLE public.dropped (id int)", "CREATE TABLE public.bare (id int)", "CREATE TABLE public.named (id int)")
	for _, table := range []string{"public.invoices", "public.dropped", "public.bare", "public.named"} {
		d.add(guard.Options{Table: table})
	}
	d.s.Exec(t, pgtest.App, d.name, "DROP TABLE public.invoices, public.dropped", invoices,
		`DROP TRIGGER "~fencepost" ON public.bare`, `DROP TRIGGER "~fencepost_truncate" ON public.bare`, "ALTER TABLE public.named RENAME TO other")
	if got := d.listed(); got != "public.other public.bare? public.dropped? public.invoices?" {
		t.Errorf("the guards are %s", got)
	}
	if _, changed := d.add(guard.Options{Table: "public.invoices"}); !changed {
		t.Error("a table that was made anew is not guarded again")
	}
	for _, table := range []string{"public.dropped", "public.bare"} {
		if _, err := guard.Remove(d.ctx(), d.super(), table); err != nil {
			t.Errorf("remove the record of %s: %v", table, err)
		}
	}
	if got := d.listed(); got != "public.invoices public.other" || d.guarded() != 2 {
		t.Errorf("the guards are %s, and %d are recorded", got, d.guarded())
	}
	if _, err := guard.Remove(d.ctx(), d.super(), "public.dropped"); err == nil || !strings.Contains(err.Error(), "there is no table public.dropped") {
		t.Errorf("remove it again: %v", err)
	}
}

// TestAddThatWasKilledIsListed: between its two transactions.
func TestAddThatWasKilledIsListed(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	tx, err := d.app().Begin(d.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	ended, conn := make(chan error, 1), d.super()
	go func() {
		_, _, err := guard.Add(context.Background(), conn, guard.Options{Resource: "billing", Table: "public.invoices"})
		ended <- err
	}()
	for d.guarded() == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	d.s.Exec(t, pgtest.Superuser, d.name, fmt.Sprintf("SELECT pg_terminate_backend(%d)", conn.PgConn().PID()))
	if err := <-ended; err == nil {
		t.Fatal("guard add went on")
	}
	if got := d.listed(); got != "public.invoices?" {
		t.Errorf("the guards are %s", got)
	}
	if err := tx.Commit(d.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, err := guard.Remove(d.ctx(), d.super(), "public.invoices"); err != nil {
		t.Error(err)
	}
	if got := d.listed(); got != "" || d.guarded() != 0 {
		t.Errorf("the guards are %s, and %d are recorded", got, d.guarded())
	}
}

// TestTablesGuardedAtOnceAreAllCounted also removes some at the same time.
func TestTablesGuardedAtOnceAreAllCounted(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t))
	const n = 6
	table := func(i int) string { return fmt.Sprintf("public.t%d", i) }
	for i := range n {
		d.s.Exec(t, pgtest.App, d.name, "CREATE TABLE "+table(i)+" (id int)")
	}
	atOnce := func(do func(i int) error) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				if err := do(i); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	add := func(i int) error {
		_, _, err := guard.Add(d.ctx(), d.super(), guard.Options{Resource: "billing", Table: table(i)})
		return err
	}
	atOnce(add)
	if got := d.guarded(); got != n {
		t.Errorf("%d tables are recorded, want %d", got, n)
	}
	for i := range n / 2 {
		if _, err := guard.Remove(d.ctx(), d.super(), table(i)); err != nil {
			t.Fatal(err)
		}
	}
	atOnce(func(i int) error {
		if i < n/2 {
			return add(i)
		}
		_, err := guard.Remove(d.ctx(), d.super(), table(i))
		return err
	})
	if got := d.listed(); got != "public.t0 public.t1 public.t2" || d.guarded() != n/2 {
		t.Errorf("the guards are %s, and %d are recorded", got, d.guarded())
	}
}
