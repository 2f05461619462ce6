package auditlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

var start = time.Date(2026, 3, 2, 11, 4, 5, 0, time.UTC)

func refusal(user, worker, state, fingerprint string) line {
	return line{
		Rejection: fencing.Rejection{
			Time: start, Database: "shop", User: user, Resource: "billing", Worker: worker, Write: true,
			SQLState: state, Kind: fencing.KindOf("billing", state, fencing.Finding{}), Message: "no",
		},
		Audit: sqltext.Audit{Statement: "DELETE FROM " + fingerprint, Fingerprint: fingerprint},
	}
}

// TestIdenticalRefusalsAreCounted: the first has a line, the others are in a summary every
// Interval, and after an Interval without any the next one has a line again.
func TestIdenticalRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	r, now := newRepeats(), start
	add := func() bool {
		l := refusal("app", "a", "ZF002", "t")
		l.Time, l.Epoch = now, fencing.Epoch(now.Sub(start).Seconds())
		return r.add(l, now)
	}
	if !add() {
		t.Error("the first refusal has no line")
	}
	for round := range 2 {
		began := now.Add(time.Second)
		for range 9 {
			now = now.Add(time.Second)
			if lines := r.due(now); add() || len(lines) != 0 {
				t.Errorf("after %v there are more lines: %v", now.Sub(start), lines)
			}
		}
		now = now.Add(time.Second)
		lines := r.due(now)
		if len(lines) != 1 || lines[0].repeated != 9 || !lines[0].since.Equal(began) || lines[0].scope != scopeStatement ||
			lines[0].Epoch != fencing.Epoch(10*round+9) || lines[0].Audit.Statement != "DELETE FROM t" {
			t.Errorf("round %d: the summaries are %+v", round, lines)
		}
	}
	if at, ok := r.next(); !ok || !at.Equal(now.Add(Interval)) {
		t.Errorf("next at %v, %v", at, ok)
	}
	now = now.Add(Interval)
	if lines := r.due(now); len(lines) != 0 || len(r.entries) != 0 || len(r.counts[scopeUser]) != 0 {
		t.Errorf("after an interval without refusals there are %v, and entries %v", lines, r.entries)
	}
	if _, ok := r.next(); ok {
		t.Error("there is something to do later")
	}
	if !add() {
		t.Error("the next refusal has no line")
	}
}

// TestOtherRefusalsHaveLinesOfTheirOwn: each field of the key counts, and a superseded
// worker's refusals are never held back.
func TestOtherRefusalsHaveLinesOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRepeats()
	for _, l := range []line{
		refusal("app", "a", "ZF002", "t"), refusal("app", "a", "ZF002", "u"), refusal("app", "a", "ZF003", "t"),
		refusal("app", "b", "ZF002", "t"), refusal("other", "a", "ZF002", "t"),
		refusal("app", "a", "ZF001", "t"), refusal("app", "a", "ZF001", "t"),
	} {
		if !r.add(l, start) {
			t.Errorf("%+v has no line", l)
		}
	}
	if r.add(refusal("app", "a", "ZF002", "u"), start) {
		t.Error("a repeated refusal has a line")
	}
	if lines := r.rest(); len(lines) != 1 || lines[0].Fingerprint != "u" || lines[0].repeated != 1 {
		t.Errorf("the rest is %+v", lines)
	}
	if len(r.entries) != 0 || len(r.rest()) != 0 {
		t.Error("something is left")
	}
}

// TestVariedRefusalsAreBounded: a client that varies its text, its worker or its user has
// few lines and few entries. Nothing is lost, and others have their own lines.
func TestVariedRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	const each = 5000
	for name, c := range map[string]struct {
		varied func(i int) line
		scope  scope
	}{
		"text":   {func(i int) line { return refusal("app", "a", "ZF002", fmt.Sprint(i)) }, scopeWorker},
		"worker": {func(i int) line { return refusal("app", fmt.Sprint(i), "ZF002", "t") }, scopeUser},
		"user":   {func(i int) line { return refusal(fmt.Sprint(i), "a", "ZF002", "t") }, scopeAll},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, written := newRepeats(), 0
			for i := range each {
				if r.add(c.varied(i), start) {
					written++
				}
			}
			most := mostEntries[c.scope]
			if written != most || len(r.entries) != most+1 {
				t.Errorf("%d lines and %d entries, want %d and one more", written, len(r.entries), most)
			}
			if c.scope != scopeAll && !r.add(refusal("another", "b", "ZF002", "t"), start) {
				t.Error("another user's refusal has no line")
			}
			lines := r.due(start.Add(Interval))
			if len(lines) != 1 || lines[0].repeated != each-most || lines[0].scope != c.scope {
				t.Fatalf("the summaries are %+v, want one of %d", lines, each-most)
			}
			got := lines[0]
			if got.Audit.Statement != "" || got.Fingerprint != "" || got.Message != "" {
				t.Errorf("the summary shows one statement of many: %+v", got)
			}
			if (got.Worker == "") != (c.scope >= scopeUser) || (got.User == "") != (c.scope == scopeAll) {
				t.Errorf("the summary of scope %v is %+v", c.scope, got)
			}
		})
	}
}
