package rejections

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

var start = time.Date(2026, 3, 2, 11, 4, 5, 0, time.UTC)

func refusal(user, worker, fingerprint string, at time.Time) (fencing.Rejection, sqltext.Audit) {
	return fencing.Rejection{
		Time: at, Database: "shop", User: user, Resource: "billing", Worker: worker, Write: true,
		SQLState: "ZF002", Kind: fencing.KindNotLeader, Finding: fencing.Finding{Current: 3, Holder: "b"},
	}, sqltext.Audit{Statement: "DELETE FROM " + fingerprint, Fingerprint: fingerprint}
}

// TestAlikeRejectionsAreOneRow: what the key does not have is that of the latest, in whatever order
// they come.
func TestAlikeRejectionsAreOneRow(t *testing.T) {
	t.Parallel()
	p := newPending()
	for _, second := range []int{9, 50, 20} {
		r, a := refusal("app", "a", "t", start.Truncate(time.Minute).Add(time.Duration(second)*time.Second))
		r.Client = fmt.Sprint(second)
		if !p.add(r, a) {
			t.Fatal("a rejection found no room")
		}
	}
	later, a := refusal("app", "a", "t", start.Add(time.Minute))
	p.add(later, a)
	discarded, _ := refusal("app", "a", "t", start)
	discarded.Kind = fencing.KindDiscarded
	p.add(discarded, a)
	read, _ := refusal("app", "a", "t", start)
	read.Write = false
	p.add(read, a)
	rows := p.take("shop")
	if len(rows) != 4 || rows.count() != 6 {
		t.Fatalf("%d rows count %d: %+v", len(rows), rows.count(), rows)
	}
	for k, e := range rows {
		if k.minute != minuteOf(start) || k.kind != fencing.KindNotLeader || !k.write {
			continue
		}
		if e.Count != 3 || e.First.Second() != 9 || e.Last.Second() != 50 || e.Latest.Client != "50" || e.Latest.Current != 3 || e.Latest.Statement != "DELETE FROM t" {
			t.Errorf("the row is %+v", e)
		}
	}
	if more := p.take("shop"); len(more) != 0 {
		t.Errorf("what was taken is taken again: %+v", more)
	}
}

// TestVariedRejectionsAreBounded: a client that varies its texts, its workers or its users hides only
// its own, also while batches are taken. The next minute has room again.
func TestVariedRejectionsAreBounded(t *testing.T) {
	t.Parallel()
	const each = 3000
	for name, c := range map[string]struct {
		varied func(i int) (fencing.Rejection, sqltext.Audit)
		rows   int
		lost   int64
	}{
		"texts": {func(i int) (fencing.Rejection, sqltext.Audit) { return refusal("app", "a", fmt.Sprint(i), start) },
			most[scopeWorker] + 1, 0},
		"workers": {func(i int) (fencing.Rejection, sqltext.Audit) { return refusal("app", fmt.Sprint(i), "t", start) },
			most[scopeUser], each - int64(most[scopeUser])},
		"users": {func(i int) (fencing.Rejection, sqltext.Audit) {
			return refusal(fmt.Sprint(i), fmt.Sprint(i), "t", start)
		},
			most[scopeDatabase], each - int64(most[scopeDatabase])},
		"databases": {func(i int) (fencing.Rejection, sqltext.Audit) {
			r, a := refusal("app", "a", "t", start)
			r.Database = fmt.Sprint(i)
			return r, a
		}, 3000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPending()
			var lost, counted int64
			for i := range each {
				if i == each/2 { // what is taken makes no room in the same minute
					for _, db := range p.databases() {
						b := p.take(db)
						counted += b.count()
					}
					p.expire(start)
				}
				if !p.add(c.varied(i)) {
					lost++
				}
			}
			if len(p.entries) != c.rows || lost != c.lost {
				t.Errorf("%d rows, %d rejections found no room; want %d and %d", len(p.entries), lost, c.rows, c.lost)
			}
			if r, a := refusal("another", "b", "t", start); name != "users" && !p.add(r, a) {
				t.Error("another user's rejection found no room")
			}
			for _, db := range p.databases() {
				counted += p.take(db).count()
			}
			if want := int64(each) - c.lost; name != "users" && counted != want+1 || name == "users" && counted != want {
				t.Errorf("the rows count %d, want %d", counted, want)
			}
			p.expire(start.Add(time.Minute))
			if len(p.entries) != 0 || len(p.counts) != 0 {
				t.Errorf("in the next minute there are %d rows, and limits of %v", len(p.entries), p.counts)
			}
		})
	}
}

// TestAWorkerWithManyTextsIsCountedOn: what exceeds its rows is in one without a statement.
func TestAWorkerWithManyTextsIsCountedOn(t *testing.T) {
	t.Parallel()
	p := newPending()
	for i := range 100 {
		p.add(refusal("app", "a", fmt.Sprint(i), start))
	}
	for k, e := range p.take("shop") {
		if want := int64(100 - most[scopeWorker]); k.fingerprint == "" && (e.Count != want || e.Latest.Statement != "" || e.Fingerprint != "") {
			t.Errorf("the row without a fingerprint is %+v, want a count of %d", e, want)
		}
	}
}

// TestWhatIsGivenBackIsCountedOnce, with what has come meanwhile, and as far as there is room.
func TestWhatIsGivenBackIsCountedOnce(t *testing.T) {
	t.Parallel()
	p := newPending()
	add := func(worker string, at time.Time) { p.add(refusal("app", worker, "t", at)) }
	add("a", start)
	add("b", start)
	taken := p.take("shop")
	add("a", start)
	p.expire(start.Add(time.Minute)) // a has a count, b has none
	if lost := p.giveBack(taken); lost != 0 {
		t.Errorf("%d found no room", lost)
	}
	again := p.take("shop")
	if len(again) != 2 || again.count() != 3 {
		t.Errorf("%d rows count %d: %+v", len(again), again.count(), again)
	}
	p.expire(start.Add(time.Minute))
	for i := range most[scopeUser] {
		add(fmt.Sprint(i), start)
	}
	if lost := p.giveBack(again); lost != 3 {
		t.Errorf("%d found no room, want 3", lost)
	}
}
