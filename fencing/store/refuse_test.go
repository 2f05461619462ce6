package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
)

var isolations = []pgx.TxOptions{
	{IsoLevel: pgx.ReadCommitted},
	{IsoLevel: pgx.RepeatableRead},
	{IsoLevel: pgx.Serializable},
	{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
	{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadOnly},
}

func TestCheckTellsTheCasesApart(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	empty, err := h.store.Fence(h.ctx(), "nobody was granted")
	if err != nil {
		t.Fatal(err)
	}
	first := h.grant("a")
	now := h.grant("b")
	stranger := fencing.Term{Award: h.award("c")}
	for _, c := range []struct {
		name       string
		fence      int32
		term       fencing.Term
		told, held fencing.Epoch
		state      string
		epoch      fencing.Epoch // in DETAIL
	}{
		{"the leader", h.fence.ID(), now, 2, 2, "", 0},
		{"superseded, was told", h.fence.ID(), first, 1, 1, "ZF001", 1},
		{"superseded, was never told", h.fence.ID(), first, 0, 1, "ZF001", 1},
		{"superseded, and forgot what it held", h.fence.ID(), first, 0, 0, "ZF001", 1},
		{"superseded, and claims the current epoch", h.fence.ID(), first, 2, 1, "ZF001", 1},
		{"superseded, forgot what it held, and claims the current epoch", h.fence.ID(), first, 2, 0, "ZF001", 1},
		{"a follower", h.fence.ID(), stranger, 0, 0, "ZF002", 0},
		{"a follower that claims the leader's epoch", h.fence.ID(), stranger, 2, 0, "ZF002", 2},
		{"the leader, not yet told", h.fence.ID(), now, 0, 2, "ZF003", 2},
		{"the leader, told an older epoch", h.fence.ID(), now, 1, 2, "ZF003", 2},
		{"told more than the fence knows", h.fence.ID(), now, 7, 7, "ZF004", 7},
		{"nobody was granted", empty.ID(), stranger, 0, 0, "ZF002", 0},
		{"nobody was granted, but this one says so", empty.ID(), stranger, 3, 3, "ZF004", 3},
	} {
		for _, options := range isolations {
			t.Run(fmt.Sprintf("%s/%s %s", c.name, options.IsoLevel, options.AccessMode), func(t *testing.T) {
				w := h.worker(c.term)
				w.fence = c.fence
				tx, err := w.BeginTx(h.ctx(), options)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(h.ctx()) }()
				if c.told == c.held {
					_, err := tx.Exec(h.ctx(), "SAVEPOINT s")
					if err != nil {
						t.Fatal(err)
					}
					sql := fencing.FrontCheckSQL(c.fence, c.term.Worker, c.term.Incarnation, false, c.told)
					if _, err := tx.Exec(h.ctx(), sql); stateOf(err) != c.state {
						t.Errorf("in front: got %v; want %q", err, c.state)
					}
					if _, err := tx.Exec(h.ctx(), "ROLLBACK TO s"); err != nil {
						t.Fatal(err)
					}
				}
				sql := fencing.CheckSQL(c.fence, c.term.Worker, c.term.Incarnation, false)
				_, err = tx.Exec(h.ctx(), sql, int64(c.told), int64(c.held))
				if stateOf(err) != c.state {
					t.Fatalf("got %v; want %q", err, c.state)
				}
				if err == nil {
					var xid *string
					if err := tx.QueryRow(h.ctx(), "SELECT pg_current_xact_id_if_assigned()::text").Scan(&xid); err != nil || xid != nil {
						t.Errorf("the check took the transaction id %v (%v)", xid, err)
					}
					return
				}
				if got := parseDetail(t, err); got.Epoch != c.epoch || got.Worker != c.term.Worker || got.Incarnation != c.term.Incarnation {
					t.Errorf("detail %+v; want epoch %d of %s", got, c.epoch, c.term.Worker)
				}
			})
		}
	}
}

type errorDetail struct {
	Resource      string        `json:"resource"`
	Worker        string        `json:"worker"`
	Incarnation   string        `json:"incarnation"`
	Epoch         fencing.Epoch `json:"epoch"`
	CurrentEpoch  fencing.Epoch `json:"current_epoch"`
	CurrentWorker string        `json:"current_worker"`
}

func parseDetail(t testing.TB, err error) errorDetail {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		t.Fatalf("not an error of the server: %v", err)
	}
	var d errorDetail
	if err := json.Unmarshal([]byte(pg.Detail), &d); err != nil || strings.Contains(pg.Detail, "\n") {
		t.Errorf("DETAIL %q is not one line of JSON: %v", pg.Detail, err)
	}
	if pg.Hint == "" {
		t.Errorf("no hint with %s", pg.Message)
	}
	return d
}

func TestALapsedLeaseIsRefusedOnlyWhileNobodyElseWasGranted(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	term := h.grant("a")
	w := h.worker(term)
	refuse := func(told fencing.Epoch) error {
		_, err := w.Exec(h.ctx(), fencing.RefuseSQL(h.fence.ID(), term.Worker, term.Incarnation, told, term.Epoch, true))
		return err
	}
	for _, told := range []fencing.Epoch{0, term.Epoch} {
		err := refuse(told)
		if stateOf(err) != fencing.StateNotLeader {
			t.Errorf("told %d: %v; want ZF002", told, err)
		}
		mustContain(t, err, "not confirmed", "nobody else was granted")
	}
	h.grant("b")
	if err := refuse(term.Epoch); stateOf(err) != fencing.StateSuperseded {
		t.Errorf("after another grant: %v; want ZF001", err)
	}
}

