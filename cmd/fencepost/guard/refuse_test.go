package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/cmd/fencepost/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestClaimsAreComparedWithTheFence(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch"})
	d.s.Exec(t, pgtest.Superuser, d.name, "CREATE SCHEMA hostile", "GRANT USAGE ON SCHEMA hostile TO app",
		"CREATE FUNCTION hostile.yes(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'",
		"CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.yes)")
	for _, c := range []struct{ claim, state, message string }{
		{"", "ZF002", "claims no epoch"},
		{"SELECT fencepost.claim('billing', 6)", "ZF001", "was superseded"},
		{"SELECT fencepost.claim('billing', 8)", "ZF004", "only knows epoch 7"},
		{"SET fencepost.claim_1 = ''", "ZF002", "claims no epoch"},
		{"SET fencepost.claim_1 = 'x'", "ZF004", "is no epoch"},
		{"SET fencepost.claim_1 = ' 7'", "ZF004", "is no epoch"},
		{"SELECT fencepost.claim('billing', 7)", "", ""},
		{"SELECT fencepost.claim('billing', 7); SET search_path = hostile", "", ""},
		{"SELECT fencepost.claim('billing', 6); SET search_path = hostile, pg_catalog", "ZF001", "was superseded"},
	} {
		conn := d.app()
		if _, err := conn.Exec(d.ctx(), c.claim); err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"INSERT INTO public.invoices VALUES (1)", "UPDATE public.invoices SET paid = true", "DELETE FROM public.invoices", "TRUNCATE public.invoices"} {
			d.s.Exec(t, pgtest.Superuser, d.name, "SET session_replication_role = replica", "ALTER TABLE public.invoices DISABLE TRIGGER ALL",
				"INSERT INTO public.invoices VALUES (2)", `ALTER TABLE public.invoices ENABLE ALWAYS TRIGGER "~fencepost"`, `ALTER TABLE public.invoices ENABLE ALWAYS TRIGGER "~fencepost_truncate"`)
			_, err := conn.Exec(d.ctx(), sql)
			var pg *pgconn.PgError
			if pgtest.StateOf(err) != c.state || errors.As(err, &pg) && (!strings.Contains(pg.Message, c.message) || pg.Hint == "" || pg.Severity != "ERROR") {
				t.Errorf("%s; %s: %v, want %q %q", c.claim, sql, err, c.state, c.message)
			}
		}
	}
}

func TestStampIsTheClaim(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices, "INSERT INTO public.invoices VALUES (0)")
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch"})
	conn := d.app()
	for _, sql := range []string{
		"SELECT fencepost.claim('billing', 7)", "INSERT INTO public.invoices VALUES (1), (2)", "INSERT INTO public.invoices (id, fence_epoch) VALUES (3, 99999)",
		"UPDATE public.invoices SET fence_epoch = 99999 WHERE id = 1",
	} {
		if _, err := conn.Exec(d.ctx(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	d.grant(9)
	if _, err := conn.Exec(d.ctx(), "SELECT fencepost.claim('billing', 9); UPDATE public.invoices SET paid = true WHERE id = 2"); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := conn.QueryRow(d.ctx(), "SELECT string_agg(format('%s:%s', id, fence_epoch), ' ' ORDER BY id) FROM public.invoices").Scan(&got); err != nil || got != "0: 1:7 2:9 3:7" {
		t.Errorf("stamps are %q, %v", got, err)
	}
}

// TestSomeAreLetPass has a guard let pass a role, or everybody: the stamp is NULL, and the
// server's log has one line for each transaction.
func TestSomeAreLetPass(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	d := newDatabase(t, s, invoices, "CREATE FUNCTION public.sneak() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.invoices VALUES (5)'")
	s.Exec(t, pgtest.Superuser, d.name, "CREATE ROLE stranger LOGIN", "CREATE ROLE migrator", "GRANT ALL ON public.invoices TO stranger")
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch", Except: []string{"migrator", pgtest.App}})
	stranger := s.Connect(t, "stranger", d.name)
	for _, sql := range []string{"INSERT INTO public.invoices VALUES (4)", "SELECT public.sneak()"} {
		if _, err := stranger.Exec(d.ctx(), sql); pgtest.StateOf(err) != "ZF002" {
			t.Errorf("%s, of a role that is not excepted: %v, want ZF002", sql, err)
		}
	}
	want := func(when string, rows int, lines int) {
		t.Helper()
		var all, stamped int
		if err := d.app().QueryRow(d.ctx(), "SELECT count(*), count(fence_epoch) FROM public.invoices").Scan(&all, &stamped); err != nil || all != rows || stamped != 0 {
			t.Errorf("%s: %d rows, %d stamped; want %d, none: %v", when, all, stamped, rows, err)
		}
		if log := d.log("public.invoices"); len(log) != lines {
			t.Errorf("%s: %d lines in the log, want %d: %v", when, len(log), lines, log)
		}
	}
	s.Exec(t, pgtest.App, d.name, "INSERT INTO public.invoices (id, fence_epoch) SELECT 1, 3 FROM generate_series(1, 10)")
	want("an excepted role", 10, 1)
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch", Warn: true})
	if _, err := stranger.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (6)"); err != nil {
		t.Error(err)
	}
	want("a warning", 11, 2)
}

// TestAWriteUnderAClaimHoldsOffAGrant: until its transaction ends.
func TestAWriteUnderAClaimHoldsOffAGrant(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices"})
	if !d.locksTheFence("SELECT fencepost.claim('billing', 7)", "INSERT INTO public.invoices VALUES (1)") {
		t.Error("a grant does not wait for a transaction that has written")
	}
}

// TestWhatIsLetPassHoldsOffNoGrant has an excepted role leave its transaction open.
func TestWhatIsLetPassHoldsOffNoGrant(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices", Except: []string{pgtest.App}})
	if d.locksTheFence("INSERT INTO public.invoices VALUES (1)") {
		t.Error("a grant waits for a transaction that the guard let pass")
	}
}

// locksTheFence runs statements in a transaction, and reports whether that then has the lock
// of the sequence for which a grant waits.
func (d *database) locksTheFence(statements ...string) (locks bool) {
	d.t.Helper()
	tx, err := d.app().Begin(d.ctx())
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range statements {
		if _, err := tx.Exec(d.ctx(), sql); err != nil {
			d.t.Fatal(err)
		}
	}
	const question = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'fencepost.epoch_1'::regclass AND mode = 'RowExclusiveLock')"
	if err := d.super().QueryRow(d.ctx(), question).Scan(&locks); err != nil {
		d.t.Fatal(err)
	}
	return locks
}

func TestAMissingSequenceIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices"})
	conn := d.app()
	if _, err := conn.Exec(d.ctx(), "SELECT fencepost.claim('billing', 7); INSERT INTO public.invoices VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	d.s.Exec(t, pgtest.Control, d.name, "DROP SEQUENCE fencepost.epoch_1")
	if _, err := conn.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); pgtest.StateOf(err) != "ZF004" {
		t.Errorf("without the sequence: %v, want ZF004", err)
	}
}

// TestClaimNamesItsMistakes also has a role claim that is no worker's.
func TestClaimNamesItsMistakes(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	for _, sql := range []string{"SELECT fencepost.claim('typo', 7)", "SELECT fencepost.claim('billing', 0)", "SELECT fencepost.claim('billing', NULL)"} {
		if _, err := d.app().Exec(d.ctx(), sql); pgtest.StateOf(err) != "ZF004" {
			t.Errorf("%s: %v, want ZF004", sql, err)
		}
	}
}

func TestAnUnknownWorkerRoleIsRefused(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	d := newDatabase(t, s, invoices)
	s.Exec(t, pgtest.Superuser, d.name, "CREATE ROLE stranger LOGIN", "GRANT ALL ON public.invoices TO stranger")
	s.Exec(t, pgtest.Control, d.name, "SELECT fencepost.set_worker_roles('{app}')", "SELECT fencepost.seal()")
	d.add(guard.Options{Table: "public.invoices"})
	stranger := s.Connect(t, "stranger", d.name)
	for _, c := range []struct{ sql, state string }{
		{"INSERT INTO public.invoices VALUES (1)", "ZF002"},
		{"SELECT fencepost.claim('billing', 7)", "42501"},
		{"SET fencepost.claim_1 = 7; INSERT INTO public.invoices VALUES (1)", "ZF004"},
	} {
		if _, err := stranger.Exec(d.ctx(), c.sql); pgtest.StateOf(err) != c.state {
			t.Errorf("%s: %v, want %s", c.sql, err, c.state)
		}
	}
}

// TestDumpAndRestore restores a guarded table with its rows: their stamps stay, and the
// copy is guarded.
func TestDumpAndRestore(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithTools(t))
	d := newDatabase(t, s, append(family, invoices)...)
	s.Exec(t, pgtest.Superuser, d.name, "CREATE ROLE migrator")
	for _, table := range []string{"public.parted", "public.parent", "public.invoices"} {
		d.add(guard.Options{Table: table, Stamp: "fence_epoch", Except: []string{"migrator"}})
	}
	s.Exec(t, pgtest.App, d.name, "SELECT fencepost.claim('billing', 7); INSERT INTO public.invoices VALUES (1); INSERT INTO public.parted VALUES (1, 1), (1, 3); INSERT INTO public.\"Child\" VALUES (1)")
	dsn := s.DSN(pgtest.Superuser, d.name)
	dump, err := exec.Command(s.Program(t, "pg_dump"), dsn).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	copied := &database{t, s, s.EmptyDatabase(t)}
	restore := exec.Command(s.Program(t, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", s.DSN(pgtest.Superuser, copied.name))
	restore.Stdin, restore.Env = strings.NewReader(string(dump)), os.Environ()
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("restore: %v: %s", err, out)
	}
	list, err := guard.List(d.ctx(), copied.super())
	if err != nil || len(list) != 3 || len(list[0].Broken())+len(list[1].Broken())+len(list[2].Broken()) > 0 {
		t.Errorf("guards of the copy: %+v, %v", list, err)
	}
	for table, want := range map[string]int{"invoices": 1, "parted": 2, "parent": 1} {
		var stamped int
		if err := copied.app().QueryRow(d.ctx(), fmt.Sprintf("SELECT count(*) FROM public.%s WHERE fence_epoch = 7", table)).Scan(&stamped); err != nil || stamped != want {
			t.Errorf("%s has %d stamped rows, want %d: %v", table, stamped, want, err)
		}
	}
	if _, err := copied.app().Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); pgtest.StateOf(err) != "ZF002" {
		t.Errorf("a write without a claim: %v, want ZF002", err)
	}
	if _, err := copied.app().Exec(d.ctx(), "SELECT fencepost.claim('billing', 7); INSERT INTO public.invoices VALUES (1)"); err != nil {
		t.Error(err)
	}
}
