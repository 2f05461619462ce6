package guard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// owned are tables of a role that nobody logs in as and that is no worker's, which writes
// them for others: by foreign keys, and by a function with SECURITY DEFINER.
var owned = []string{
	"CREATE ROLE owner", "CREATE ROLE stranger LOGIN", "GRANT CREATE ON SCHEMA public TO owner", "SET ROLE owner",
	"CREATE TABLE public.head (id int PRIMARY KEY)",
	"CREATE TABLE public.tail (id int, head int REFERENCES public.head ON UPDATE CASCADE ON DELETE CASCADE)",
	"INSERT INTO public.head VALUES (1), (2)", "INSERT INTO public.tail VALUES (1, 1), (2, 2)",
	"CREATE FUNCTION public.insert_head() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.head VALUES (5)'",
	"GRANT ALL ON public.head, public.tail TO app, stranger", "RESET ROLE",
}

// inOtherNames are writes that run under the name of the owner.
var inOtherNames = []string{"UPDATE public.head SET id = 30 WHERE id = 1", "DELETE FROM public.head WHERE id = 2", "SELECT public.insert_head()"}

// newOwned guards the tables of a database in which only the role app is a worker's.
func newOwned(t *testing.T) *database {
	t.Helper()
	s := pgtest.Start(t)
	d := newDatabase(t, s)
	s.Exec(t, pgtest.Superuser, d.name, owned...)
	s.Exec(t, pgtest.Control, d.name, "SELECT fencepost.set_worker_roles('{app}')", "SELECT fencepost.seal()")
	for _, table := range []string{"public.head", "public.tail"} {
		d.add(guard.Options{Table: table, Stamp: "fence_epoch"})
	}
	return d
}

// TestWritesInTheNameOfTheOwnerPass: whether a session may read the fence depends on who has
// logged in.
func TestWritesInTheNameOfTheOwnerPass(t *testing.T) {
	t.Parallel()
	d := newOwned(t)
	conn := d.app()
	for _, sql := range append([]string{"SELECT fencepost.claim('billing', 7)"}, inOtherNames...) {
		if _, err := conn.Exec(d.ctx(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	var stamps string
	err := conn.QueryRow(d.ctx(), "SELECT (SELECT string_agg(fence_epoch::text, ' ') FROM public.head) || ' ' || (SELECT string_agg(fence_epoch::text, ' ') FROM public.tail)").Scan(&stamps)
	if err != nil || stamps != "7 7 7" {
		t.Errorf("the stamps are %q, %v", stamps, err)
	}
}

// TestAWriteInTheNameOfTheOwnerHoldsOffAGrant: by the lock of the transaction, not of the
// function.
func TestAWriteInTheNameOfTheOwnerHoldsOffAGrant(t *testing.T) {
	t.Parallel()
	d := newOwned(t)
	if !d.locksTheFence("SELECT fencepost.claim('billing', 7)", "SELECT public.insert_head()") {
		t.Error("a grant does not wait for a transaction that has written")
	}
}

// TestWritesInTheNameOfTheOwnerAreRefused without a current claim.
func TestWritesInTheNameOfTheOwnerAreRefused(t *testing.T) {
	t.Parallel()
	d := newOwned(t)
	for claim, want := range map[string]string{"": "ZF002", "SELECT fencepost.claim('billing', 6)": "ZF001", "SELECT fencepost.claim('billing', 8)": "ZF004"} {
		conn := d.app()
		if _, err := conn.Exec(d.ctx(), claim); err != nil {
			t.Fatal(err)
		}
		for _, sql := range inOtherNames {
			if _, err := conn.Exec(d.ctx(), sql); pgtest.StateOf(err) != want {
				t.Errorf("%q, %s: %v, want %s", claim, sql, err, want)
			}
		}
	}
}

// TestARoleThatIsNoWorkersTakesNoLock: neither by a write, nor by what the triggers call.
func TestARoleThatIsNoWorkersTakesNoLock(t *testing.T) {
	t.Parallel()
	d := newOwned(t)
	for _, sql := range []string{
		"INSERT INTO public.head VALUES (9)", "SELECT public.insert_head()",
		"SELECT fencepost.refuse(1, '7', '[0:0]={refuse}', 'public.head'::regclass::oid)",
	} {
		tx, err := d.s.Connect(t, "stranger", d.name).Begin(d.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(d.ctx(), "SET LOCAL fencepost.claim_1 = 7; SAVEPOINT s"); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(d.ctx(), sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "ZF004" || !strings.Contains(pg.Message, `role "stranger" may not read`) || !strings.Contains(pg.Hint, "--worker-role") {
			t.Errorf("%s: %v, want ZF004", sql, err)
		}
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}
	// A warning does not end the transaction, so that a lock would stay.
	d.add(guard.Options{Table: "public.tail", Stamp: "fence_epoch", Warn: true})
	stranger := d.s.Connect(t, "stranger", d.name)
	tx, err := stranger.Begin(d.ctx())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(d.ctx(), "SET LOCAL fencepost.claim_1 = 7; INSERT INTO public.tail VALUES (3)"); err != nil {
		t.Fatal(err)
	}
	var locks bool
	if err := d.super().QueryRow(d.ctx(), "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'fencepost.epoch_1'::regclass AND mode = 'RowExclusiveLock')").Scan(&locks); err != nil || locks {
		t.Errorf("a lock on the sequence: %t, %v", locks, err)
	}
}
