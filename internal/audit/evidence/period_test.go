package evidence_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	record "github.com/fencepost/fencepost/fencing/evidence"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAPeriodHasWhatHappenedInIt: the terms that were in force, the refusals and the orders of that time, of one resource.
func TestAPeriodHasWhatHappenedInIt(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t))
	d.grant()
	d.grant()
	d.control("SELECT fencepost.pause(1, 'ops', 'because', '1s', '1s')", "SELECT fencepost.register('mail')", "SELECT fencepost.pause(2, 'ops', '', '1s', '1s')")
	// Epoch n was granted n hours after the beginning; 1 to 3 to workers, 4 to no one by the order.
	begin := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	d.s.Exec(t, pgtest.Superuser, d.name, "UPDATE fencepost.grants SET granted_at = '2026-03-02 00:00:00+00'::timestamptz + epoch * interval '1 h'",
		"UPDATE fencepost.orders SET asked_at = '2026-03-02 04:00:00+00'")
	conn := d.s.Connect(t, pgtest.Control, d.name)
	refusal := func(resource string, at time.Time) record.Rejections {
		return record.Rejections{Minute: at.Truncate(time.Minute), Resource: resource, Worker: "w-1", Kind: "stale", Write: true, SQLState: "ZF001", Fingerprint: "f", User: "app",
			Count: 2, First: at, Last: at, Latest: record.Rejection{Epoch: 1, Current: 2, Holder: "w-2", Statement: "UPDATE t SET a = $1"}}
	}
	for _, hour := range []int{2, 3} {
		for _, resource := range []string{"billing", "mail"} {
			if err := record.Record(d.ctx(), conn, []record.Rejections{refusal(resource, begin.Add(time.Duration(hour)*time.Hour+30*time.Minute))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		from, to time.Duration
		want     string
	}{
		{0, 30 * time.Minute, "terms refusals 0 orders"},
		{90 * time.Minute, 100 * time.Minute, "terms 1:w-1-2h refusals 0 orders"},
		{90 * time.Minute, 150 * time.Minute, "terms 2:w-2-3h 1:w-1-2h refusals 1 orders"},
		{0, 9 * time.Hour, "terms 4: 3:w-3-4h 2:w-2-3h 1:w-1-2h refusals 2 orders pause:w-3"},
		{8 * time.Hour, 9 * time.Hour, "terms 4: refusals 0 orders"},
	} {
		p, err := evidence.In(d.ctx(), conn, "billing", begin.Add(c.from), begin.Add(c.to))
		if err != nil {
			t.Fatal(err)
		}
		got := "terms"
		for _, term := range p.Terms {
			got += fmt.Sprintf(" %d:%s", term.Epoch, term.Worker)
			if text, err := json.Marshal(term); err != nil || strings.Contains(string(text), "refused_writes") {
				t.Errorf("it says how many writes were refused, which it has not counted: %s, %v", text, err)
			}
			if term.To != nil {
				got += fmt.Sprintf("-%dh", int(term.To.Sub(begin).Hours()))
			}
		}
		got += fmt.Sprintf(" refusals %d orders", len(p.Refusals))
		for _, o := range p.Orders {
			got += " " + o.Kind + ":" + o.Worker
			if o.AskedBy != "ops" || o.Reason != "because" || o.Role != pgtest.Control || o.Epoch != 4 {
				t.Errorf("the order is %+v", o)
			}
		}
		for _, r := range p.Refusals {
			if r.Worker != "w-1" || r.CurrentWorker != "w-2" || r.Epoch != 1 || r.CurrentEpoch != 2 || r.Count != 2 || r.Statement != "UPDATE t SET a = $1" || r.User != "app" {
				t.Errorf("the refusal is %+v", r)
			}
		}
		if got != c.want || p.Cut {
			t.Errorf("from %s to %s: %q, cut %v; want %q", c.from, c.to, got, p.Cut, c.want)
		}
	}
	latest, err := evidence.Latest(d.ctx(), conn, 3)
	if err != nil || len(latest) != 3 || latest[0].Last.Before(latest[2].Last) {
		t.Errorf("the latest are %+v: %v", latest, err)
	}
}

// TestAPeriodIsCut at the newest 10,000 terms.
func TestAPeriodIsCut(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t))
	d.s.Exec(t, pgtest.Superuser, d.name, `INSERT INTO fencepost.grants (id, resource, epoch, worker, incarnation, source, source_generation, source_index, granted_at, xid, snapshot)
		SELECT id, resource, epoch + n, worker, incarnation || n, source, source_generation, source_index + n, granted_at, xid, snapshot FROM fencepost.grants, generate_series(1, 10000) n`)
	p, err := evidence.In(d.ctx(), d.s.Connect(t, pgtest.Control, d.name), "billing", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if !p.Cut || len(p.Terms) != 10_000 || p.Terms[0].Epoch != 10_001 || p.Terms[0].To != nil {
		t.Errorf("cut %v, %d terms, the first of them %+v", p.Cut, len(p.Terms), p.Terms[0])
	}
}
