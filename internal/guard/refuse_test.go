package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestOnlyWhoIsRegisteredWrites, whatever its session sets.
func TestOnlyWhoIsRegisteredWrites(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch"})
	d.s.Exec(t, pgtest.Superuser, d.name, "CREATE SCHEMA hostile", "GRANT USAGE ON SCHEMA hostile TO app",
		"CREATE FUNCTION hostile.yes(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'",
		"CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.yes)")
	for _, c := range []struct{ claim, state, message string }{
		{"", "ZF002", "is not registered for it"},
		{"SET fencepost.claim_1 = '7'", "ZF002", "is not registered for it"},
		{"SET fencepost.registered_1 = '7'", "ZF002", "is not registered for it"},
		{"SET search_path = hostile, pg_catalog", "ZF002", "is not registered for it"},
		{"SELECT fencepost.claim('billing', 7); SET search_path = hostile, pg_catalog", "", ""},
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
	next := d.app()
	if _, err := next.Exec(d.ctx(), "SELECT fencepost.claim('billing', 9); UPDATE public.invoices SET paid = true WHERE id = 2"); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := next.QueryRow(d.ctx(), "SELECT string_agg(format('%s:%s', id, fence_epoch), ' ' ORDER BY id) FROM public.invoices").Scan(&got); err != nil || got != "0: 1:7 2:9 3:7" {
		t.Errorf("stamps are %q, %v", got, err)
	}
}

// TestSomeAreLetPass has a guard let pass a role, or everyone: the stamp is NULL, and the
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

// TestWhoHasClaimedHoldsOffAGrant in the transaction of the claim, and in each that writes: it may be prepared for
// two-phase commit, and outlives its backend then.
func TestWhoHasClaimedHoldsOffAGrant(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices"})
	const claim, write = "SELECT fencepost.claim('billing', 7)", "INSERT INTO public.invoices VALUES (1)"
	if !d.locksTheFence(claim) {
		t.Error("a grant does not wait for the transaction of a claim, and would not see its registration")
	}
	conn := d.app()
	if _, err := conn.Exec(d.ctx(), claim); err != nil {
		t.Fatal(err)
	}
	if d.locksTheFenceOn(conn, "SELECT 1") {
		t.Error("a grant waits for a transaction that has written nothing")
	}
	if !d.locksTheFenceOn(conn, write) {
		t.Error("a grant does not wait for a transaction that has written, and that may be prepared")
	}
}

// TestAClaimIsUndoneOnlyByARollback: neither RESET ALL nor DISCARD ALL takes a registration away.
func TestAClaimIsUndoneOnlyByARollback(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices"})
	for _, c := range []struct{ claim, state string }{
		{"BEGIN; SELECT fencepost.claim('billing', 7); ROLLBACK", "ZF002"},
		{"BEGIN; SAVEPOINT s; SELECT fencepost.claim('billing', 7); ROLLBACK TO s; COMMIT", "ZF002"},
		{"SELECT fencepost.claim('billing', 7); RESET ALL", ""},
		{"SELECT fencepost.claim('billing', 7); SELECT fencepost.claim('billing', 7)", ""},
		{"BEGIN; SELECT fencepost.claim('billing', 7); COMMIT; BEGIN; SAVEPOINT s; SELECT fencepost.claim('billing', 7); ROLLBACK", ""},
	} {
		conn := d.app()
		if _, err := conn.Exec(d.ctx(), c.claim); err != nil {
			t.Fatalf("%s: %v", c.claim, err)
		}
		for range 2 {
			if _, err := conn.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); pgtest.StateOf(err) != c.state {
				t.Errorf("%s, and then a write: %v, want %q", c.claim, err, c.state)
			}
			if _, err := conn.Exec(d.ctx(), "DISCARD ALL"); err != nil {
				t.Fatal(err)
			}
		}
		var entries int
		const question = "SELECT count(*) FROM fencepost.running WHERE pid = $1"
		if err := d.super().QueryRow(d.ctx(), question, conn.PgConn().PID()).Scan(&entries); err != nil || entries > 1 || entries == 0 && c.state == "" {
			t.Errorf("%s: the registry has %d entries of the backend: %v", c.claim, entries, err)
		}
	}
}

