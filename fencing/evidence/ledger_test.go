package evidence_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/evidence"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// ledger reads the ledger of the resource billing as a superuser.
func ledger(t *testing.T, s *pgtest.Server, db string) []evidence.Grant {
	t.Helper()
	session, err := evidence.NewSession(within(t), s.Connect(t, pgtest.Superuser, db))
	if err != nil {
		t.Fatal(err)
	}
	all, err := session.Ledger(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return all["billing"]
}

// grant returns a statement that grants the next epoch to a worker, and the id of its
// transaction.
func grant(worker string, index int) string {
	return fmt.Sprintf("SELECT fencepost.grant(1, '%[1]s', 'i-%[1]s', 'test', 'm', %[2]d, 0, 0, '5 s', '5 s'), pg_current_xact_id()::text::bigint", worker, index)
}

func newDatabase(t *testing.T, s *pgtest.Server) string {
	t.Helper()
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.generation('test', 'm')")
	return db
}

// TestTheLedgerHasTheSnapshotOfEachGrant: it does not see what commits after the grant, and
// does see the transaction for which the grant has waited.
func TestTheLedgerHasTheSnapshotOfEachGrant(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t, s)
			control, worker := s.Connect(t, pgtest.Control, db), s.Connect(t, pgtest.Control, db) // who may lock the row
			var epoch, xid, own, later int64
			if err := control.QueryRow(within(t), grant("a", 1)).Scan(&epoch, &xid); err != nil {
				t.Fatal(err)
			}
			if err := worker.QueryRow(within(t), "BEGIN").Scan(); err != nil && err != pgx.ErrNoRows {
				t.Fatal(err)
			}
			if err := worker.QueryRow(within(t), "SELECT (fencepost.share((SELECT id FROM fencepost.fence))).epoch, pg_current_xact_id()::text::bigint").Scan(&epoch, &own); err != nil {
				t.Fatal(err)
			}
			second := make(chan error, 1)
			go func() { second <- control.QueryRow(within(t), grant("b", 2)).Scan(&epoch, &xid) }()
			awaitLock(t, s, db)
			if _, err := worker.Exec(within(t), "COMMIT"); err != nil {
				t.Fatal(err)
			}
			if err := <-second; err != nil {
				t.Fatal(err)
			}
			if err := worker.QueryRow(within(t), "SELECT pg_current_xact_id()::text::bigint").Scan(&later); err != nil {
				t.Fatal(err)
			}
			grants := ledger(t, s, db)
			if len(grants) != 2 || grants[1].Epoch != 2 || grants[1].Worker != "b" || grants[1].Xid != evidence.Xid(xid) || grants[0].Copied || grants[1].Copied {
				t.Fatalf("the ledger is %+v, want the second grant by transaction %d", grants, xid)
			}
			before, after := grants[1].Snapshot.Sees(evidence.Xid(own)), grants[1].Snapshot.Sees(evidence.Xid(later))
			if before == evidence.Open || after != evidence.Open {
				t.Errorf("snapshot %+v sees transaction %d: %v, and %d: %v", grants[1].Snapshot, own, before, later, after)
			}
			if grants[0].Snapshot.Sees(evidence.Xid(own)) != evidence.Open {
				t.Errorf("the first snapshot, %+v, sees transaction %d", grants[0].Snapshot, own)
			}
		})
	}
}

// awaitLock waits until a grant waits for a lock in the database.
func awaitLock(t *testing.T, s *pgtest.Server, db string) {
	t.Helper()
	conn := s.Connect(t, pgtest.Superuser, db)
	for deadline := time.Now().Add(30 * time.Second); ; {
		var waits bool
		err := conn.QueryRow(within(t), "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database())").Scan(&waits)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("no grant waits: %v", err)
		}
		if waits {
			return
		}
	}
}

// TestARestoredLedgerIsDistinguishedFromTheOriginal: in a copy by pg_dump, no row was written by the
// transaction that it names. What is granted there is the copy's own.
func TestARestoredLedgerIsDistinguishedFromTheOriginal(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithTools(t))
	db := newDatabase(t, s)
	for i, worker := range []string{"a", "b", "c"} {
		s.Exec(t, pgtest.Control, db, grant(worker, i+1))
	}
	copied := restored(t, s, db)
	s.Exec(t, pgtest.Control, copied, grant("d", 9))
	for name, want := range map[string][]bool{db: {false, false, false}, copied: {true, true, true, false}} {
		var got []bool
		for _, g := range ledger(t, s, name) {
			got = append(got, g.Copied)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("copied: %v, want %v", got, want)
		}
	}
	// A copied row whose id happens to be that of the copying transaction is recognised by the others.
	s.Exec(t, pgtest.Superuser, copied, `UPDATE fencepost.grants SET xid = CASE epoch WHEN 2 THEN pg_current_xact_id() ELSE '7' END, snapshot = '7:7:'`)
	for _, g := range ledger(t, s, copied) {
		if !g.Copied {
			t.Errorf("epoch %d is not told from an original", g.Epoch)
		}
	}
}

// restored returns a copy of a database, made by pg_dump and psql.
func restored(t *testing.T, s *pgtest.Server, db string) string {
	t.Helper()
	name := s.EmptyDatabase(t)
	dump := exec.Command(s.Program(t, "pg_dump"), "--dbname", s.DSN(pgtest.Superuser, db))
	text, err := dump.Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	load := exec.Command(s.Program(t, "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", s.DSN(pgtest.Superuser, name))
	load.Stdin = strings.NewReader(string(text))
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v: %s", err, out)
	}
	return name
}
