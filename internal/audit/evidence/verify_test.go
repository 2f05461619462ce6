package evidence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database is a database with the resource billing and a stamped table.
type database struct {
	t     *testing.T
	s     *pgtest.Server
	name  string
	epoch int
}

func newDatabase(t *testing.T, s *pgtest.Server) *database {
	t.Helper()
	d := &database{t: t, s: s, name: s.Database(t)}
	d.control("SELECT fencepost.register('billing')", "SELECT fencepost.generation('test', 'm')", "SELECT fencepost.admit('app')")
	d.app("CREATE TABLE public.invoices (id bigint)")
	_, _, err := guard.Add(d.ctx(), d.super(), guard.Options{Resource: "billing", Table: "public.invoices", Stamp: "fence_epoch"})
	if err != nil {
		t.Fatal(err)
	}
	d.grant()
	return d
}

func (d *database) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	d.t.Cleanup(cancel)
	return ctx
}

func (d *database) super() *pgx.Conn { return d.s.Connect(d.t, pgtest.Superuser, d.name) }

func (d *database) control(statements ...string) {
	d.t.Helper()
	d.s.Exec(d.t, pgtest.Control, d.name, statements...)
}

func (d *database) app(statements ...string) {
	d.t.Helper()
	d.s.Exec(d.t, pgtest.App, d.name, statements...)
}

// grant grants the next epoch.
func (d *database) grant() { d.t.Helper(); d.grantAfter(5 * time.Second) }

// grantAfter grants the next epoch, and ends after the grace whoever still works under the current one.
func (d *database) grantAfter(grace time.Duration) {
	d.t.Helper()
	d.epoch++
	d.control(fmt.Sprintf("SELECT fencepost.grant(1, 'w-%[1]d', 'i-%[1]d', 'test', 'm', %[1]d, 0, 0, '%[2]d ms', '5 s')", d.epoch, grace.Milliseconds()))
}

// write writes under the current epoch.
func (d *database) write(statements ...string) {
	d.t.Helper()
	d.app(append([]string{fmt.Sprintf("SELECT fencepost.claim('billing', %d)", d.epoch)}, statements...)...)
}

// past runs statements on a table whose trigger is disabled meanwhile.
func (d *database) past(statements ...string) {
	d.t.Helper()
	all := append([]string{`ALTER TABLE public.invoices DISABLE TRIGGER "~fencepost"`}, statements...)
	d.app(append(all, `ALTER TABLE public.invoices ENABLE ALWAYS TRIGGER "~fencepost"`)...)
}

func (d *database) verify(o evidence.Options) *evidence.Report {
	d.t.Helper()
	report, err := evidence.Verify(d.ctx(), d.super(), o)
	if err != nil {
		d.t.Fatal(err)
	}
	return report
}

// says returns the text of a report, with how it ends: ok, found or unverified.
func says(t *testing.T, r *evidence.Report) (text, ends string) {
	t.Helper()
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	var found *evidence.FoundError
	var unverified *evidence.UnverifiedError
	switch err := r.Err(); {
	case err == nil:
		return out.String(), "ok"
	case errors.As(err, &found):
		return out.String(), "found"
	case errors.As(err, &unverified):
		return out.String(), "unverified"
	default:
		t.Fatal(err)
		return "", ""
	}
}

// state is one of a database that the report must distinguish from others: how the report ends, and
// what it says.
type state struct {
	plant func(d *database)
	ends  string
	says  string
}

