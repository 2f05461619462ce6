package guard_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// owned are tables of a role that no one logs in as and that is no worker's, which writes
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

// newOwned guards the tables of a database in which only the role app may claim.
func newOwned(t *testing.T) *database {
	t.Helper()
	s := pgtest.Start(t)
	d := newDatabase(t, s)
	s.Exec(t, pgtest.Superuser, d.name, owned...)
	for _, table := range []string{"public.head", "public.tail"} {
		d.add(guard.Options{Table: table, Stamp: "fence_epoch"})
	}
	return d
}

// TestWritesInTheNameOfTheOwner: what counts is the backend.
func TestWritesInTheNameOfTheOwner(t *testing.T) {
	t.Parallel()
	d := newOwned(t)
	for _, conn := range []*pgx.Conn{d.app(), d.s.Connect(t, "stranger", d.name)} {
		for _, sql := range inOtherNames {
			if _, err := conn.Exec(d.ctx(), sql); pgtest.StateOf(err) != "ZF002" {
				t.Errorf("%s, of a backend that is not registered: %v, want ZF002", sql, err)
			}
		}
	}
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
