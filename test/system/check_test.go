package system

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// tracked is for servers whose data are compared with the ledger.
func tracked() pgtest.Option {
	return pgtest.WithConfig(map[string]string{"track_commit_timestamp": "on"})
}

// entry is one increment as recorded in the database.
type entry struct {
	attempt
	parts     int
	epoch     int64
	value     int64
	committed time.Time
}

// term is one grant as recorded in the ledger. It lasts until the next grant commits.
type term struct {
	epoch     int64
	worker    string
	committed time.Time
}

// check compares the workers' reports with the data and the ledger, and fails the test
// with the history if they disagree. The server must be tracked.
func (r *history) check(h *cluster) {
	r.t.Helper()
	faults := r.faults(h)
	if len(faults) == 0 {
		return
	}
	const most = 20
	for i, fault := range faults {
		if i == most {
			r.t.Errorf("and %d more violations", len(faults)-most)
			break
		}
		r.t.Error(fault)
	}
	r.t.Logf("the history:\n%s", r)
}

func (r *history) faults(h *cluster) []string {
	entries, terms := readEntries(h), readTerms(h)
	counter := ask[int64](h, "SELECT value FROM counter")
	faults := append(wholeAndSingle(entries, counter), withinTerms(entries, terms)...)
	return append(faults, r.asAnswered(entries)...)
}

// wholeAndSingle checks that no increment is there in part, and that none overwrote
// another.
func wholeAndSingle(entries []entry, counter int64) (faults []string) {
	values := map[int64]attempt{}
	for _, e := range entries {
		if e.parts != parts {
			faults = append(faults, fmt.Sprintf("%v has %d rows of %d: it was done by half", e.attempt, e.parts, parts))
		}
		if other, taken := values[e.value]; taken {
			faults = append(faults, fmt.Sprintf("%v and %v both made the counter %d: an update was lost", other, e.attempt, e.value))
		}
		values[e.value] = e.attempt
	}
	if int64(len(entries)) != counter {
		faults = append(faults, fmt.Sprintf("the counter is %d after %d increments", counter, len(entries)))
	}
	return faults
}

// withinTerms checks that epochs grow in the order of commits, and that each increment
// was committed within the term of its worker.
func withinTerms(entries []entry, terms []term) (faults []string) {
	byEpoch := map[int64]int{}
	for i, t := range terms {
		byEpoch[t.epoch] = i
		if i > 0 && (t.epoch <= terms[i-1].epoch || !t.committed.After(terms[i-1].committed)) {
			faults = append(faults, fmt.Sprintf("the grant of epoch %d at %s does not follow that of epoch %d at %s",
				t.epoch, t.committed, terms[i-1].epoch, terms[i-1].committed))
		}
	}
	for _, e := range entries {
		i, found := byEpoch[e.epoch]
		switch {
		case !found:
			faults = append(faults, fmt.Sprintf("%v was made under epoch %d, which the ledger does not have", e.attempt, e.epoch))
			continue
		case terms[i].worker != e.worker:
			faults = append(faults, fmt.Sprintf("%v was made under epoch %d of %s", e.attempt, e.epoch, terms[i].worker))
		case e.committed.Before(terms[i].committed):
			faults = append(faults, fmt.Sprintf("%v was committed %s before its epoch %d was granted", e.attempt, terms[i].committed.Sub(e.committed), e.epoch))
		}
		if i+1 < len(terms) && e.committed.After(terms[i+1].committed) {
			faults = append(faults, fmt.Sprintf("%v of epoch %d was committed %s after the grant of epoch %d to %s: a stale write",
				e.attempt, e.epoch, e.committed.Sub(terms[i+1].committed), terms[i+1].epoch, terms[i+1].worker))
		}
	}
	return faults
}

// asAnswered checks that what was acknowledged is there, and that what was refused is
// not.
func (r *history) asAnswered(entries []entry) (faults []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[attempt]bool{}
	for _, e := range entries {
		there[e.attempt] = true
		if o, tried := r.mu.outcomes[e.attempt]; !tried {
			faults = append(faults, fmt.Sprintf("%v is in the table, and nobody tried it", e.attempt))
		} else if o == refused {
			faults = append(faults, fmt.Sprintf("%v was refused, and is in the table", e.attempt))
		}
	}
	for id, o := range r.mu.outcomes {
		if o == acknowledged && !there[id] {
			faults = append(faults, fmt.Sprintf("%v was acknowledged, and is not in the table", id))
		}
	}
	return faults
}

// readEntries groups the rows of entries into increments.
func readEntries(h *cluster) []entry {
	return rows(h, `SELECT worker, seq, count(*)::int, min(epoch), max(value), max(pg_xact_commit_timestamp(xmin)) FROM entries
		GROUP BY worker, seq ORDER BY 6, 5`, func(row pgx.CollectableRow) (e entry, err error) {
		err = row.Scan(&e.worker, &e.seq, &e.parts, &e.epoch, &e.value, &e.committed)
		return e, err
	})
}

// readTerms reads the ledger. The time of a grant is that of its commit.
func readTerms(h *cluster) []term {
	return rows(h, `SELECT epoch, coalesce(worker, ''), pg_xact_commit_timestamp(xmin) FROM fencepost.grants ORDER BY pg_xact_commit_timestamp(xmin), epoch`,
		func(row pgx.CollectableRow) (e term, err error) {
			err = row.Scan(&e.epoch, &e.worker, &e.committed)
			return e, err
		})
}

func rows[T any](h *cluster, sql string, scan func(pgx.CollectableRow) (T, error)) []T {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, h.pg.DSN(pgtest.Superuser, h.db))
	if err != nil {
		h.t.Fatalf("connect to Postgres: %v", err)
	}
	defer conn.Close(ctx)
	result, err := conn.Query(ctx, sql)
	if err != nil {
		h.t.Fatalf("ask %q: %v", sql, err)
	}
	found, err := pgx.CollectRows(result, scan)
	if err != nil {
		h.t.Fatalf("ask %q: %v", sql, err)
	}
	return found
}

// stamp guards a table of the case by the resource before anybody writes it, so that audit can verify
// its rows. Without the check nobody claims an epoch, so the guard would take its place.
func (h *cluster) stamp(table string) {
	h.t.Helper()
	if !fencing.Checking {
		return
	}
	h.pg.Exec(h.t, pgtest.Control, h.db, "SELECT fencepost.register('"+resource+"')")
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	o := guard.Options{Resource: resource, Table: "public." + table, Stamp: "fence_epoch"}
	if _, _, err := guard.Add(ctx, h.pg.Connect(h.t, pgtest.Superuser, h.db), o); err != nil {
		h.t.Fatalf("guard %s: %v", table, err)
	}
	h.stamped = true
}

// audit verifies the rows of the stamped tables by the ledger, as fencepost audit --verify does. It
// knows nothing of what the workers report.
func (h *cluster) audit() {
	h.t.Helper()
	if !h.stamped {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	report, err := evidence.Verify(ctx, h.pg.Connect(h.t, pgtest.Superuser, h.db), evidence.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		h.t.Fatal(err)
	}
	h.t.Logf("the audit says\n%s", &text)
	if rows := report.Tables[0]; report.Err() != nil || rows.Rows == 0 || rows.Unstamped > 0 {
		h.t.Errorf("the audit: %v; %d rows, %d of them without a stamp", report.Err(), rows.Rows, rows.Unstamped)
	}
}