// TestAnEntryOfAnEarlierBackendIsNone: a process id is used again.
func TestAnEntryOfAnEarlierBackendIsNone(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices"})
	conn := d.app()
	d.s.Exec(t, pgtest.Control, d.name, fmt.Sprintf("INSERT INTO fencepost.running (pid, backend_start, fence, epoch) VALUES (%d, '2000-01-01', 1, 7)", conn.PgConn().PID()))
	if _, err := conn.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); pgtest.StateOf(err) != "ZF002" {
		t.Errorf("a write: %v, want ZF002", err)
	}
}

// TestAGrantEndsWhoHasClaimed: no row is written under the claim once the grant has returned.
func TestAGrantEndsWhoHasClaimed(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices"})
	rests, works := d.app(), d.app()
	for _, conn := range []*pgx.Conn{rests, works} {
		if _, err := conn.Exec(d.ctx(), "SELECT fencepost.claim('billing', 7)"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := works.Exec(d.ctx(), "BEGIN; SELECT count(*) FROM public.invoices"); err != nil {
		t.Fatal(err)
	}
	d.grant(8)
	for name, conn := range map[string]*pgx.Conn{"at rest": rests, "in a transaction": works} {
		if _, err := conn.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (2); COMMIT"); pgtest.StateOf(err) != "57P01" {
			t.Errorf("a backend %s, after the grant: %v, want 57P01", name, err)
		}
	}
	var rows, entries int
	err := d.super().QueryRow(d.ctx(), "SELECT (SELECT count(*) FROM public.invoices), (SELECT count(*) FROM fencepost.running)").Scan(&rows, &entries)
	if err != nil || rows != 0 || entries != 0 {
		t.Errorf("%d rows, %d entries of the registry: %v", rows, entries, err)
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

// locksTheFence runs statements in a transaction, and reports whether that then has a lock
// of the fence's row for which a grant waits.
func (d *database) locksTheFence(statements ...string) (locks bool) {
	d.t.Helper()
	return d.locksTheFenceOn(d.app(), statements...)
}

// locksTheFenceOn is locksTheFence on a connection.
func (d *database) locksTheFenceOn(conn *pgx.Conn, statements ...string) (locks bool) {
	d.t.Helper()
	tx, err := conn.Begin(d.ctx())
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range statements {
		if _, err := tx.Exec(d.ctx(), sql); err != nil {
			d.t.Fatal(err)
		}
	}
	const question = "SELECT count(*) = 0 FROM (SELECT FROM fencepost.fence WHERE id = 1 FOR UPDATE SKIP LOCKED) free"
	if err := d.super().QueryRow(d.ctx(), question).Scan(&locks); err != nil {
		d.t.Fatal(err)
	}
	return locks
}

// TestAMissingFenceIsRefused to who has claimed: a grant could not wait for it.
func TestAMissingFenceIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	d.add(guard.Options{Table: "public.invoices"})
	claimed := d.app()
	if _, err := claimed.Exec(d.ctx(), "SELECT fencepost.claim('billing', 7); INSERT INTO public.invoices VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	d.s.Exec(t, pgtest.Superuser, d.name, "SET session_replication_role = replica", "DELETE FROM fencepost.fence") // without its foreign keys
	if _, err := claimed.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); pgtest.StateOf(err) != "ZF004" {
		t.Errorf("without the fence: %v, want ZF004", err)
	}
	if _, err := d.app().Exec(d.ctx(), "SELECT fencepost.claim('billing', 7)"); pgtest.StateOf(err) != "ZF004" {
		t.Errorf("a claim without the fence: %v, want ZF004", err)
	}
}

// TestClaimNamesItsMistakes, and those of a role whose backend no grant can end.
func TestClaimNamesItsMistakes(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	for sql, want := range map[string]struct{ state, message string }{
		"SELECT fencepost.claim('typo', 7)":       {"ZF004", "no resource"},
		"SELECT fencepost.claim('billing', 0)":    {"ZF004", "is no epoch"},
		"SELECT fencepost.claim('billing', NULL)": {"ZF004", "is no epoch"},
		"SELECT fencepost.claim('billing', 8)":    {"ZF004", "is no epoch"},
		"SELECT fencepost.claim('billing', 6)":    {"ZF001", "current epoch 7 is held by"},
	} {
		if _, err := d.app().Exec(d.ctx(), sql); pgtest.StateOf(err) != want.state || !strings.Contains(err.Error(), want.message) {
			t.Errorf("%s: %v, want %s that contains %q", sql, err, want.state, want.message)
		}
	}
	if _, err := d.super().Exec(d.ctx(), "SELECT fencepost.claim('billing', 7)"); pgtest.StateOf(err) != "ZF004" || !strings.Contains(err.Error(), "could not end") {
		t.Errorf("a claim of a superuser: %v, want ZF004", err)
	}
}

// TestOnlyWhoWasAdmittedMayClaim, and its triggers refuse everyone else without any right on the schema.
func TestOnlyWhoWasAdmittedMayClaim(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	d := newDatabase(t, s, invoices)
	s.Exec(t, pgtest.Superuser, d.name, "CREATE ROLE stranger LOGIN", "GRANT ALL ON public.invoices TO stranger")
	d.add(guard.Options{Table: "public.invoices"})
	stranger := s.Connect(t, "stranger", d.name)
	for _, c := range []struct{ sql, state string }{
		{"INSERT INTO public.invoices VALUES (1)", "ZF002"},
		{"TRUNCATE public.invoices", "ZF002"},
		{"SELECT fencepost.claim('billing', 7)", "42501"},
	} {
		if _, err := stranger.Exec(d.ctx(), c.sql); pgtest.StateOf(err) != c.state {
			t.Errorf("%s: %v, want %s", c.sql, err, c.state)
		}
	}
	s.Exec(t, pgtest.Control, d.name, fmt.Sprintf("INSERT INTO fencepost.running (pid, backend_start, fence, epoch) SELECT pid, backend_start, 1, 7 FROM pg_stat_activity WHERE pid = %d", stranger.PgConn().PID()))
	if _, err := stranger.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); err != nil {
		t.Errorf("a write of a role without any right on the schema, whose backend is registered: %v", err)
	}
}

// TestAClaimAfterAWriteThatWasLetPass counts in the transaction of both.
func TestAClaimAfterAWriteThatWasLetPass(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices, "CREATE TABLE public.others (id int)")
	for _, table := range []string{"public.invoices", "public.others"} {
		d.add(guard.Options{Table: table, Stamp: "fence_epoch", Warn: table == "public.invoices"})
	}
	conn := d.app()
	for _, c := range []struct{ sql, state string }{
		{"BEGIN; INSERT INTO public.invoices VALUES (1); INSERT INTO public.others VALUES (1)", "ZF002"},
		{"ROLLBACK; BEGIN; INSERT INTO public.invoices VALUES (1); SELECT fencepost.claim('billing', 7); INSERT INTO public.invoices VALUES (2); INSERT INTO public.others VALUES (2); COMMIT", ""},
	} {
		if _, err := conn.Exec(d.ctx(), c.sql); pgtest.StateOf(err) != c.state {
			t.Fatalf("%s: %v, want %q", c.sql, err, c.state)
		}
	}
	var got string
	err := conn.QueryRow(d.ctx(), "SELECT (SELECT string_agg(format('%s:%s', id, fence_epoch), ' ' ORDER BY id) FROM public.invoices) || ' and ' || (SELECT string_agg(format('%s:%s', id, fence_epoch), ' ') FROM public.others)").Scan(&got)
	if err != nil || got != "1: 2:7 and 2:7" {
		t.Errorf("the stamps are %q, %v", got, err)
	}
}

