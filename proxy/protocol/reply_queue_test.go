package protocol

import (
	"math/rand/v2"
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
			r.push(query, false).done = next
			next++
		} else if r.len() > 0 {
			if got := r.front().done; got != front {
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
		if got := r.at(i).done; got != front+i {
			t.Fatalf("entry %d from the front is %d, want %d", i, got, front+i)
		}
	}
}

func TestRepliesRemoveKeepsTheOrderOfTheRest(t *testing.T) {
	t.Parallel()
	for removed := range 20 {
		var r replyQueue
		for range 12 { // so that the ring is wrapped around
			r.push(syncing, false)
			r.pop()
		}
		for i := range 20 {
			r.push(query, false).done = i
		}
		r.remove(removed)
		if r.len() != 19 {
			t.Fatalf("%d entries after one of 20 was removed", r.len())
		}
		for i := range 19 {
			want := i
			if i >= removed {
				want++
			}
			if got := r.at(i).done; got != want {
				t.Errorf("without %d, entry %d is %d, want %d", removed, i, got, want)
			}
		}
	}
}

func TestRepliesPushClearsWhatTheSlotHeldBefore(t *testing.T) {
	t.Parallel()
	var r replyQueue
	for range 16 {
		e := r.push(query, true)
		e.prefix, e.maybe, e.announces, e.hideNoData = 7, true, true, true
		e.check, e.refuse, e.stmt = refusal, fencing.TwoPhaseRefusal, unknownStatement
		e.text = append(e.text, "secret"...)
		r.pop()
	}
	e := r.push(parse, false)
	if e.kind != parse || e.ours || e.prefix != 0 || e.maybe || e.announces || e.hideNoData ||
		e.check != noCheck || e.refuse != nil || e.stmt != nil || len(e.text) != 0 {
		t.Errorf("a new entry has something of an old one: %+v", e)
	}
}

func TestRepliesAllocateNothingOnceWarm(t *testing.T) { // not parallel: others allocate
	var r replyQueue
	text := []byte("select 1")
	cycle := func() {
		for range 10 {
			e := r.push(query, false)
			e.text = append(e.text, text...)
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
		if m.Owes() != want {
			t.Errorf("%s: owes is %v", when, !want)
		}
	}
	owes(false, "at rest")
	m.pendingReplies.push(parse, false)
	m.pendingReplies.push(bind, false)
	owes(false, "without Sync or Flush")
	m.pendingReplies.ask()
	owes(true, "after a Flush")
	m.pendingReplies.push(execute, false)
	m.pendingReplies.remove(2)
	m.pendingReplies.pop()
	owes(true, "when one of two was answered")
	m.pendingReplies.push(execute, false)
	m.pendingReplies.pop()
	owes(false, "when what was asked for was answered")
	m.pendingReplies.push(function, false)
	m.skipUp = 7
	owes(false, "in the middle of a fast path call")
	m.skipUp = 0
	owes(true, "when it is whole")
	m.pendingReplies.pop()
	m.pendingReplies.pop()
	m.pendingReplies.push(copyEnd, false)
	m.pendingReplies.ask()
	owes(false, "after an end of COPY that nothing answers")
	m.pendingReplies.push(query, false)
	m.pendingReplies.remove(0)
	owes(true, "after a Query")
	m.copyIn = true
	owes(false, "when it wants COPY data")
}
