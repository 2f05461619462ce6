package guard_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/guard"
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

// TestAGuardThatIsLostIsListed: the table was dropped, recreated, or lost its triggers. Its
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

// TestACommitWithoutAnAnswerMayHaveBeenDone: the connection breaks, or the command is interrupted, when the server has
// committed, and the answer is lost.
func TestACommitWithoutAnAnswerMayHaveBeenDone(t *testing.T) {
	t.Parallel()
	add := func(ctx context.Context, conn *pgx.Conn) error {
		_, _, err := guard.Add(ctx, conn, guard.Options{Resource: "billing", Table: "public.invoices"})
		return err
	}
	for name, c := range map[string]struct {
		nth   int32 // commit
		do    func(ctx context.Context, conn *pgx.Conn) error
		after string
	}{
		"add, when it has recorded the table": {1, add, "public.invoices?"},
		"add":                                 {2, add, "public.invoices"},
		"remove": {1, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := guard.Remove(ctx, conn, "public.invoices")
			return err
		}, ""},
		"list": {1, func(ctx context.Context, conn *pgx.Conn) error { // which changes nothing
			_, err := guard.List(ctx, conn)
			return err
		}, ""},
	} {
		for _, interrupted := range []bool{false, true} {
			if interrupted && name != "add" {
				continue // for the others, one way to lose the answer suffices
			}
			t.Run(fmt.Sprintf("%s, interrupted %v", name, interrupted), func(t *testing.T) {
				t.Parallel()
				d := newDatabase(t, pgtest.Shared(t), invoices)
				if name == "remove" {
					d.add(guard.Options{Table: "public.invoices"})
				}
				conn, committed := d.losing(c.nth)
				ctx, interrupt := context.WithCancel(d.ctx())
				defer interrupt()
				ended, pid := make(chan error, 1), conn.PgConn().PID()
				go func() { ended <- c.do(ctx, conn) }()
				<-committed
				if interrupted {
					interrupt()
				} else {
					d.s.Exec(t, pgtest.Superuser, d.name, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
				}
				err := <-ended
				switch {
				case name == "list":
					if err != nil {
						t.Error(err)
					}
				case err == nil || !strings.Contains(err.Error(), "this may have been done: see fencepost guard list") || strings.Contains(err.Error(), "recorded"):
					t.Errorf("the error is %v", err)
				}
				if got := d.listed(); got != c.after {
					t.Errorf("the guards are %q, want %q", got, c.after)
				}
			})
		}
	}
}

// losing connects as the superuser. The connection loses what the server answers from the nth COMMIT on, and committed
// is closed when that is answered.
func (d *database) losing(nth int32) (conn *pgx.Conn, committed chan struct{}) {
	d.t.Helper()
	committed = make(chan struct{})
	answered := sync.OnceFunc(func() { close(committed) })
	relay := fixture.NewRelay(d.t, "tcp", d.s.Addr(), func() fixture.Passing {
		var commits atomic.Int32
		return fixture.Passing{
			ToServer: func(b []byte) []byte {
				if bytes.Contains(b, []byte("commit\x00")) {
					commits.Add(1)
				}
				return b
			},
			ToClient: func(b []byte) []byte {
				if commits.Load() < nth {
					return b
				}
				answered()
				return nil
			},
		}
	})
	conn, err := pgx.Connect(d.ctx(), strings.Replace(d.s.DSN(pgtest.Superuser, d.name), d.s.Addr(), relay.Addr, 1))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn, committed
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