// hostile are names that a worker may choose for itself.
var hostile = []string{
	"plain", "it's", `back\slash`, `quote"quote`, "new\nline\tand\x01\x7f", "%s %1$s %", "Grüße", "漢字 😀", `'||(SELECT 1)||'`,
	`E'\'; DROP TABLE x; --`, "$1 $$ $tag$", strings.Repeat("long", 200),
}

func TestErrorsAreASCIIWhateverTheNames(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	for i, name := range hostile {
		award := h.award(fmt.Sprint(i))
		award.Worker, award.Incarnation = name, name+fmt.Sprint(i)
		epoch, err := h.fence.Grant(h.ctx(), award)
		if err != nil {
			t.Fatalf("grant to %q: %v", name, err)
		}
		for _, settings := range []string{"SET standard_conforming_strings = on", "SET standard_conforming_strings = off",
			"SET client_encoding = 'LATIN1'", "SET client_encoding = 'SJIS'; SET default_transaction_isolation = 'repeatable read'"} {
			w := h.worker(fencing.Term{Award: award})
			if _, err := w.Exec(h.ctx(), settings); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Exec(h.ctx(), "PREPARE chk(int8, int8) AS "+fencing.CheckSQL(w.fence, name, award.Incarnation, false)); err != nil {
				t.Fatalf("prepare the check of %q: %v", name, err)
			}
			if _, err := w.Exec(h.ctx(), fmt.Sprintf("EXECUTE chk(%d, %d)", epoch, epoch)); err != nil {
				t.Errorf("%q, %s: the leader's check: %v", name, settings, err)
			}
			_, err := w.Exec(h.ctx(), fmt.Sprintf("EXECUTE chk(0, %d)", epoch))
			if stateOf(err) != fencing.StateStartOver {
				t.Errorf("%q, %s: %v; want ZF003", name, settings, err)
				continue
			}
			want := []rune(name)
			if d := parseDetail(t, err); d.Worker != string(want[:min(len(want), 255)]) || d.CurrentWorker != d.Worker {
				t.Errorf("%q came back as %q and %q", name, d.Worker, d.CurrentWorker)
			}
			var pg *pgconn.PgError
			errors.As(err, &pg)
			for _, r := range pg.Message + pg.Detail + pg.Hint {
				if r < ' ' || r > '~' {
					t.Errorf("%q: the error holds %q: %s %s", name, r, pg.Message, pg.Detail)
					break
				}
			}
		}
	}
}

func TestALeaderWithAnOlderSnapshotIsToldToRetry(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	h.grant("a")
	for _, isolation := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		w := h.worker(fencing.Term{})
		tx, err := w.BeginTx(h.ctx(), pgx.TxOptions{IsoLevel: isolation})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(h.ctx(), "SELECT count(*) FROM pg_class"); err != nil { // takes the snapshot
			t.Fatal(err)
		}
		w.term = h.grant("b-" + strings.ReplaceAll(string(isolation), " ", "-"))
		if err := w.check(h.ctx()); stateOf(err) != "40001" {
			t.Errorf("%s: %v; want 40001", isolation, err)
		} else {
			mustContain(t, err, "before the grant")
		}
		_ = tx.Rollback(h.ctx())
		if tx := w.begin(h.ctx(), t, isolation); tx.Commit(h.ctx()) != nil {
			t.Errorf("%s: the retry was refused", isolation)
		}
	}
}

func TestAHostileSessionChangesNoVerdict(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	old := h.grant("a")
	now := h.grant("b")
	for _, term := range []fencing.Term{old, now} {
		w := h.worker(term)
		for _, sql := range []string{
			"CREATE OR REPLACE FUNCTION public.yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
			"CREATE OR REPLACE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT 'read committed' $$",
			"CREATE OR REPLACE FUNCTION public.pg_sequence_last_value(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
			"CREATE OR REPLACE FUNCTION public.to_regclass(text) RETURNS regclass LANGUAGE sql AS 'SELECT NULL::regclass'",
			"DO $$ BEGIN CREATE OPERATOR public.= (FUNCTION = public.yes, LEFTARG = bigint, RIGHTARG = bigint); EXCEPTION WHEN duplicate_function THEN END $$",
			"CREATE TEMP TABLE fence AS SELECT 1 AS id, 'x' AS resource, 1::bigint AS epoch",
			"SET search_path = public, pg_temp, pg_catalog",
			"SET default_transaction_isolation = 'serializable'",
			"SET plan_cache_mode = 'force_generic_plan'",
		} {
			if _, err := w.Exec(h.ctx(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		want := ""
		if term == old {
			want = fencing.StateSuperseded
		}
		if err := w.check(h.ctx()); stateOf(err) != want {
			t.Errorf("epoch %d: %v; want %q", term.Epoch, err, want)
		}
	}
}