var planted = map[string]state{
	"healthy": {func(d *database) { d.grant(); d.write("INSERT INTO public.invoices VALUES (3)") }, "ok", "public.invoices"},
	"a late row": {func(d *database) {
		d.grant()
		d.past("UPDATE public.invoices SET id = 9 WHERE id = 1")
	}, "found", `wrote 1 rows under epoch 1 of resource "billing" after the grant of epoch 2 to "w-2"`},
	"a late subtransaction": {func(d *database) {
		d.grant()
		d.past("BEGIN; SAVEPOINT a; UPDATE public.invoices SET id = 9 WHERE id = 1; RELEASE a; COMMIT")
	}, "found", "wrote 1 rows under epoch 1"},
	"a stamp never granted": {func(d *database) {
		d.past("INSERT INTO public.invoices VALUES (7, 999)")
	}, "found", "wrote 1 rows under epoch 999 of resource \"billing\", which was granted to nobody"},
	"an epoch of nobody": {func(d *database) {
		d.control("SELECT fencepost.raise_epoch(1, 5, 'me', '', '1 s', '1 s')")
		d.past("INSERT INTO public.invoices VALUES (7, 6)")
	}, "found", "which was granted to nobody"},
	"a disabled guard": {func(d *database) {
		d.app(`ALTER TABLE public.invoices DISABLE TRIGGER "~fencepost"`)
	}, "unverified", "the trigger that stamps its rows is missing or disabled"},
	"a dropped guard": {func(d *database) {
		d.app(`DROP TRIGGER "~fencepost" ON public.invoices; DROP TRIGGER "~fencepost_truncate" ON public.invoices`)
	}, "unverified", "has no guard"},
	"a rewritten table": {func(d *database) {
		d.grant()
		d.app("ALTER TABLE public.invoices ALTER id TYPE text")
		d.grant()
	}, "unverified", "the table was rewritten"},
	"a late row behind a rewrite": {func(d *database) {
		d.app("ALTER TABLE public.invoices ALTER id TYPE text")
		d.s.Exec(d.t, pgtest.Superuser, d.name, "SET session_replication_role = replica", `ALTER TABLE public.invoices ENABLE TRIGGER "~fencepost"`)
		d.grant()
		d.s.Exec(d.t, pgtest.Superuser, d.name, "SET session_replication_role = replica; UPDATE public.invoices SET id = '9' WHERE id = '1'")
	}, "found", "wrote 1 rows under epoch 1"},
	"a pruned ledger": {func(d *database) {
		d.grant()
		d.grant()
		d.control("DELETE FROM fencepost.grants WHERE epoch < 3")
	}, "unverified", "the ledger begins with a later epoch"},
	"rows from before the guard": {func(d *database) {
		d.grant()
		d.app("CREATE TABLE public.old (id bigint, fence_epoch bigint)", "INSERT INTO public.old VALUES (1, 1), (2, 77)")
		if _, _, err := guard.Add(d.ctx(), d.super(), guard.Options{Resource: "billing", Table: "public.old", Stamp: "fence_epoch"}); err != nil {
			d.t.Fatal(err)
		}
	}, "unverified", "2 rows of epochs 1 to 77: they were written before the guard was made"},
	"an index that calls a function of the table's owner": {func(d *database) {
		d.s.Exec(d.t, pgtest.Superuser, d.name, "CREATE SCHEMA trap AUTHORIZATION "+pgtest.App)
		d.app("CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE EXCEPTION 'SPRUNG'; END $$",
			"CREATE FUNCTION trap.harmless() RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'",
			"CREATE INDEX sprung ON public.invoices (id) WHERE trap.harmless()",
			"CREATE OR REPLACE FUNCTION trap.harmless() RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()'")
	}, "unverified", "could run functions of another role with the rights of the reader (let a superuser own what you trust, with all functions that it calls): index public.sprung"},
	"rows without a stamp": {func(d *database) {
		d.past("INSERT INTO public.invoices VALUES (7, NULL)")
	}, "ok", "public.invoices"},
}

func TestPlanted(t *testing.T) {
	t.Parallel()
	test(t, planted)
}

// test plants each state, on each server, in a database with a stamped table that has a row of epoch
// 1, under which a transaction wrote in a subtransaction too.
func test(t *testing.T, states map[string]state) {
	for name, s := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)} {
		for what, c := range states {
			t.Run(name+"/"+what, func(t *testing.T) {
				d := newDatabase(t, s)
				d.write("BEGIN; INSERT INTO public.invoices VALUES (1); SAVEPOINT a; INSERT INTO public.invoices VALUES (2); RELEASE a; COMMIT")
				c.plant(d)
				text, ends := says(t, d.verify(evidence.Options{}))
				if ends != c.ends || !strings.Contains(text, c.says) {
					t.Errorf("it ends with %s, want %s, and says\n%s\nwant %s", ends, c.ends, text, c.says)
				}
			})
		}
	}
}

