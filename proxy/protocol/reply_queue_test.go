package protocol

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

func TestRepliesAreAFIFOThatGrows(t *testing.T) {
	t.Parallel()
	var r replyQueue
	if r.front() != nil || r.len() != 0 {
		t.Fatal("an empty FIFO has a front")
	}
	next, front := 0, 0
	dice := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		if dice.IntN(5) < 3 {
			r.push(query, fromClient).sql.done = next
			next++
		} else if r.len() > 0 {
			if got := r.front().sql.done; got != front {
				t.Fatalf("the front is entry %d, want %d", got, front)
			}
			r.pop()
			front++
		}
		if r.len() != next-front {
			t.Fatalf("%d entries, want %d", r.len(), next-front)
		}
	}
	for i := range r.len() {
		if got := r.at(i).sql.done; got != front+i {
			t.Fatalf("entry %d from the front is %d, want %d", i, got, front+i)
		}
	}
}

func TestRepliesRemoveKeepsTheOrderOfTheRest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		unwanted func(i int) bool
	}{
		{"none", func(int) bool { return false }},
		{"all", func(int) bool { return true }},
		{"the first", func(i int) bool { return i == 0 }},
		{"one", func(i int) bool { return i == 7 }},
		{"every other", func(i int) bool { return i%2 == 1 }},
		{"the last", func(i int) bool { return i == 19 }},
	} {
		for looked := range 21 {
			var r replyQueue
			for range 12 { // so that the ring is wrapped around
				r.push(syncing, fromClient)
				r.pop()
			}
			var want []int
			asked := 0
			for i := range 20 {
				r.push(parse, fromClient).sql.done = i
				if i == 10 {
					r.ask()
				}
				if i < looked && c.unwanted(i) {
					continue
				}
				if want = append(want, i); i <= 10 {
					asked++
				}
			}
			removed := r.remove(looked, func(e *reply) bool { return c.unwanted(e.sql.done) })
			var got []int
			for i := range r.len() {
				got = append(got, r.at(i).sql.done)
			}
			if !slices.Equal(got, want) || removed != 20-len(want) || r.asked != asked {
				t.Errorf("%s of %d: %d removed, %v left, %d of them asked for; want %v, %d", c.name, looked, removed, got, r.asked, want, asked)
			}
		}
	}
}

func TestRepliesPushClearsWhatTheSlotHeldBefore(t *testing.T) {
	t.Parallel()
	var r replyQueue
	for range 16 {
		e := r.push(query, own)
		e.sql.prefix, e.certainty, e.announces, e.standIn = 7, perhaps, true, queryStandIn
		e.check, e.refuse, e.stmt = refusal, fencing.TwoPhaseRefusal, unknownStatement
		e.sql.audit = append(e.sql.audit, "secret"...)
		r.pop()
	}
	e := r.push(parse, fromClient)
	if e.kind != parse || e.own() || e.sql.prefix != 0 || e.maybe() || e.announces || e.standIn != noStandIn ||
		e.check != noCheck || e.refuse != nil || e.stmt != nil || len(e.sql.audit) != 0 {
		t.Errorf("a new entry has something of an old one: %+v", e)
	}
}

func TestRepliesAllocateNothingOnceWarm(t *testing.T) { // not parallel: others allocate
	var r replyQueue
	text := []byte("select 1")
	cycle := func() {
		for range 10 {
			e := r.push(query, fromClient)
			e.sql.audit = append(e.sql.audit, text...)
		}
		for range 10 {
			r.pop()
		}
	}
	for range 10 {
		cycle()
	}
	if allocs := testing.AllocsPerRun(100, cycle); allocs != 0 {
		t.Errorf("10 entries cost %v allocations, want 0", allocs)
	}
}

// TestOnlyWhatWasAskedForIsOwed, however entries leave the FIFO.
func TestOnlyWhatWasAskedForIsOwed(t *testing.T) {
	t.Parallel()
	var m Machine
	owes := func(want bool, when string) {
		t.Helper()
		if m.Is(Working) != want {
			t.Errorf("%s: owes is %v", when, !want)
		}
	}
	owes(false, "at rest")
	m.pendingReplies.push(parse, fromClient)
	m.pendingReplies.push(bind, fromClient)
	owes(false, "without Sync or Flush")
	m.pendingReplies.ask()
	owes(true, "after a Flush")
	m.pendingReplies.push(execute, fromClient)
	m.pendingReplies.remove(3, func(e *reply) bool { return e.kind == execute })
	m.pendingReplies.pop()
	owes(true, "when one of two was answered")
	m.pendingReplies.push(execute, fromClient)
	m.pendingReplies.pop()
	owes(false, "when what was asked for was answered")
	m.pendingReplies.push(function, fromClient)
	m.up.body.begin(7, false)
	owes(false, "in the middle of a fast path call")
	m.up.body.take(7)
	owes(true, "when it is whole")
	m.pendingReplies.pop()
	m.pendingReplies.pop()
	m.pendingReplies.push(copyEnd, fromClient)
	m.pendingReplies.ask()
	owes(false, "after an end of COPY that nothing answers")
	m.pendingReplies.push(query, fromClient)
	m.pendingReplies.remove(1, func(*reply) bool { return true })
	owes(true, "after a Query")
	m.copy.begin(false)
	owes(false, "when it wants COPY data")
}

// TestWhatATagSaysOfABlock counts, and not what the statement seemed to be.
func TestWhatATagSaysOfABlock(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		had, adds      had
		begins, leaves bool
		want           had
	}{
		"BEGIN":                          {0, hadBegin, true, false, hadBegin},
		"a portal of BEGIN, replaced":    {0, hadBegin, false, false, 0},
		"COMMIT":                         {hadBegin | hadWork, hadEnd, false, true, 0},
		"a portal of COMMIT, replaced":   {hadBegin | hadWork, hadEnd, false, false, hadBegin | hadWork},
		"COMMIT AND CHAIN":               {hadBegin | hadWork, hadEnd | hadBegin, false, true, hadBegin},
		"a COMMIT that nobody has seen":  {hadBegin | hadWork, hadWork | hadUnsure, false, true, hadWork},
		"LOCK TABLE":                     {hadBegin, hadLock, false, false, hadBegin | hadLock},
		"LOCK TABLE behind work":         {hadBegin | hadWork, hadLock, false, false, hadBegin | hadWork},
		"something unsure behind a LOCK": {hadBegin | hadLock, hadWork | hadUnsure, false, false, hadBegin},
	} {
		var r replyQueue
		r.push(execute, fromClient).adds = c.adds
		r.had = c.had
		r.runs(c.begins, c.leaves)
		if r.had != c.want {
			t.Errorf("%s: the transaction has had %b, want %b", what, r.had, c.want)
		}
	}
}