// TestAStampRunsNoCodeOfTheOwner: the function of the trigger has the rights of the control role, and a domain that the
// column was given later would have it call a function of the table's owner.
func TestAStampRunsNoCodeOfTheOwner(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices, "CREATE TABLE public.caught (who text)",
		"CREATE FUNCTION public.catches(v bigint) RETURNS bool LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.caught VALUES (current_user); RETURN true; END'",
		"CREATE DOMAIN public.trap AS bigint CHECK (public.catches(VALUE))")
	d.add(guard.Options{Table: "public.invoices", Stamp: "fence_epoch"})
	conn := d.app()
	for _, sql := range []string{"ALTER TABLE public.invoices ALTER fence_epoch TYPE public.trap", "TRUNCATE public.caught", "SELECT fencepost.claim('billing', 7)"} {
		if _, err := conn.Exec(d.ctx(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); pgtest.StateOf(err) != "42804" || !strings.Contains(err.Error(), `column fence_epoch takes the stamp`) {
		t.Errorf("a write: %v, want 42804", err)
	}
	var caught int
	if err := conn.QueryRow(d.ctx(), "SELECT count(*) FROM public.caught WHERE who <> 'app'").Scan(&caught); err != nil || caught != 0 {
		t.Errorf("the function ran %d times as somebody else: %v", caught, err)
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