// TestARestoredCopyGivesNoAlarm: the ids in its ledger are those of another life.
func TestARestoredCopyGivesNoAlarm(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithTools(t))
	d := newDatabase(t, s)
	for range 3 {
		d.write("INSERT INTO public.invoices VALUES (1)")
		d.grant()
	}
	copied := &database{t: t, s: s, name: s.EmptyDatabase(t), epoch: d.epoch}
	text, err := exec.Command(s.Program(t, "pg_dump"), "--dbname", s.DSN(pgtest.Superuser, d.name)).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	load := exec.Command(s.Program(t, "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", s.DSN(pgtest.Superuser, copied.name))
	load.Stdin = bytes.NewReader(text)
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v: %s", err, out)
	}
	copied.grant()
	copied.write("INSERT INTO public.invoices VALUES (2)")
	said, ends := says(t, copied.verify(evidence.Options{}))
	if ends != "unverified" || !strings.Contains(said, "3 rows of epochs 1 to 3: the next grant was recorded in another database") {
		t.Errorf("the copy ends with %s and says\n%s", ends, said)
	}
	if said, ends := says(t, d.verify(evidence.Options{})); ends != "ok" {
		t.Errorf("the original ends with %s and says\n%s", ends, said)
	}
	copied.grant()
	copied.past("UPDATE public.invoices SET id = 9 WHERE id = 2")
	if said, ends := says(t, copied.verify(evidence.Options{})); ends != "found" {
		t.Errorf("a late row in the copy: it ends with %s and says\n%s", ends, said)
	}
}

// TestHealthyTakeoversGiveNoFinding: writers with and without savepoints, and a long transaction
// that has an id, run while epochs are granted.
func TestHealthyTakeoversGiveNoFinding(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t, s)
			long := s.Connect(t, pgtest.App, d.name)
			if _, err := long.Exec(d.ctx(), "BEGIN; CREATE TABLE public.other (id int)"); err != nil {
				t.Fatal(err)
			}
			writing, stop := context.WithCancel(d.ctx())
			committed, ended := make(chan struct{}), make(chan error)
			for i := range 3 {
				go func() { ended <- writeUntil(writing, s.DSN(pgtest.App, d.name), committed, i == 0) }()
			}
			for i := range 9 {
				for range i % 3 { // so that some of the grants meet open transactions
					select {
					case <-committed:
					case <-writing.Done():
						t.Fatal("the writers do not get on")
					}
				}
				d.grantAfter(20 * time.Millisecond)
			}
			stop()
			for range 3 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			if _, err := long.Exec(d.ctx(), "COMMIT"); err != nil {
				t.Fatal(err)
			}
			report := d.verify(evidence.Options{})
			text, ends := says(t, report)
			rows := report.Tables[0]
			if ends != "ok" || rows.Rows == 0 || rows.Unstamped > 0 || rows.Verified+rows.Unclear+rows.Current != rows.Rows {
				t.Errorf("it ends with %s and says\n%s", ends, text)
			}
		})
	}
}

// writeUntil writes under the epoch that it reads outside the transaction, until ctx ends, and reports each commit to whoever
// listens. A transaction whose epoch has ended is refused, or its connection ends: it connects again.
func writeUntil(ctx context.Context, dsn string, committed chan<- struct{}, savepoints bool) error {
	statement := "INSERT INTO public.invoices VALUES (1)"
	if savepoints {
		statement = "BEGIN; SAVEPOINT a; INSERT INTO public.invoices VALUES (1); RELEASE a; SAVEPOINT b; INSERT INTO public.invoices VALUES (2); RELEASE b; COMMIT"
	}
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for ctx.Err() == nil && !conn.IsClosed() {
			_, err := conn.Exec(ctx, "SELECT fencepost.claim('billing', (SELECT epoch FROM fencepost.status))")
			if err == nil {
				_, err = conn.Exec(ctx, statement)
			}
			if err != nil {
				_, _ = conn.Exec(ctx, "ROLLBACK") // a connection that has ended is closed by that
				continue
			}
			select {
			case committed <- struct{}{}:
			default:
			}
		}
		_ = conn.Close(context.WithoutCancel(ctx))
	}
	return nil
}
